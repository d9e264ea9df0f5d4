"""Tests on the virtual clock of hosts and devices that misbehave."""

import threading
from functools import partial

import pytest

from cml_engine import FrameScheduler, InputError
from cml_engine.scheduler import VirtualClock
from cml_engine.scheduler.frame_scheduler import _LOOK_EVERY
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimRun
from tests.fixtures.frames.simulated import (
    FRAME,
    RecordingGpu,
    network,
    run_frame,
    run_frames,
    run_until_ended,
    scheduler_on,
)
from tests.fixtures.frames.turns import turns


class Device(RecordingGpu):
    """A device that records the slices of submitted frames and the requested outputs.

    ``reserved`` has the networks whose job was reserved and has not begun.
    """

    def __init__(self):
        super().__init__()
        self.requested, self.reserved = [], set()

    def reserve(self, network, inputs):
        self.reserved.add(network.name)
        return super().reserve(network, inputs)

    def begin_job(self, encoder, network, inputs):
        self.reserved.discard(network.name)
        return super().begin_job(encoder, network, inputs)

    def request_read(self, encoder, result):
        self.requested.append(result)


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def scheduler(device):
    return scheduler_on(device, *map(network, "ab"))


def whole(ran, name):
    """Returns True if each of the network's 4 steps ran all 100 workgroups in order.

    Fails the test if one ran twice or out of order.
    """
    step = first = 0
    for part in ran:
        if part.network.name == name:
            assert (part.step, part.first) == (step, first)
            first += part.count
            if first == 100:
                step, first = step + 1, 0
    return (step, first) == (4, 0)


def test_abandoned_frames_are_encoded_again(scheduler, device):
    job, other = scheduler.submit(network("a"), {}), scheduler.submit(network("b"), {})
    for turn in range(200):
        if turn % 3 == 1:
            scheduler.encode(None)
            scheduler.abandon_frame()
        else:
            run_frame(scheduler)
    assert (job.state, other.state) == ("done", "done")
    assert whole(device.ran, "a") and whole(device.ran, "b")


