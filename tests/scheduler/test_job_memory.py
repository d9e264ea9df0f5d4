"""Tests of a job's memory on a real device.

Inputs are checked and kept, a job waits for output memory, and all memory is released.
"""

import gc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.ir.graph import Fact
from cml_engine.scheduler import JobOutput
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.host import Host, conv_net, open_device, run_net, under_way
from tests.fixtures.memory import held_bytes
from tests.fixtures.texels import submitted

pytestmark = pytest.mark.gpu

SHAPE = (1, 8, 24, 24)
OUTPUT = 4 * 8 * 24 * 24


@pytest.fixture
def own_gpu():
    """A device for one test, which may change its memory budget."""
    return cml.Gpu(device=open_device())


def done(host, *jobs):
    host.until(lambda: all(job.ended for job in jobs))
    assert [job.error for job in jobs] == [""] * len(jobs)


# --- refused at submit


def test_foreign_sessions_and_inputs_are_refused_at_submit(gpu, own_gpu, image):
    here, there = cml.Session(conv_net(), gpu), cml.Session(conv_net(), own_gpu)
    host = Host(gpu)
    elsewhere = Host(own_gpu, budget_ms=50.0).run(there, {"x": image})
    maker = host.submit(here, {"x": image})
    wider = cml.Session(conv_net(size=16), gpu)
    wrong = {
        "another cml.Gpu": (there, {"x": image}),
        "runs on another device": (here, {"x": elsewhere.output("y")}),
        "GPU tensor of another device": (here, {"x": elsewhere.tensor("y")}),
        "has no output 'z'; it has y": (here, {"x": JobOutput(maker, "z")}),
        "unknown input 'z'": (here, {"z": maker.output("y")}),
        "wanted scalar.1,8,16,16.*got a GPU tensor scalar.1,8,24,24": (
            wider, {"x": maker.output("y")},
        ),
        "no input 'nope'": (here.program, {"nope": image}),
        "got a array|got an array|got a.* array scalar.8,24,24": (here.program, {"x": image[0]}),
        "wanted scalar": (here, {"x": image.astype(bool)}),
        "is missing": (here, {}),
        "got a session on the CPU": (cml.Session(conv_net(), "cpu"), {"x": image}),
    }  # fmt: skip
    for says, (session, inputs) in wrong.items():
        with pytest.raises(cml.InputError, match=says):
            host.submit(session, inputs)
    assert host.scheduler.jobs == [maker]
    done(host, maker)


@pytest.mark.parametrize("call", ["output", "read", "tensor", "copy_to_texture"])
def test_unknown_outputs_are_refused_at_the_call_in_every_state(gpu, image, call):
    host, session = Host(gpu), cml.Session(conv_net(), gpu)
    job, cancelled = (host.submit(session, {"x": image}) for _ in range(2))
    cancelled.cancel()
    rest = (None, None) if call == "copy_to_texture" else ()

    def check(job):
        with pytest.raises(cml.InputError, match="has no output 'z'; it has y"):
            getattr(job, call)(*rest[:1], "z", *rest[1:])

    check(job)
    check(cancelled)
    done(host, job)
    check(job)
    for _ in range(5):  # the scheduler drops the networks of ended jobs
        host.frame()
    check(job)
    check(cancelled)
    job.release()
    check(job)


# --- inputs may change or be deleted after submit


def test_submit_copies_arrays(gpu, image):
    session = cml.Session(conv_net(), gpu)
    expected = run_net(session, image)
    host = Host(gpu)
    arrays = [image.copy(), np.asfortranarray(image)]
    jobs = [host.submit(session, {"x": array}) for array in arrays]
    for array in arrays:
        array[:] = np.nan
    for result in host.finish(*jobs):
        assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["output", "tensor"])
