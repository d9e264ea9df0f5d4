"""Tests on the virtual clock of the inference budget that is learned from whole frames."""

import random

import pytest

from cml_engine import FrameScheduler, VirtualClock
from scheduler.planning.controller import FrameController
from scheduler.tools.simulate import SimGpu
from tests.scheduler.budgets import frame_budgets
from tests.scheduler.budgets.frame_budgets import FRAME_MS, WARM_UP, best_constant, ours

FRAMES, SHARE = 6000, 0.01
#: two standard deviations of a measured share of frames
SAMPLING = 2 * (SHARE / (FRAMES - WARM_UP)) ** 0.5
NAMES = list(frame_budgets.scenarios(1))


def keeps(kept, best):
    """Returns True if ``kept`` does at least 75 % of the work of ``best`` and adds few late
    frames."""
    return kept.work_ms >= 0.75 * best.work_ms and kept.added <= SHARE + SAMPLING


#: the recorded and the hardest scenarios; the others run in the long suite
IN_SUITE = ("recorded", "hitches")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n.startswith(IN_SUITE) else pytest.mark.long) for n in NAMES],
)
def test_most_of_the_work_and_few_late_frames(name):
    noise = frame_budgets.scenarios(FRAMES)[name]
    best = best_constant(noise, SHARE)
    for rule in ("whole frames", "render times"):
        kept = ours(noise, SHARE, rule)
        assert keeps(kept, best), (rule, kept, best)


def learned(rests, share=0.01, networks_ms=3.0):
    """Returns the controller after frames whose other work took ``rests`` milliseconds each.

    A negative value is a frame that ran no network.
    """
    controller = FrameController(share, reports_elapsed=False)
    for number, rest in enumerate(rests):
        ran = 0.0 if rest < 0 else networks_ms
        controller.begin_frame(FRAME_MS)
        controller.encoded(number, networks_ms, ran)
        controller.took(abs(rest) + ran)
    return controller


def aim(controller):
    controller.begin_frame(FRAME_MS)
    return controller.aim_ms


@pytest.mark.parametrize(
    ("rests", "longest_ms"),
    [
        ([9.0] * 400, 9.0),
        # late frames, some of which run no networks
        ([(1 - 2 * (n % 30 == 7)) * (30.0 if n % 20 == 7 else 9.0) for n in range(1200)], 9.0),
        ([13.0 if n % 20 == 7 else 9.0 for n in range(1200)], 13.0),
    ],
    ids=["constant slack", "late without networks too", "hitches within the target"],
)
def test_slack_of_the_longest_frames_within_the_target_is_used(rests, longest_ms):
    assert aim(learned(rests)) == pytest.approx(FRAME_MS - longest_ms, rel=0.03)


def test_frames_over_target_only_with_networks_reduce_the_plan():
    """Inference gets less than 30 % of the free time if a fifth of the frames with networks is
    late.

    Frames without networks are never late here.
    """
    chance = random.Random(1)
    rests = [30.0 if chance.random() < 0.2 else 9.0 for _ in range(1200)]
    rests = [-9.0 if n % 40 == 7 else rest for n, rest in enumerate(rests)]
    assert aim(learned(rests)) < 0.3 * (FRAME_MS - 9.0)


def test_frames_without_networks_are_requested_only_if_frames_are_late():
    assert not learned([9.0] * 1000).baseline_due
    assert learned([30.0 if n % 20 == 7 else 9.0 for n in range(1000)]).baseline_due


def test_slower_renderer_is_followed_within_three_frames():
    controller = learned([6.0] * 300 + [12.0] * 3)
    assert controller.expected_ms == pytest.approx(12.0)
    assert aim(controller) <= FRAME_MS - 12.0 + 1e-9
    assert learned([6.0] * 300 + [8.5] * 3).expected_ms == pytest.approx(8.5), "it is no delay"
    again = learned([6.0] * 300 + [12.0] * 30 + [6.0] * 8)
    assert again.expected_ms == pytest.approx(6.0)


def test_long_frame_reduces_only_the_next_plan():
    usual = aim(learned([6.0] * 300))
    after = learned([6.0] * 300 + [12.0])
    assert aim(after) <= FRAME_MS - 12.0 < usual
    again = learned([6.0] * 300 + [12.0, 6.0])
    assert again.expected_ms == pytest.approx(6.0)
    assert aim(again) == pytest.approx(usual, rel=0.01)


def test_without_room_two_of_three_frames_run_no_networks():
    controller = learned([9.0] * 300 + [16.0] * 3)
    assert [is_skipped(controller, frame) for frame in range(303, 312)] == [True, True, False] * 3
    controller = learned([9.0] * 300)
    assert not any(is_skipped(controller, frame) for frame in range(300, 309))
    late_anyway = learned([20.0] * 300 + [-20.0])
    late_anyway.begin_frame(FRAME_MS)
    assert not late_anyway.skips(1.0), "it would be late anyway"


def is_skipped(controller, frame):
    """Encodes a frame and returns True if the controller skips inference in it.

    Also checks that a second call of ``skips`` gives the same answer.
    """
    controller.begin_frame(FRAME_MS)
    skips = controller.skips(1.0)
    assert controller.skips(1.0) == skips
    controller.encoded(frame, 3.0, 0.0 if skips else 3.0)
    return skips


def test_skipped_frames_are_counted_if_they_ran():
    """Abandoned frames and repeated calls of ``skips`` do not count as skipped frames."""
    controller = learned([9.0] * 300 + [16.0] * 3)
    for frame in range(303, 308):
        assert is_skipped(controller, frame), "none of them ran"
        controller.abandoned()
    assert [is_skipped(controller, frame) for frame in range(303, 306)] == [True, True, False]
    controller.abandoned()
    assert not is_skipped(controller, 305)


def test_frame_skipped_for_lack_of_slack_is_not_a_baseline_sample():
    controller = learned([9.0] * 300 + [30.0])
    assert is_skipped(controller, 301), "the frame before it was delayed"
    controller.took(30.0)
    assert not controller._baseline


def test_missing_frame_times_are_detected():
    controller = learned([9.0] * 100)
    assert controller.is_known
    for number in range(100, 150):
        controller.begin_frame(FRAME_MS)
        controller.encoded(number, 3.0, 3.0)
    assert not controller.is_known


def test_hitches_beyond_a_fixed_budget_do_not_reduce_it():
    model = FrameScheduler(SimGpu(), budget_ms=4.0, clock=VirtualClock()).cost_model
    for number in range(600):
        model.learn_frame(3.0, 3.0 + (number % 20 == 3) * 9.0, 4.0)
    assert model.aim_ms(4.0) == pytest.approx(4.0, rel=0.05)
    for number in range(1200):
        model.learn_frame(3.0, 3.0 + (number % 20 == 3) * 2.0, 4.0)
    assert model.aim_ms(4.0) < 2.5
