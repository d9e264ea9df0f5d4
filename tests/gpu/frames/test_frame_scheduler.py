"""Tests of the scheduler on a real device: bit-identical results, no new objects, no waits."""

import gc
import time
from pathlib import Path

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.ir.graph import Fact
from tests.fixtures.frames.host import Host, conv_net, creations, native_objects
from tests.fixtures.memory import held_bytes


@pytest.fixture
def image(rng):
    return rng.standard_normal((1, 8, 24, 24)).astype(np.float32)


def test_sliced_output_is_the_unsliced_one_bit_for_bit(gpu, image):
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    for budget in (0.05, 0.3, 5.0):
        host = Host(gpu, budget_ms=budget)
        job = host.scheduler.submit(session, {"x": image})
        host.until(lambda job=job: job.ended and job.read("y") is not None)
        np.testing.assert_array_equal(job.read("y"), wanted)
        assert job.state == "done" and job.progress == 1.0
    small = max(part.count for r in host.reports for part in r.slices)
    assert small >= 1


def test_a_tool_without_a_frame_loop_waits_for_its_arrays(gpu, image):
    session = cml.Session(conv_net(), gpu)
    scheduler = FrameScheduler(gpu, budget_ms=0.3)
    called = []
    job = scheduler.submit(session, {"x": image}, read=True)
    job.add_done_callback(lambda job: called.append(job.read("y")))
    got = job.wait(60).read("y")
    np.testing.assert_array_equal(got, session.run({"x": image})["y"])
    np.testing.assert_array_equal(called[0], got)


def test_one_operator_is_split_over_frames(gpu):
    session = cml.Session(conv_net(layers=1, size=64), gpu)
    host = Host(gpu, budget_ms=0.02)
    x = np.ones((1, 8, 64, 64), np.float32)
    job = host.scheduler.submit(session, {"x": x})
    host.until(lambda: job.ended)
    steps = [p for report in host.reports for p in report.slices]
    frames = [r for r in host.reports if r.slices]
    assert len(frames) > len(session.plan.steps), "more frames than operators"
    longest = max(session.plan.steps, key=lambda s: s.groups)
    assert max(p.count for p in steps if p.step == longest.index) < longest.groups


def test_timings_arrive_and_are_learned(gpu, image):
    if not gpu.has_timestamps:
        pytest.skip("no timestamp queries")
    session = cml.Session(conv_net(size=24), gpu)
    host = Host(gpu, budget_ms=2.0)
    for _ in range(20):
        job = host.scheduler.submit(session, {"x": image})
        host.until(lambda job=job: job.ended)
    for _ in range(6):
        host.frame()
    assert len(host.measured) >= 15
    assert all(r.measured_ms >= 0 for r in host.measured)
    model = host.scheduler.cost_model
    assert all(model.samples(c.key) > 0 for c in session.program.step_costs())


def resident_bytes():
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096


