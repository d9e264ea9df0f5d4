"""Tests of the measured time of each slice, which is known after the frame's timestamps are
read."""

import pytest

from cml_engine import FrameScheduler
from cml_engine.scheduler import CostModel, VirtualClock
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimStep

STEPS, FRAME_MS = 10, 1000 / 60


def measured_frames(max_groups, clock_source="timestamps", frames=8):
    """Runs a network that fits in one frame; returns the first frame's report and all measured
    reports.

    Its ten steps cost 1 to 10 times 0.02 ms, on a device twice as slow as the cost model believes.
    """
    steps = [SimStep(f"k{i}", 10, 0.002 * (i + 1)) for i in range(STEPS)]
    model = CostModel()
    for step in 3 * steps:
        model.learn([(step, step.groups)], 0.5 * step.groups * step.ms_per_group)
    gpu = SimGpu(max_groups=max_groups, clock_source=clock_source)
    scheduler = FrameScheduler(gpu, budget_ms=8.0, clock=VirtualClock(), cost_model=model)
    scheduler.submit(SimNetwork("net", steps), {})
    encoded, measured = [], []
    for _ in range(frames):
        encoded.append(scheduler.encode(None))
        measured += scheduler.end_frame()
    assert len(encoded[0].slices) == STEPS
    return encoded[0], measured


@pytest.mark.parametrize(("max_groups", "timed"), [(STEPS, STEPS), (5, 2), (1, 0)])
def test_slices_have_times_of_their_own_or_none(max_groups, timed):
    """The time of a group of slices is never divided among them."""
    report, measured = measured_frames(max_groups)
    assert measured == [report]
    expected = [0.02 * (i + 1) for i in range(STEPS)]
    assert report.measured_ms == pytest.approx(sum(expected))
    assert [part.predicted_ms for part in report.slices] == pytest.approx(
        [ms / 2 for ms in expected]
    )
    own = {i: part.measured_ms for i, part in enumerate(report.slices) if part.measured_ms}
    assert own == pytest.approx({i: expected[i] for i in own}) and len(own) == timed
    groups = [(time.first, time.first + time.count, time.ms) for time in report.group_times]
    assert [end for _, end, _ in groups] == [*(first for first, _, _ in groups[1:]), STEPS]
    for first, end, ms in groups:
        assert ms == pytest.approx(sum(expected[first:end]))


@pytest.mark.parametrize("how", [{"frames": 2}, {"clock_source": "wall clock"}])
def test_slices_have_no_time_before_or_without_timestamps(how):
    report, measured = measured_frames(max_groups=5, **how)
    assert measured == [] and {part.measured_ms for part in report.slices} == {None}


def test_known_steps_are_timed_as_one_job_and_one_by_one_now_and_then():
    """Known steps share one timing per job, except in every 16th frame, which times each step.

    Each timing costs device time, but only single ones show that one operator became slower.
    """
    steps = [SimStep(f"k{i}", 4, 0.02) for i in range(3)]
    gpu = SimGpu()
    groups = {}
    encode = gpu.encode

    def seen(encoder, frame, parts, **how):
        groups[frame] = parts
        encode(encoder, frame, parts, **how)

    gpu.encode = seen
    scheduler = FrameScheduler(gpu, budget_ms=8.0, clock=VirtualClock())
    nets = [SimNetwork("a", steps), SimNetwork("b", steps)]
    jobs = []
    for _ in range(80):
        if all(job.ended for job in jobs):
            jobs = [scheduler.submit(net, {}) for net in nets]
        scheduler.encode(None)
        scheduler.end_frame()
    sizes = [[len(group) for group in groups[frame]] for frame in range(80)]
    assert sizes[49:64] == [[3, 3]] * 15
    assert sizes[48] == sizes[64] == [1] * 6


def timed_frames(dear=True, budget_ms="spare", told=True, times_all=False, frames=400):
    """Returns a pair per frame: True if the costs of all of its steps were known, and True if it
    was timed.

    A second network joins in frame 100. ``dear`` makes timing expensive; with ``told`` the
    scheduler learns whole frame times.
    """
    gpu, clock = SimGpu(), VirtualClock(5.0)
    gpu.timing_is_expensive = dear
    scheduler = FrameScheduler(gpu, budget_ms=budget_ms, clock=clock)
    scheduler.times_all = times_all
    nets = [SimNetwork(n, [SimStep(f"{n}{i}", 4, 0.1) for i in range(3)]) for n in "ab"]
    jobs, found = {}, []
    for frame in range(frames):
        for net in nets[: 1 + (frame >= 100)]:
            if net.name not in jobs or jobs[net.name].ended:
                jobs[net.name] = scheduler.submit(net, {})
        report = scheduler.encode(None)
        assert report.slices
        found.append((all(part.settled for part in report.slices), report.timed))
        clock.advance(FRAME_MS)
        for done in scheduler.end_frame():
            assert found[done.frame][1] and done.measured_ms > 0
        if told:
            scheduler.frame_took(9.0 + gpu.frame_ms)
    return found


@pytest.mark.parametrize("how", [{}, {"budget_ms": 4.0}, {"told": False}])
def test_expensive_timestamps_are_taken_in_one_of_sixteen_frames(how):
    """Every frame with unknown steps is timed, and one in sixteen of the others."""
    found = timed_frames(**how)
    begun = [timed for _, timed in found].index(False)
    assert begun <= 32, "the steps are learned, and enough whole frames"
    for frame, (known, timed) in enumerate(found):
        assert timed == (frame < begun or not known or frame % 16 == 0)
    assert not all(known for known, _ in found[100:]) and all(known for known, _ in found[380:])


@pytest.mark.parametrize("how", [{"dear": False}, {"times_all": True}])
def test_else_all_frames_are_timed(how):
    assert all(timed for _, timed in timed_frames(**how))
