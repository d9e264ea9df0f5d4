"""Tests that outputs, sessions and inputs are released as soon as no job needs them."""

import gc
import weakref

import pytest

from cml_engine import FrameScheduler, InputError
from cml_engine.scheduler import AdmissionError, VirtualClock
from cml_engine.scheduler.tools.simulate import SimGpu, SimRun
from tests.fixtures.frames.simulated import FRAME, run_frame, run_frames, run_until_ended
from tests.fixtures.frames.simulated import network as any_network


def network(name, total_ms=2.0):
    return any_network(name, total_ms, steps=2, groups=50)


class Outputs(SimRun):
    """Outputs that their device records when they are released."""

    def __init__(self, device):
        self.device = device

    def release(self):
        self.device.released.append(self)


class Device(SimGpu):
    """A device that records the results and the inputs that the scheduler releases."""

    def __init__(self):
        super().__init__()
        self.released, self.let = [], []

    def finish_job(self, encoder, network):
        return Outputs(self)

    def release_input(self, value):
        self.let.append(value)


@pytest.fixture
def scheduler():
    return FrameScheduler(Device(), FRAME, 4.0, clock=VirtualClock())


@pytest.fixture
def maker(scheduler):
    """A job that is done."""
    job = scheduler.submit(network("m"), {})
    run_until_ended(scheduler, job)
    return job


def alive(refs):
    gc.collect()
    return sum(ref() is not None for ref in refs)


def test_recurrent_run_is_released_after_the_next_reads_it(scheduler):
    """A run of a recurrent network is released after the next run has read its state."""
    net, refs, last = network("n"), [], None
    for _ in range(20):
        last = scheduler.submit(net, {} if last is None else {"state": last.output("state")})
        run_until_ended(scheduler, last)
        refs += [weakref.ref(last), weakref.ref(last.result)]
    run_frames(scheduler, 2)
    assert alive(refs) == 2, "the last one and its outputs"
    assert last.inputs == {}


@pytest.mark.parametrize("end", ["stop", "error"])
def test_stopped_periodic_job_releases_its_session(scheduler, end):
    made = []

    def inputs():
        made.append(1)
        if end == "error" and len(made) > 3:
            raise KeyError("camera")
        return {}

    net = network("n")
    every = scheduler.submit_periodic(net, inputs, 2 * FRAME)
    run_frames(scheduler, 20)
    every.stop()
    run_frames(scheduler, 5)
    assert every.latest.state == "done"
    refs = [weakref.ref(net)]
    del net
    scheduler.last_report = None
    assert alive(refs) == 0 and scheduler._periodic == []
    jobs = [weakref.ref(every.latest)]
    del every
    assert alive(jobs) == 0


@pytest.mark.parametrize("late", ["fails", "is cancelled", "is refused"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_reader_submitted_after_release_cannot_use_the_outputs(scheduler, maker, late, elsewhere):
    """Outputs that the host released stay on the device until the queued job that needs them is
    done."""
    device, net = scheduler.executor, network("t")
    outputs = maker.result
    first = scheduler.submit(net, {"x": maker.output("y")})
    first.pause()
    maker.release()
    with pytest.raises(InputError, match="released"):
        maker.tensor("y")
    other = FrameScheduler(device, FRAME, 4.0, clock=VirtualClock()) if elsewhere else scheduler
    options = {"deadline_ms": 1e-6, "admission": "refuse"} if late == "is refused" else {}
    try:
        second = other.submit(net, {"x": maker.output("y")}, **options)
    except AdmissionError:
        assert late == "is refused"
    else:
        if late == "is cancelled":
            second.cancel()
        run_until_ended(other, second)
        assert late == "is cancelled" or "released" in second.error
    assert device.released == []
    first.resume()
    run_until_ended(scheduler, first)
    run_frame(scheduler)
    assert first.state == "done" and device.released == [outputs]


def test_a_long_chain_of_waiting_jobs_can_be_printed_cancelled_and_dropped(scheduler):
    def chain():
        jobs = [scheduler.submit(network("n"), {})]
        for _ in range(1500):  # more than Python's functions may be nested
            jobs.append(scheduler.submit(network("n"), {"x": jobs[-1].output("y")}))
        return jobs

    jobs = chain()
    assert "Job 1500" in repr(jobs[-1]) and jobs[-1].waiting_for and scheduler.describe()
    jobs[0].cancel()
    run_frame(scheduler)
    assert {job.state for job in jobs} == {"cancelled", "failed"} and scheduler.jobs == []
    jobs = chain()
    refs = [weakref.ref(job) for job in jobs]
    del jobs, scheduler.lifecycle.job_list
    assert alive(refs) == 0


@pytest.mark.parametrize("end", ["cancel", "fail", "done", "abandon", "refused"])
def test_inputs_are_released_for_every_end_of_a_job(scheduler, maker, end, monkeypatch):
    device = scheduler.executor
    outputs, device.let[:] = maker.result, []
    if end == "refused":
        with pytest.raises(AdmissionError, match="cannot hold"):
            scheduler.submit(network("t", 1000.0), {"x": maker.output("y"), "a": 1},
                             deadline_ms=1, admission="refuse")  # fmt: skip
    else:
        taker = scheduler.submit(network("t"), {"x": maker.output("y"), "a": 1})
        if end == "abandon":
            scheduler.encode(None)
            assert taker.inputs
            scheduler.abandon_frame()
            assert taker.inputs, "it starts again, and needs them"
        if end == "fail":
            monkeypatch.setattr(device, "begin_job", lambda *a: 1 / 0)
        if end == "cancel":
            taker.cancel()
        run_until_ended(scheduler, taker)
        run_frame(scheduler)
        assert taker.inputs == {}
    maker.release()
    assert device.let == [1] and device.released == [outputs]


@pytest.mark.parametrize("end", ["done", "cancel", "cancel in a frame", "abandoned"])
def test_ended_job_releases_its_network(scheduler, end):
    net = network("n")
    job = scheduler.submit(net, {})
    if end == "done":
        run_until_ended(scheduler, job)
    elif end == "cancel":
        job.cancel()
    else:
        scheduler.encode(None)
        job.cancel()
        (scheduler.abandon_frame if end == "abandoned" else scheduler.end_frame)()
    refs = [weakref.ref(net)]
    del net
    assert alive(refs) == 0 and job.progress in (0, 1) and job.waiting_for


def test_deleted_scheduler_is_freed_without_gc():
    """A scheduler without references is freed at once, without the garbage collector.

    The collector does not know how much device memory is in use.
    """
    scheduler = FrameScheduler(Device(), FRAME, 4.0, clock=VirtualClock())
    scheduler.record()
    run_until_ended(scheduler, scheduler.submit(network("n"), {}))
    run_frame(scheduler)
    gone = weakref.ref(scheduler.executor)
    gc.disable()
    try:
        del scheduler
        assert gone() is None
    finally:
        gc.enable()


def test_deleted_scheduler_is_freed_with_its_jobs():
    scheduler = FrameScheduler(Device(), FRAME, 4.0, clock=VirtualClock())
    net = network("n", 100.0)
    jobs = [scheduler.submit(net, {}) for _ in range(3)]
    run_frames(scheduler, 3)
    refs = [weakref.ref(scheduler), *(weakref.ref(job) for job in jobs)]
    del scheduler, jobs
    assert alive(refs) == 0
