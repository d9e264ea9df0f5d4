"""Tests that a frame's plan depends only on a state that can be written as JSON."""

import json

import pytest

from cml_engine import least_laxity, plan_frame
from scheduler.planning import plan
from scheduler.planning.plan import FramePlan, FrameState
from tests.scheduler.test_queues import POLICIES, eventful_run


def decided_frames(monkeypatch, policy=least_laxity, seed=3):
    """Runs random host actions; returns a tuple per frame: the state, its JSON, and its plan.

    The JSON is written before planning, and None for a policy that is not built in.
    """
    seen = []

    def remembered(state):
        before = json.dumps(state.to_json()) if policy in POLICIES else None
        seen.append((state, before, plan_frame(state)))
        return seen[-1][2]

    monkeypatch.setattr("scheduler.frame_scheduler.plan_frame", remembered)
    eventful_run(policy, seed, frames=120)
    return seen


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_a_state_that_was_written_down_is_decided_the_same(policy, monkeypatch):
    frames = decided_frames(monkeypatch, policy)
    assert sum(len(found.slices) for _, _, found in frames) > 150
    for _, written, found in frames:
        again = FrameState.from_json(json.loads(written))
        assert plan_frame(again) == found
        assert json.loads(json.dumps(found.to_json()))["reason"] == found.reason


def test_deciding_changes_nothing(monkeypatch):
    for _, written, _ in decided_frames(monkeypatch)[-20:]:
        state = FrameState.from_json(json.loads(written))
        plan_frame(state)
        assert json.dumps(state.to_json()) == written


@pytest.mark.parametrize("lost", ["costs", "aim_ms", "now_ms", "jobs", "granule"])
def test_each_part_of_a_state_matters(lost, monkeypatch):
    """A change to any of five parts of a serialized state changes the plans of several frames."""
    differs = 0
    for _, written, found in decided_frames(monkeypatch):
        data = json.loads(written)
        if lost == "costs":
            data["costs"]["drift"] += 0.5
        elif lost == "jobs":
            data["jobs"] = data["jobs"][1:]
        elif lost == "now_ms":
            data["now_ms"] += 1e4
        else:
            data[lost] = {"aim_ms": 0.5, "granule": 8}[lost]
        differs += plan_frame(FrameState.from_json(data)) != found
    assert differs > 3


def test_a_policy_of_a_game_s_own_cannot_be_written_down(monkeypatch):
    state, _, _ = decided_frames(monkeypatch, lambda *a: least_laxity(*a))[-1]
    with pytest.raises(ValueError, match="policy of the game's own"):
        state.to_json()


def test_no_budget_and_no_gpu_are_no_slices(monkeypatch):
    frames = decided_frames(monkeypatch)
    data = next(json.loads(written) for _, written, found in frames if found.slices)
    for change, reason in (({"budget_ms": 0}, "budget"), ({"gpu_behind": True}, "waiting for GPU")):
        found = plan.plan_frame(FrameState.from_json(data | change))
        assert found == FramePlan((), (), reason)
