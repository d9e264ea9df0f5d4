"""Tests of three ways to learn that a job has ended: await, callbacks, and wait."""

import asyncio
import gc
import threading
import time
from concurrent.futures import CancelledError

import pytest

from cml_engine import CmlError, FrameScheduler, InputError
from cml_engine.scheduler import VirtualClock
from cml_engine.scheduler.tools.simulate import SimGpu, SimRun
from tests.fixtures.frames.simulated import FRAME, network, run_frame, run_until_ended
from tests.fixtures.threads import together


class SlowOutputs(SimRun):
    """Outputs that can be read three frames after the request."""

    def __init__(self, device):
        self.device, self.requested_frame = device, float("inf")

    @property
    def has_arrived(self):
        return self.device.frame >= self.requested_frame + 3

    def read(self, name):
        return name if self.has_arrived else None


class SlowReadback(SimGpu):
    """A device with :class:`SlowOutputs`."""

    frame = 0

    def finish_job(self, encoder, network):
        return SlowOutputs(self)

    def request_read(self, encoder, result):
        result.requested_frame = self.frame

    def end_frame(self, frame):
        self.frame = frame + 1
        return super().end_frame(frame)


@pytest.fixture
def scheduler():
    return FrameScheduler(SlowReadback(), FRAME, 4.0, clock=VirtualClock())


@pytest.fixture
def job(scheduler):
    return scheduler.submit(network(), {})


def doom(scheduler, job, how):
    """Makes the job end as ``how`` says: ``"done"``, ``"cancelled"`` or ``"failed"``.

    A failed job has the error ``ValueError("broken")`` from the device.
    """
    if how == "cancelled":
        job.cancel()
    elif how == "failed":
        scheduler.executor.encode = lambda *args, **kw: [(job.network, ValueError("broken"))]


ENDS = {"done": None, "cancelled": CancelledError, "failed": ValueError}


@pytest.mark.parametrize("how", ENDS)
def test_a_callback_is_called_once_in_end_frame(scheduler, job, how):
    called = []
    job.add_done_callback(lambda ended: called.append((ended, ended.state)))
    doom(scheduler, job, how)
    run_until_ended(scheduler, job)
    if how == "cancelled":
        run_frame(scheduler)
    assert called == [(job, how)]
    for _ in range(3):
        run_frame(scheduler)
    assert len(called) == 1
    job.add_done_callback(lambda ended: called.append(ended))
    assert called[1:] == [job], "it ended in an earlier frame"


def test_a_callback_waits_for_the_end_of_the_frame_and_is_not_called_if_it_is_abandoned(scheduler):
    job, called = scheduler.submit(network(total_ms=1.0), {}), []
    job.add_done_callback(called.append)
    for _ in range(100):
        scheduler.encode(None)
        if job.state == "done":
            break
        scheduler.end_frame()
    assert called == []
    scheduler.abandon_frame()
    assert called == [] and job.state == "running"
    run_until_ended(scheduler, job)
    assert called == [job]


def test_a_callback_that_raises_stops_neither_the_frame_nor_others(scheduler, job, caplog):
    called = []
    job.add_done_callback(lambda job: 1 / 0)
    job.add_done_callback(called.append)
    run_until_ended(scheduler, job)
    assert called == [job] and "callback" in caplog.text
    assert "ZeroDivisionError" in scheduler.describe()


def test_a_callback_may_submit_the_next_job(scheduler):
    ended = []

    def again(job):
        ended.append(job)
        if len(ended) < 3:
            scheduler.submit(network(), {}).add_done_callback(again)

    scheduler.submit(network(), {}).add_done_callback(again)
    for _ in range(60):
        run_frame(scheduler)
    assert len(ended) == 3 and scheduler.jobs == []


def test_requested_arrays_have_arrived_in_callbacks(scheduler):
    seen = []
    first = scheduler.submit(network("a"), {}, read=True)
    second = scheduler.submit(network("b"), {})
    second.read("out")
    for job in (first, second):
        job.add_done_callback(lambda job: seen.append(job.read("out")))
    for _ in range(60):
        run_frame(scheduler)
    assert seen == ["out", "out"]
    released = scheduler.submit(network("c"), {}, read=True)
    run_until_ended(scheduler, released)
    released.release()
    run_frame(scheduler)
    assert released.callbacks is None, "outputs that were released do not arrive"


def frames_beside(scheduler):
    """Returns a running thread that runs frames, and a function that ends it."""
    stop = threading.Event()

    def run_frames():
        while not stop.is_set():
            run_frame(scheduler)
            time.sleep(0.001)

    thread = threading.Thread(target=run_frames)
    thread.start()
    return thread, lambda: (stop.set(), thread.join())


@pytest.mark.parametrize("how", ENDS)
def test_await_resolves_or_raises(scheduler, job, how):
    async def main():
        return await asyncio.wait_for(job, 30)

    doom(scheduler, job, how)
    _, stop = frames_beside(scheduler)
    try:
        if ENDS[how] is None:
            assert asyncio.run(main()).state == "done"
        else:
            with pytest.raises(ENDS[how]):
                asyncio.run(main())
    finally:
        stop()


