"""Tests of the planner that runs a fixed number of whole operators per frame, for comparison."""

from cml_engine import FrameScheduler, VirtualClock
from scheduler.planning.plan import plan_frame
from scheduler.tools.operators_per_frame import operators_per_frame
from scheduler.tools.sim_device import SimGpu, SimNetwork, SimStep

STEPS = 7


def frames_of(operators):
    """Returns the slices of each frame until a job of seven operators of 10 ms is done."""
    net = SimNetwork("net", [SimStep(f"step {i}", 100, 0.1) for i in range(STEPS)])
    scheduler = FrameScheduler(SimGpu(), budget_ms=2.0, clock=VirtualClock())
    scheduler.planner = plan_frame if operators is None else operators_per_frame(operators)
    job = scheduler.submit(net, {})
    frames = []
    while not job.ended:
        report = scheduler.encode(None)
        frames.append([(part.step, part.first, part.count) for part in report.slices])
        scheduler.end_frame()
        assert len(frames) < 1000
    return frames


def test_one_whole_operator_in_each_frame():
    assert frames_of(1) == [[(step, 0, 100)] for step in range(STEPS)]


def test_the_whole_network_in_one_frame():
    assert frames_of(1_000_000) == [[(step, 0, 100) for step in range(STEPS)]]


def test_ours_cuts_them():
    assert max(count for frame in frames_of(None) for _, _, count in frame) < 100