def test_a_host_whose_frame_rate_changes_keeps_the_budget(scheduler, device):
    spent = []
    for turn in range(600):
        if not scheduler.jobs or scheduler.jobs[-1].ended:
            scheduler.submit(network("a"), {})
        run_frame(scheduler, (FRAME, 2 * FRAME, 500.0, 1.0)[turn // 50 % 4])
        spent.append(device.frame_ms)
    assert max(spent) <= 4.0 and sum(spent) > 0.8 * 4.0 * len(spent)


def meanwhile(work, seconds=0.1):
    """Runs ``work`` in another thread, waits at most ``seconds`` for it, and returns the thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return thread


def test_threads_submit_and_cancel_while_frames_run(scheduler, device):
    jobs, stop = [], threading.Event()

    def work(net):
        while not stop.is_set():
            job = scheduler.submit(net, {})
            jobs.append(job)
            if job.number % 2:
                job.cancel()
            stop.wait(0.0005)

    threads = [meanwhile(partial(work, network(name, 2.0)), 0.0) for name in "ab"]
    for _ in turns():
        run_frame(scheduler)
        if len(jobs) > 40:
            break
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    run_until_ended(scheduler, *jobs)
    assert {job.state for job in jobs} == {"done", "cancelled"}
    assert len({job.number for job in jobs}) == len(jobs)


def test_outputs_requested_as_they_arrive_are_returned(scheduler, monkeypatch):
    job = scheduler.submit(network("a", 2.0), {})
    ended, threads = Job.ended, []

    def looked_at(self):
        found = ended.fget(self)
        if not threads:  # the job ends between this read and its use
            threads.append(threading.current_thread())
            threads.append(meanwhile(lambda: [run_frame(scheduler) for _ in range(30)]))
        return found

    monkeypatch.setattr(Job, "ended", property(looked_at))
    assert job.read("out") is None
    threads[1].join(10)
    job.read("out")
    run_frame(scheduler)
    assert job.read("out") == "out"
    assert len(scheduler.executor.requested) == 1


def test_waiting_for_is_safe_while_jobs_change(scheduler):
    class Watched(SimNetwork):
        """A network that cancels the ``leaving`` job when its exclusive group is read."""

        leaving = None

        def _group(self):
            if self.leaving is not None:
                meanwhile(self.leaving.cancel)
            return self.name

        exclusive_group = property(_group, lambda self, group: None)

    nets = [Watched(name, network(name).steps) for name in "ab"]
    first, second = (scheduler.submit(net, {}, priority=9.0) for net in nets)
    leaving = scheduler.submit(network("c"), {}, priority=9.0)
    waiting = scheduler.submit(nets[1], {})
    for _ in range(200):
        if "queued" not in (first.state, second.state, leaving.state):
            break
        run_frame(scheduler)
    nets[0].leaving = leaving
    assert "has its network's memory" in waiting.waiting_for


def test_a_periodic_job_is_stopped_while_a_frame_makes_its_run(scheduler):
    every = scheduler.submit_periodic(network("a", 2.0), dict, FRAME)

    class Stopping(float):
        """A period that stops the periodic job while the scheduler counts the missed runs."""

        def __rfloordiv__(self, ms):
            meanwhile(every.stop)
            return ms // float(self)

    every.period_ms = Stopping(FRAME)
    run_frame(scheduler)
    assert every.stopped and not every.error


# --- an error of one job must not reach the host's frame


class Planted(Exception):
    """The error that these tests plant."""


def raising(*args, **kwargs):
    raise Planted("planted")


class BrokenNetwork(SimNetwork):
    """A network that fails in the stage named by ``broken``; its ``prepare`` always fails."""

    broken = ""

    @property
    def ready(self):
        return self.broken != "prepare" if self.broken != "ready" else raising()

    @ready.setter
    def ready(self, value): ...

    def prepare(self, budget_ms):
        raising()


#: stages whose error fails the job, and stages whose error the scheduler only reports
FAILS = ["ready", "prepare", "reserve", "begin_job", "tensor", "encode", "one slice", "finish_job"]
NOTES = ["end_job", "end_frame", "take_losses", "release_input"]


def plant(device, stage, bad, monkeypatch):
    """Makes the device or the network ``bad`` raise :class:`Planted` in ``stage``.

    Where the device knows the network, it fails for ``bad`` alone.
    """
    bad.broken = stage
    if stage == "one slice":

        def refuses_some(encoder, frame, groups, **how):
            Device.encode(device, encoder, frame, groups, **how)
            found = [part.network for group in groups for part in group]
            return [(bad, Planted("planted"))] if bad in found else None

        monkeypatch.setattr(device, "encode", refuses_some)
    elif stage == "tensor":
        monkeypatch.setattr(SimRun, "tensor", lambda self, name: raising())
    elif stage not in ("ready", "prepare"):
        usual = getattr(device, stage)

        def selective(*args, **how):
            groups = args[2] if stage == "encode" else []
            about = [part.network for group in groups for part in group] or args
            everyone = stage in ("request_read", *NOTES)
            return raising() if everyone or bad in about else usual(*args, **how)

        monkeypatch.setattr(device, stage, selective)


@pytest.mark.parametrize("stage", [*FAILS, *NOTES, "request_read"])
def test_error_while_starting_a_job_fails_only_that_job(scheduler, device, stage, monkeypatch):
    plain = network("a", 8.0)
    broken = BrokenNetwork("b", plain.steps)
    maker = scheduler.submit(network("m", 1.0), {})
    run_until_ended(scheduler, maker)
    plant(device, stage, broken, monkeypatch)
    scheduler.budget.ms = 400.0  # both jobs are in one frame
    inputs = {"x": maker.output("y")} if stage == "tensor" else {"x": 3}
    # the deadline gives it frames before those of the other job
    bad = scheduler.submit(broken, inputs, deadline_ms=200)
    bad.wants_read = stage == "request_read"
    good = scheduler.submit(plain, {})
    for _ in range(60):
        run_frame(scheduler)
        if stage == "encode" and good.state == "failed":  # all jobs of the refused frame fail
            good = scheduler.submit(plain, {})
    assert good.state == "done" and scheduler.jobs == []
    # begin_job itself ends a reservation if it raises
    assert stage == "begin_job" or not device.reserved
    if stage in FAILS:
        assert (bad.state, bad.error) == ("failed", "planted")
    elif stage in NOTES:
        assert bad.state == "done" and "planted" in scheduler.describe()
    else:
        assert bad.state == "done" and "planted" in bad.waiting_for
        with pytest.raises(Planted):
            bad.read("y")


def test_a_lost_device_fails_all_at_once(scheduler, device):
    jobs = [scheduler.submit(network(name), {}) for name in "abc" for _ in range(5)]
    run_frame(scheduler)
    device.check = raising
    device.encode = raising
    report = scheduler.encode(None)
    scheduler.end_frame()
    assert report.reason == "device error"
    assert {job.state for job in jobs} == {"failed"} and scheduler.jobs == []


def test_a_lost_device_fails_jobs_that_get_no_time(scheduler, device):
    job = scheduler.submit(network("a"), {})
    scheduler.budget.ms = 0.0
    device.check = raising
    run_frames(scheduler, _LOOK_EVERY + 1)
    assert job.state == "failed"


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_output_of_another_scheduler_exists_once_its_frame_is_submitted(scheduler, is_abandoned):
    net = network("maker", 2.0)
    other = scheduler_on(Device(), net, budget_ms=100.0)
    maker = other.submit(net, {})
    job = scheduler.submit(network("a", 2.0), {"x": maker.output("y")})
    other.encode(None)
    assert maker.state == "done"
    run_frames(scheduler, 3)
    assert job.state == "queued" and "the outputs of 'maker' (job 0, done)" in job.waiting_for
    (other.abandon_frame if is_abandoned else other.end_frame)()
    if is_abandoned:
        run_frames(scheduler, 3)
        assert job.state == "queued"
        run_until_ended(other, maker)
    run_until_ended(scheduler, job)
    assert job.state == "done"


def test_jobs_wait_again_if_the_frame_of_their_input_is_abandoned(scheduler, device):
    scheduler.budget.ms = 100.0
    maker = scheduler.submit(network("a", 2.0), {})
    before = scheduler.submit(network("b", 2.0), {"x": maker.output("y")})
    scheduler.encode(None)
    assert maker.state == "done"
    after = scheduler.submit(network("c", 2.0), {"x": maker.output("y")})
    scheduler.abandon_frame()
    assert maker.state == "queued"
    assert "'a'" in before.waiting_for and "'a'" in after.waiting_for
    run_frames(scheduler, 20)
    assert [job.state for job in (maker, before, after)] == ["done"] * 3


def test_networks_that_are_not_ready_share_the_budget_of_a_frame(scheduler):
    given = []

    class Unready(SimNetwork):
        def prepare(self, budget_ms):
            given.append(budget_ms)

    nets = [Unready(name, network(name).steps, ready=False) for name in "abcd"]
    for net in nets:
        scheduler.submit(net, {})
    report = scheduler.encode(None)
    assert report.reason == "preparing" and sum(given) == pytest.approx(report.budget_ms)


@pytest.mark.parametrize("look", range(1, 5))
def test_error_in_ready_fails_only_the_networks_jobs(scheduler, look):
    """An error in any of a frame's reads of ``ready`` fails only the jobs of that network."""

    class Wavering(SimNetwork):
        looks = 0

        @property
        def ready(self):
            self.looks += 1
            return raising() if self.looks == look else True

        @ready.setter
        def ready(self, value): ...

    bad = scheduler.submit(Wavering("a", network("a", 2.0).steps), {}, deadline_ms=400)
    good = scheduler.submit(network("b", 2.0), {})
    # preparing one network may evict others, so the scheduler reads their `ready` again
    scheduler.submit(SimNetwork("c", network("c", 2.0).steps, ready=False, prepare_frames=1), {})
    run_frames(scheduler, 60)
    assert good.state == "done"
    assert bad.state == "done" if look > 3 else (bad.state, bad.error) == ("failed", "planted")


@pytest.mark.parametrize("broken", ["load_times_ms", "step_costs"])
def test_error_in_step_costs_releases_inputs(scheduler, device, broken, monkeypatch):
    net, accepted, released = network("a"), [], []
    device.accept = lambda network, inputs: accepted.append(1) or (dict(inputs), ())
    device.release_input = released.append
    monkeypatch.setattr(SimNetwork, broken, property(raising), raising=False)
    with pytest.raises(Planted):
        scheduler.submit(net, {"x": 3})
    assert len(released) == len(accepted) and scheduler.jobs == []


def test_host_that_omits_end_frame_is_warned_and_recovers(scheduler):
    job = scheduler.submit(network("a", 2.0), {})
    assert scheduler.encode(None).slices
    with pytest.warns(RuntimeWarning, match="without end_frame"):
        for _ in range(40):
            again = scheduler.encode(None)
            assert again.reason == "frame not ended" and not again.slices
            assert "the last frame stopped at: frame not ended" in scheduler.describe()
            scheduler.frame_took(5.0)
            scheduler.render_took(5.0)
    scheduler.end_frame()
    run_frames(scheduler, 20)
    assert job.state == "done"


def test_host_that_omits_encode_is_warned_only_while_a_job_waits(scheduler):
    for _ in range(40):
        scheduler.end_frame()
    job = scheduler.submit(network("a", 2.0), {})
    job.pause()
    for _ in range(40):
        scheduler.end_frame()
    job.resume()
    with pytest.warns(RuntimeWarning, match="without encode") as caught:
        for _ in range(40):
            scheduler.end_frame()
    assert len(caught) == 1
    run_frames(scheduler, 20)
    assert job.state == "done"


@pytest.mark.parametrize("state", ["queued", "running", "cancelled", "failed"])
def test_output_of_a_job_that_is_not_done_is_refused_with_its_state(state, scheduler):
    job = scheduler.submit(network("a", 30.0), {})
    if state != "queued":
        run_frames(scheduler, 1)
    if state in ("cancelled", "failed"):
        scheduler.lifecycle.end(job, state, "why it ended" if state == "failed" else "")
    message = {"failed": "'failed': why it ended", "cancelled": "'cancelled'"}.get(
        state, f"'{state}'; it exists once that is 'done'"
    )
    with pytest.raises(InputError) as caught:
        job.tensor("y")
    assert str(caught.value).endswith(
        f"'y' of job 'a' does not exist: the job's state is {message}"
    )
    assert repr(job) == f"<Job 0 'a', {state}>"


def test_frame_times_without_a_frame_are_ignored():
    """Only the first frame time after an ended frame changes the budget.

    Times before the first frame, after an abandoned one and second ones have no effect.
    """
    scheduler = FrameScheduler(SimGpu(), FRAME, clock=VirtualClock())
    for _ in range(5):
        scheduler.frame_took(900.0)
    for turn in range(100):
        scheduler.encode(None)
        if turn % 3:
            scheduler.end_frame()
            scheduler.frame_took(8.0)
            scheduler.frame_took(900.0)
        else:
            scheduler.abandon_frame()
    report = scheduler.encode(None)
    assert report.budget_ms == pytest.approx(FRAME - 8.0)
    assert report.aim_ms == pytest.approx(FRAME - 8.0, rel=0.15)