def test_a_game_whose_frames_are_an_asyncio_task_awaits_jobs_beside_them(scheduler):
    async def frames():
        while True:
            run_frame(scheduler)
            await asyncio.sleep(0)

    async def main():
        game = asyncio.create_task(frames())
        jobs = await asyncio.gather(*(scheduler.submit(network(str(i)), {}) for i in range(3)))
        game.cancel()
        return [job.state for job in jobs]

    assert asyncio.run(main()) == ["done"] * 3


def test_a_cancelled_waiter_does_not_cancel_the_job(scheduler, job):
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.01)

    asyncio.run(main())
    run_until_ended(scheduler, job)
    assert job.state == "done"


@pytest.mark.parametrize("how", ENDS)
def test_wait_runs_frames_itself(scheduler, how):
    job = scheduler.submit(network(), {}, read=True)
    doom(scheduler, job, how)
    if ENDS[how] is None:
        assert job.wait(30).read("out") == "out"
    else:
        with pytest.raises(ENDS[how]):
            job.wait(30)


def test_awaiting_a_job_with_failed_input_raises_the_reason(scheduler):
    first = scheduler.submit(network("first"), {})
    second = scheduler.submit(network("second"), {"x": first.output("out")})
    first.cancel()
    with pytest.raises(CmlError, match="'second' failed: its input's job 'first' cancelled"):
        second.wait(30)


def test_wait_leaves_the_frames_to_the_thread_that_runs_them(scheduler):
    threads, encode = set(), scheduler.executor.encode
    scheduler.executor.encode = lambda *a, **k: (
        threads.add(threading.get_ident()) or encode(*a, **k)
    )
    thread, stop = frames_beside(scheduler)
    try:
        while scheduler.frame < 3:
            time.sleep(0.001)
        assert scheduler.submit(network(), {}).wait(30).state == "done"
        assert threads == {thread.ident}
    finally:
        stop()
    assert scheduler.submit(network(), {}).wait(30).state == "done", "that thread has ended"


def test_wait_inside_a_frame_raises(scheduler, job):
    scheduler.encode(None)
    with pytest.raises(InputError, match="between encode\\(\\) and end_frame\\(\\)"):
        job.wait()
    scheduler.end_frame()
    job.pause()
    with pytest.raises(InputError, match="paused"):
        job.wait()
    job.resume()
    scheduler.budget.ms = 0.0
    with pytest.raises(TimeoutError, match="has not ended within 0.02 s: running"):
        job.wait(0.02)
    for value in (-1, "1", float("nan")):
        with pytest.raises(InputError, match="timeout"):
            job.wait(value)
    with pytest.raises(InputError, match="callback"):
        job.add_done_callback(None)


PAUSED = {
    "the job": lambda scheduler, first: first,
    "its input's job": lambda scheduler, first: scheduler.submit(
        network("n"), {"x": scheduler.submit(network("m"), {"x": first.output("y")}).output("y")}
    ),
    "the job that has its memory": lambda scheduler, first: scheduler.submit(first.network, {}),
}


@pytest.mark.parametrize("what", PAUSED)
def test_wait_names_the_paused_job_that_it_would_wait_for_forever(scheduler, what):
    first = scheduler.submit(network("first"), {})
    run_frame(scheduler)
    assert first.state == "running"
    job = PAUSED[what](scheduler, first)
    first.pause()
    with pytest.raises(InputError, match="job 'first' is paused and will not end"):
        job.wait(30)
    first.resume()
    assert job.wait(30).state == "done"


def test_threads_wait_at_once_and_after_a_thread_that_has_waited(scheduler):
    first, done = threading.Event(), threading.Event()

    def wait_and_stay():
        scheduler.submit(network("first"), {}).wait(30)
        first.set()
        assert done.wait(60)

    thread = threading.Thread(target=wait_and_stay, daemon=True)
    thread.start()
    assert first.wait(60)
    jobs = [scheduler.submit(network(f"n{i}"), {}) for i in range(3)]
    try:
        assert [job.state for job in together(*(job.wait for job in jobs))] == ["done"] * 3
    finally:
        done.set()
        thread.join()


def test_a_loop_may_begin_while_another_thread_waits(scheduler, job):
    reports = []
    loop = threading.Thread(target=lambda: reports.append(scheduler.encode(None)))
    submit = scheduler.executor.submit

    def begin_loop(encoder):
        scheduler.executor.submit = submit
        loop.start()
        loop.join(0.1)

    scheduler.executor.submit = begin_loop
    scheduler.lifecycle._drive(job)
    loop.join()
    assert reports[0].slices and scheduler.frame == 1
    scheduler.end_frame()
    assert job.wait(30).state == "done"


def test_waiting_again_and_again_keeps_nothing(scheduler, job):
    scheduler.budget.ms = 0.0
    for _ in range(3):
        with pytest.raises(TimeoutError):
            job.wait(0)
    assert job.callbacks == []


def test_wait_on_a_deleted_scheduler_raises():
    job = FrameScheduler(SimGpu(), clock=VirtualClock()).submit(network(), {})
    gc.collect()
    with pytest.raises(InputError, match="no longer exists"):
        job.wait()
