"""Tests on the virtual clock of jobs of a network that retains its inputs.

Such jobs run in the order of their submission and run only the steps whose inputs changed. Their
cost and their ETA count only these steps.
"""

import pytest

from cml_engine import FrameScheduler
from cml_engine.scheduler import VirtualClock
from cml_engine.scheduler.tools.replay import replay
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimStep
from tests.fixtures.frames.simulated import run_frames

X, Z, BOTH = frozenset({"x"}), frozenset({"z"}), frozenset({"x", "z"})


def network(**reuse):
    """Returns a network of three steps that retains its inputs; only the last one depends on ``z``.

    The first two steps are an encoder, the last one a decoder.
    """
    steps = [SimStep(f"s{i}", 10, 0.1, title=f"step {i}") for i in range(3)]
    made = SimNetwork("net", steps, retains=True)
    made.reuse = {BOTH: None, X: (0, 1, 2), Z: (2,), frozenset(): ()}
    return made


@pytest.fixture
def scheduler():
    return FrameScheduler(SimGpu(), budget_ms=2.0, clock=VirtualClock())


def titles(reports, job):
    return {part.title for report in reports for part in report.slices if part.job == job.number}


def given(*names):
    return dict.fromkeys(names, 0)


def test_retaining_job_runs_only_dependent_steps(scheduler):
    net = network()
    full, part, nothing = (
        scheduler.submit(net, inputs) for inputs in (given("x", "z"), given("z"), {})
    )
    reports = run_frames(scheduler, 60)
    assert [job.state for job in (full, part, nothing)] == ["done"] * 3
    assert titles(reports, full) == {"step 0", "step 1", "step 2"}
    assert titles(reports, part) == {"step 2"} and titles(reports, nothing) == set()
    assert full.ended_frame <= part.ended_frame <= nothing.ended_frame


def test_retaining_job_costs_only_its_steps(scheduler):
    net = network()
    scheduler.submit(net, given("x", "z"))
    run_frames(scheduler, 60)
    part, full = (scheduler.submit(network(), inputs) for inputs in (given("z"), given("x", "z")))
    assert abs(part.remaining_ms - full.remaining_ms / 3) < 0.01 * full.remaining_ms
    assert part.eta_ms < full.eta_ms


def test_jobs_of_a_retaining_session_run_in_submission_order(scheduler):
    net = network()
    jobs = [
        scheduler.submit(net, given("x", "z"), priority=0.5),
        scheduler.submit(net, given("z"), priority=5.0, deadline_ms=40),
        scheduler.submit(net, given("z"), priority=9.0),
    ]
    run_frames(scheduler, 60)
    frames = [job.ended_frame for job in jobs]
    assert None not in frames and frames == sorted(frames)


def test_retaining_job_waits_for_its_blocked_predecessor(scheduler):
    net, maker = network(), network()
    made = scheduler.submit(maker, given("x", "z"))
    first = scheduler.submit(net, {"x": made.output("out"), "z": 0})
    second = scheduler.submit(net, given("z"))
    run_frames(scheduler, 80)
    assert first.state == second.state == "done"
    assert first.ended_frame <= second.ended_frame


def test_retaining_job_determines_its_steps_when_it_starts(scheduler):
    recording = scheduler.record()
    net = network()
    first = scheduler.submit(net, given("x", "z"))
    second = scheduler.submit(net, given("z"))
    assert len(second.costs) == 1
    net.reuse[Z] = None  # its memory was evicted
    reports = run_frames(scheduler, 60)
    assert second.state == first.state == "done" and len(second.costs) == 3
    assert titles(reports, second) == {"step 0", "step 1", "step 2"}
    assert replay(recording) == recording.decisions