def test_released_input_is_retained_for_the_waiting_job(gpu, image, kind):
    first, second = cml.Session(conv_net("one"), gpu), cml.Session(conv_net("two", seed=1), gpu)
    expected = run_net(second, run_net(first, image))
    host = Host(gpu)
    maker = host.submit(first, {"x": image})
    done(host, maker)
    busy = host.submit(second, {"x": image})
    under_way(host, busy)
    taker = host.submit(second, {"x": getattr(maker, kind)("y")})
    held = gpu.memory.held_bytes
    maker.release()
    others = [host.submit(first, {"x": -image}) for _ in range(3)]
    assert_array_equal(host.finish(taker, *others)[0], expected)
    for job in (*others, busy, taker):
        job.release()
    host.frame()
    assert gpu.memory.held_bytes < held


@pytest.mark.parametrize("reader", ["job", "run"])
def test_tensor_of_an_abandoned_frame_is_refused(gpu, host, image, reader):
    first, second = (cml.Session(conv_net(seed=seed), gpu) for seed in (1, 2))
    host.scheduler.planner = operators_per_frame(100)
    job = host.submit(first, {"x": image})
    while host.encode() and job.state != "done":
        host.scheduler.abandon_frame()
    tensor = job.tensor("y")
    reading = host.submit(second, {"x": tensor}) if reader == "job" else None
    host.scheduler.abandon_frame()
    with pytest.raises(cml.InputError, match="was abandoned. Take the tensor again"):
        run_net(second, tensor) if reading is None else reading.wait(60)
    assert job.wait(60).state == "done"
    again = host.run(second, {"x": job.tensor("y")})
    assert_array_equal(*host.finish(again), run_net(second, run_net(first, image)))


def test_tensor_keeps_its_memory_while_referenced(gpu, host, image):
    session = cml.Session(conv_net(layers=1), gpu)
    job = host.run(session, {"x": image})
    tensor, held = job.tensor("y"), held_bytes(gpu)
    del job
    gc.collect()
    host.frame()
    assert gpu.memory.held_bytes == held and tensor.fact == Fact("scalar", SHAPE)
    del tensor
    gc.collect()
    host.frame()
    assert gpu.memory.held_bytes == held - OUTPUT
    released = host.run(session, {"x": image})
    tensor = released.tensor("y")
    released.release()
    with pytest.raises(cml.InputError, match="input 'x': the GPU tensor's memory was released"):
        host.submit(session, {"x": tensor})
    assert host.scheduler.jobs == []


# --- nothing is left behind


def test_scheduler_deleted_during_a_readback_releases_all_memory(own_gpu, image):
    """A scheduler that is dropped during a readback releases all its memory.

    The copy was only encoded, its mapping was requested, or its data has arrived.
    """
    session = cml.Session(conv_net(layers=1), own_gpu)
    expected = run_net(session, image)
    gc.collect()
    before = own_gpu.memory.held_bytes
    for frames in range(5):
        host = Host(own_gpu, budget_ms=50.0)
        job = host.submit(session, {"x": image})
        job.read("y")
        host.until(lambda job=job: job.ended)
        for _ in range(frames):
            host.frame()
        del host, job
        gc.collect()
        assert own_gpu.memory.held_bytes == before, frames
    host = Host(own_gpu, budget_ms=50.0)
    (result,) = host.finish(host.submit(session, {"x": image}))
    assert_array_equal(result, expected)


def test_frame_timer_deleted_during_a_readback_releases_all_memory(own_gpu):
    gc.collect()
    before = own_gpu.memory.held_bytes
    for _ in range(3):
        timer = own_gpu.frame_timer(("pass",))
        for _ in range(3):
            with submitted(own_gpu) as encoder:
                encoder.begin_compute_pass(timestamp_writes=timer.writes("pass")).end()
                timer.resolve(encoder)
            timer.end_frame()
        del timer
        gc.collect()
        assert own_gpu.memory.held_bytes == before


# --- memory for outputs


def whole_budget(gpu, more):
    """Frees unused memory and sets the device's budget to what is then reserved plus ``more``
    bytes."""
    gpu.memory._free_unused()
    gpu.memory.budget_bytes = gpu.memory.reserved_bytes + more


def submit_ones(host, session):
    """Submits a job whose input is all ones."""
    return host.submit(session, {"x": np.ones(session.inputs["x"].shape, np.float32)})


