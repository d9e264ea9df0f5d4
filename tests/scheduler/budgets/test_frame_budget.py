"""Tests on the virtual clock of the inference budget that is learned from whole frames."""

import random

import pytest

from cml_engine.scheduler.planning.controller import FrameController, TailMargin
from tests.scheduler.budgets import frame_budgets
from tests.scheduler.budgets.frame_budgets import FRAME_MS, WARM_UP, best_constant, ours

FRAMES, SHARE = 6000, 0.01
#: three standard deviations of a measured share of frames
SAMPLING = 3 * (SHARE / (FRAMES - WARM_UP)) ** 0.5
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


def test_constant_slack_is_used():
    assert aim(learned([9.0] * 400)) == pytest.approx(FRAME_MS - 9.0, rel=0.03)


def test_late_frames_that_would_be_late_without_networks_too_do_not_reduce_the_plan():
    rests = [(1 - 2 * (n % 30 == 7)) * (30.0 if n % 20 == 7 else 9.0) for n in range(1200)]
    assert aim(learned(rests)) == pytest.approx(FRAME_MS - 9.0, rel=0.03)


def test_hitches_within_the_target_leave_few_frames_late():
    controller, rests = learned([9.0] * 300), [13.0 if n % 20 == 7 else 9.0 for n in range(3000)]
    ran = [plans(controller, 300 + n, rest) for n, rest in enumerate(rests)]
    late = sum(rest + ms > FRAME_MS + 1e-9 for rest, ms in zip(rests, ran, strict=True))
    assert late <= 0.015 * len(rests)
    assert sum(ran) / len(ran) > 0.9 * (FRAME_MS - 13.0)


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


def test_frames_without_room_run_only_guaranteed_work():
    """Without guaranteed work nothing runs; with it, few but fuller frames keep its average."""
    controller = learned([9.0] * 300 + [16.6] * 30)
    assert not any(plans(controller, number, 16.6) for number in range(330, 400))
    ran = [plans(controller, number, 16.6, least_ms=1.0) for number in range(400, 1000)]
    assert 0.9 < sum(ran) / len(ran) <= 1.05
    assert sum(ms > 0 for ms in ran) < 0.15 * len(ran)
    assert controller.forced_late_share > 0.0


def plans(controller, number, rest_ms, least_ms=0.0):
    """Runs a frame whose other work takes ``rest_ms``; returns its milliseconds of networks."""
    controller.begin_frame(FRAME_MS, least_ms=least_ms)
    ran = 0.0 if controller.skips else controller.aim_ms
    controller.encoded(number, controller.aim_ms, ran)
    controller.took(rest_ms + ran, number)
    return ran


def test_work_that_the_networks_do_not_want_is_not_owed():
    controller = learned([9.0] * 300 + [16.6] * 30)
    for number in range(330, 400):
        controller.begin_frame(FRAME_MS, least_ms=1.0)
        controller.encoded(number, controller.aim_ms, 0.0)  # there are no jobs
        controller.took(16.6, number)
    assert controller._owed_ms <= 16.0


def test_an_abandoned_frame_owes_what_it_owed_before():
    controller = learned([9.0] * 300 + [16.6] * 30)
    owed = []
    for number in range(330, 340):
        controller.begin_frame(FRAME_MS, least_ms=1.0)
        controller.encoded(number, controller.aim_ms, 0.0)
        controller.abandoned()
        owed.append(controller._owed_ms)
    assert owed == [0.0] * 10


def test_frame_skipped_for_lack_of_slack_is_not_a_baseline_sample():
    controller = learned([9.0] * 300 + [30.0])
    assert plans(controller, 301, 30.0) == 0.0, "the frame before it was delayed"
    assert not controller._baseline


def test_missing_frame_times_are_detected():
    controller = learned([9.0] * 100)
    assert controller.is_known
    for number in range(100, 150):
        controller.begin_frame(FRAME_MS)
        controller.encoded(number, 3.0, 3.0)
    assert not controller.is_known


def test_hitches_beyond_a_fixed_budget_do_not_reduce_it():
    margin = TailMargin()
    for number in range(600):
        margin.learn(3.0, 3.0 + (number % 20 == 3) * 9.0, 4.0)
    assert margin.aim_ms(4.0) == pytest.approx(4.0, rel=0.05)
    for number in range(1200):
        margin.learn(3.0, 3.0 + (number % 20 == 3) * 2.0, 4.0)
    assert margin.aim_ms(4.0) < 2.5