@pytest.mark.parametrize("frames", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_steady_state_creates_nothing(gpu, image, monkeypatch, frames):
    session = cml.Session(conv_net(layers=2), gpu)
    host = Host(gpu, budget_ms=0.5)

    def work(count):
        for _ in range(count):
            job = host.scheduler.submit(session, {"x": image})
            host.until(lambda job=job: job.ended and job.read("y") is not None)
            job.release()

    work(4)
    gc.collect()  # frees objects of other tests before the measurement
    objects, memory = native_objects(), resident_bytes()
    created = creations(gpu, monkeypatch)
    host.count = 0
    while host.count < frames:
        work(20)
        host.reports.clear()
        host.measured.clear()
    assert created == []
    gc.collect()
    grown = {k: n for k, n in native_objects().items() if n > objects.get(k, 0)}
    assert grown == {}
    assert resident_bytes() - memory < 16 << 20


def test_deleted_job_releases_its_outputs(gpu, image):
    session = cml.Session(conv_net(layers=1), gpu)
    host = Host(gpu, budget_ms=5.0)
    before = held_bytes(gpu)
    for _ in range(5):
        job = host.scheduler.submit(session, {"x": image})
        host.until(lambda job=job: job.ended)
        del job
        host.scheduler.jobs.clear()
    assert gpu.memory.held_bytes == before


def test_job_reads_another_jobs_tensor_on_the_gpu(gpu, image):
    first, second = cml.Session(conv_net("one"), gpu), cml.Session(conv_net("two", seed=1), gpu)
    wanted = second.run({"x": first.run({"x": image})["y"]})["y"]
    host = Host(gpu, budget_ms=0.3)
    maker = host.scheduler.submit(first, {"x": image})
    taker = host.scheduler.submit(second, {"x": maker.output("y")})
    host.until(lambda: taker.ended and taker.read("y") is not None)
    np.testing.assert_array_equal(taker.read("y"), wanted)
    tensor = maker.tensor("y")
    assert tensor.fact == Fact("scalar", (1, 8, 24, 24)) and tensor.nbytes == 4 * 8 * 24 * 24


def test_jobs_of_one_session_have_separate_outputs(gpu, image):
    session = cml.Session(conv_net(), gpu)
    wanted = [session.run({"x": k * image})["y"] for k in (1, 2)]
    host = Host(gpu, budget_ms=0.3)
    jobs = [host.scheduler.submit(session, {"x": k * image}) for k in (1, 2)]
    host.until(lambda: all(j.ended and j.read("y") is not None for j in jobs))
    for job, want in zip(jobs, wanted, strict=True):
        np.testing.assert_array_equal(job.read("y"), want)


def test_cancelled_job_does_not_affect_other_jobs(gpu, image):
    one, two = cml.Session(conv_net("one"), gpu), cml.Session(conv_net("two", seed=1), gpu)
    wanted = two.run({"x": image})["y"]
    host = Host(gpu, budget_ms=0.1)
    gone, stays = (host.scheduler.submit(s, {"x": image}) for s in (one, two))
    host.frame()
    gone.cancel()
    again = host.scheduler.submit(one, {"x": image})
    host.until(lambda: stays.ended and again.ended and stays.read("y") is not None)
    np.testing.assert_array_equal(stays.read("y"), wanted)
    host.until(lambda: again.read("y") is not None)
    np.testing.assert_array_equal(again.read("y"), one.run({"x": image})["y"])


def test_a_deferred_session_prepares_itself_over_frames(gpu, image):
    graph = conv_net("deferred", seed=5)
    wanted = cml.Session(graph, gpu).run({"x": image})["y"]
    session = cml.Session(graph, gpu, deferred=True)
    host = Host(gpu, budget_ms=1.0)
    job = host.scheduler.submit(session, {"x": image})
    host.frame()
    assert host.reports[0].reason == "preparing"

    def arrived():
        time.sleep(0.001)
        return job.ended and job.read("y") is not None

    host.until(arrived, limit=20_000)
    np.testing.assert_array_equal(job.read("y"), wanted)


def test_job_runs_on_a_host_device_without_features(image):
    """A job runs correctly on a host's device without timestamps and with default limits."""
    from cml_engine.gpu.native import limit_instance

    limit_instance()
    adapter = wgpu.gpu.request_adapter_sync()
    device = adapter.request_device_sync()
    gpu = cml.Gpu(device=device)
    assert gpu.device is device and not gpu.has_timestamps
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    host = Host(gpu, budget_ms=1.0)
    job = host.scheduler.submit(session, {"x": image})
    host.until(lambda: job.ended and job.read("y") is not None)
    np.testing.assert_array_equal(job.read("y"), wanted)
    assert host.scheduler.executor.clock_source != "timestamps"


def test_wrong_inputs_are_refused_at_submit(gpu, image):
    session = cml.Session(conv_net(), gpu)
    scheduler = FrameScheduler(gpu, budget_ms=1.0)
    with pytest.raises(cml.InputError, match="is missing"):
        scheduler.submit(session, {})
    with pytest.raises(cml.InputError, match="wanted shape"):
        scheduler.submit(session, {"x": image[0]})
    with pytest.raises(cml.InputError, match="got a session on the CPU"):
        scheduler.submit(cml.Session(conv_net(), "cpu"), {"x": image})


def test_scheduler_continues_after_skipped_end_frame_or_encode(gpu, image):
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    host = Host(gpu, budget_ms=0.2)
    job = host.scheduler.submit(session, {"x": image})
    for turn in range(400):
        encoder = gpu.device.create_command_encoder()
        host.scheduler.encode(encoder)
        gpu.queue.submit([encoder.finish()])
        if turn % 3:
            host.scheduler.end_frame()
        if job.ended and job.read("y") is not None:
            break
    np.testing.assert_array_equal(job.read("y"), wanted)