def test_a_job_waits_for_the_memory_of_its_outputs(own_gpu):
    """A queued job waits for output memory, says so, and runs after another job's outputs are
    released.

    It fails if no other job could release memory.
    """
    session = cml.Session(conv_net(layers=1, size=128), own_gpu)
    host = Host(own_gpu, budget_ms=50.0)
    first, beside = (submit_ones(host, session) for _ in range(2))
    done(host, first, beside)  # their outputs fill a heap
    whole_budget(own_gpu, 2 * 8 * 128 * 128)
    second = submit_ones(host, session)
    host.until(lambda: "memory for its outputs" in second.waiting_for)
    assert second.state == "queued"
    assert "memory for its outputs" in host.scheduler.describe()
    first.release()
    done(host, second)
    for job in (beside, second):
        job.release()
    host.frame()
    whole_budget(own_gpu, 1000)
    refused = submit_ones(host, session)
    host.until(lambda: refused.ended)
    assert refused.state == "failed" and "for output" in refused.error


def test_network_waits_for_memory_of_retained_outputs(own_gpu):
    first = cml.Session(conv_net("one", layers=1, size=128), own_gpu)
    host = Host(own_gpu, budget_ms=50.0)
    makers = [submit_ones(host, first) for _ in range(4)]
    done(host, *makers)
    whole_budget(own_gpu, 2 << 20)
    second = cml.Session(conv_net("two", layers=1, size=256), own_gpu, deferred=True)
    job = submit_ones(host, second)
    host.until(lambda: "memory: out of GPU memory" in job.waiting_for)
    assert job.state == "queued"
    for maker in makers:
        maker.release()
    done(host, job)


def test_cancelled_job_releases_its_output_memory(gpu, image):
    session, host = cml.Session(conv_net(), gpu), Host(gpu)
    before = held_bytes(gpu)
    job = host.submit(session, {"x": image})
    under_way(host, job)
    assert gpu.memory.held_bytes > before
    job.cancel()
    host.frame()
    assert gpu.memory.held_bytes == before


def test_describe_states_what_the_scheduler_does(own_gpu, image):
    session = cml.Session(conv_net("late", seed=77), own_gpu, deferred=True)
    scheduler = FrameScheduler(own_gpu, budget_ms=1.0)
    job = scheduler.submit(session, {"x": image})
    scheduler.encode(own_gpu.device.create_command_encoder())
    assert "'late'" not in job.waiting_for or "pipelines" in job.waiting_for
    assert job.waiting_for.startswith("queued: waits for its network to be ready")
    text = scheduler.describe()
    assert "preparation: " in text and "job 0 'late': queued" in text and "budget 1 ms" in text
    scheduler.abandon_frame()


# --- two schedulers


@pytest.mark.parametrize("shared", ["session", "arena"])
@pytest.mark.parametrize("end", ["done", "cancel", "abandon"])
def test_job_waits_for_another_schedulers_job_in_a_shared_arena(gpu, image, shared, end):
    first = cml.Session(conv_net(), gpu, arena="shared:two schedulers")
    second = first
    if shared == "arena":
        second = cml.Session(conv_net("other", seed=1), gpu, arena="shared:two schedulers")
    expected = [run_net(first, image), run_net(second, -image)]
    hosts = [Host(gpu, budget_ms=0.05), Host(gpu, budget_ms=50.0)]
    job = hosts[0].scheduler.submit(first, {"x": image})
    under_way(hosts[0], job)
    other = hosts[1].scheduler.submit(second, {"x": -image})
    hosts[1].until(lambda: "another scheduler" in other.waiting_for)
    assert other.state == "queued"
    if end == "cancel":
        job.cancel()
        hosts[0].frame()
    else:
        while not job.ended:
            if end == "abandon":
                hosts[0].encode()
                hosts[1].frame()
                hosts[0].scheduler.abandon_frame()
            hosts[0].frame()
        assert_array_equal(hosts[0].finish(job)[0], expected[0])
    assert_array_equal(hosts[1].finish(other)[0], expected[1])
