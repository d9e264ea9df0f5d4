"""Tests that a frame's plan depends on its state alone, and on every part of that state."""

import json
from dataclasses import replace

import pytest

from cml_engine import FrameScheduler
from cml_engine.scheduler import CostModel, VirtualClock, least_laxity, plan_frame
from cml_engine.scheduler.planning.plan import FramePlan
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimStep
from tests.scheduler.test_queues import POLICIES, random_host


def plans_of(monkeypatch, look, policy=least_laxity):
    """Runs random host actions; returns what ``look(state, plan)`` found in each frame."""
    found = []

    def watched(state):
        plan = plan_frame(state)
        found.append(look(state, plan))
        return plan

    monkeypatch.setattr("cml_engine.scheduler.frame_scheduler.plan_frame", watched)
    random_host(policy, 3, frames=120)
    return found


def numbers_of(state):
    jobs = [(job.number, job.step, job.group, job.state, job.virtual_ms) for job in state.jobs]
    return jobs, json.dumps(state.costs.to_json())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_planning_changes_nothing_and_decides_the_same_again(policy, monkeypatch):
    def look(state, plan):
        before = numbers_of(state)
        assert plan_frame(state) == plan and numbers_of(state) == before
        costs = CostModel.from_json(json.loads(json.dumps(state.costs.to_json())))
        assert plan_frame(replace(state, costs=costs)) == plan
        return len(plan.slices)

    assert sum(plans_of(monkeypatch, look, policy)) > 150


CHANGES = {
    "costs": lambda state: {"costs": CostModel()},
    "aim_ms": lambda state: {"aim_ms": 0.5},
    "now_ms": lambda state: {"now_ms": state.now_ms + 1e4},
    "jobs": lambda state: {"jobs": state.jobs[1:]},
    "granule": lambda state: {"granule": 8},
}


@pytest.mark.parametrize("part", CHANGES)
def test_every_part_of_a_state_affects_decisions(part, monkeypatch):
    """A change to any of five parts of a state changes the plans of several frames."""

    def look(state, plan):
        return plan_frame(replace(state, **CHANGES[part](state))) != plan

    assert sum(plans_of(monkeypatch, look)) > 3


def test_a_frame_has_one_slice_of_a_step(monkeypatch):
    """A slice includes the workgroups that still fit behind a cut at the end of a granule."""

    def look(state, _):
        slices = plan_frame(replace(state, granule=3)).slices
        assert len({(part.job.number, part.step) for part in slices}) == len(slices)
        return sum(part.first + part.count < part.cost.groups for part in slices)

    assert sum(plans_of(monkeypatch, look)) > 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"budget_ms": 0}, "budget"), ({"budget_ms": 4.0, "gpu_behind": True}, "waiting for GPU")],
)
def test_no_slices_without_budget_or_while_gpu_is_behind(monkeypatch, change, reason):
    found = plans_of(monkeypatch, lambda state, _: plan_frame(replace(state, **change)))
    assert set(map(str, found)) == {str(FramePlan((), (), reason))}


@pytest.mark.shipped_guesses
def test_a_step_that_was_never_measured_gets_a_quarter_of_the_frame():
    """A slice of an unmeasured step is small, since its guess may be wrong, and ends the frame."""
    steps = [SimStep(f"k{i}", 100_000, 0.001) for i in range(2)]
    scheduler = FrameScheduler(SimGpu(), budget_ms=4.0, clock=VirtualClock())
    scheduler.submit(SimNetwork("net", steps), {})
    report = scheduler.encode(None)
    (part,) = report.slices
    assert part.predicted_ms == pytest.approx(report.aim_ms / 4, rel=0.02)
