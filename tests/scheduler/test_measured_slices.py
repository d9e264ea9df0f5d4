"""What each slice of a frame took, told when the frame's timings arrive."""

import pytest

from scheduler import CostModel, FrameScheduler, VirtualClock
from scheduler.tools.sim_device import SimGpu, SimNetwork, SimStep

STEPS = 10


def measured_frames(max_groups, clock_source="timestamps", frames=8):
    """Reports of a network of ten steps whose costs are 1 to 10 times 0.01 ms, all in one frame,
    on a device twice as slow as the model believes."""
    steps = [SimStep(f"k{i}", 10, 0.002 * (i + 1)) for i in range(STEPS)]
    model = CostModel()
    for step in steps:
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


def test_a_slice_that_is_timed_alone_has_its_own_time():
    report, measured = measured_frames(max_groups=STEPS)
    assert measured[0] is report
    wanted = [0.02 * (i + 1) for i in range(STEPS)]
    assert [part.measured_ms for part in report.slices] == pytest.approx(wanted)
    assert [part.predicted_ms for part in report.slices] == pytest.approx([ms / 2 for ms in wanted])


def test_a_group_is_shared_out_by_prediction():
    report, measured = measured_frames(max_groups=3)
    assert measured == [report]
    assert sum(part.measured_ms for part in report.slices) == pytest.approx(report.measured_ms)
    # every step is off by the same factor, so the shares of a group are the true times
    wanted = [0.02 * (i + 1) for i in range(STEPS)]
    assert [part.measured_ms for part in report.slices] == pytest.approx(wanted)


def test_until_the_timings_arrive_nothing_is_claimed():
    report, measured = measured_frames(max_groups=3, frames=2)
    assert measured == [] and {part.measured_ms for part in report.slices} == {None}


def test_without_timestamps_slices_are_not_timed():
    report, measured = measured_frames(max_groups=3, clock_source="wall clock")
    assert measured == [] and {part.measured_ms for part in report.slices} == {None}


def test_known_steps_are_timed_as_one_job_and_one_by_one_now_and_then():
    """Each timing costs the device time; but an operator that alone became slower must show."""
    steps = [SimStep(f"k{i}", 4, 0.02) for i in range(3)]
    gpu = SimGpu()
    groups = {}
    encode = gpu.encode

    def seen(encoder, frame, parts):
        groups[frame] = parts
        encode(encoder, frame, parts)

    gpu.encode = seen
    scheduler = FrameScheduler(gpu, budget_ms=8.0, clock=VirtualClock())
    nets = [SimNetwork("a", steps), SimNetwork("b", steps)]
    jobs = []
    for _ in range(80):
        if all(job.ended for job in jobs):
            jobs = [scheduler.submit(net, {}) for net in nets]
        assert scheduler.encode(None).jobs_apart
        scheduler.end_frame()
    sizes = [[len(group) for group in groups[frame]] for frame in range(80)]
    assert sizes[49:64] == [[3, 3]] * 15
    assert sizes[48] == sizes[64] == [1] * 6
