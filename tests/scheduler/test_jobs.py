"""Tests of many jobs in one budget: deadlines, shares, cancellation, replaced jobs,
dependencies."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from cml_engine import FixedBudget, FrameScheduler, SpareBudget
from cml_engine.errors import InputError
from cml_engine.scheduler import AdmissionError, VirtualClock, by_priority
from cml_engine.scheduler.clock import SteadyClock
from cml_engine.scheduler.tools.simulate import Arrival, SimGpu, simulate
from tests.fixtures.frames.simulated import FRAME, Loop, exact_margin, network, taught


def test_long_job_takes_the_predicted_number_of_frames():
    net = network("a", 40.0)
    loop = Loop(net)
    job = loop.submit(net)
    assert job.state == "queued" and job.progress == 0
    loop.frames(5)
    assert job.state == "running" and 0.4 <= job.progress <= 0.55
    assert job.eta_ms == pytest.approx(20 / 4 * FRAME, rel=0.3)
    loop.until_done(job)
    assert job.state == "done" and job.progress == 1 and len(loop.reports) in (10, 11)


def test_least_time_to_spare_goes_first():
    early, late = network("early", 20.0), network("late", 20.0)
    loop = Loop(early, late)
    second = loop.submit(late, deadline_ms=400)
    first = loop.submit(early, deadline_ms=150)
    loop.until_done(first, second)
    assert first.ended_ms < second.ended_ms
    assert first.ended_ms <= first.deadline_at_ms and second.ended_ms <= second.deadline_at_ms


def test_three_periodic_models_meet_feasible_deadlines():
    """Periodic jobs that together need 85 % of the budget meet every deadline."""
    nets = [network("a", 6.0), network("b", 20.0), network("c", 60.0)]
    periods = [6 * FRAME, 22 * FRAME, 60 * FRAME]
    requests = [
        Arrival(net, period_ms=period, deadline_ms=period)
        for net, period in zip(nets, periods, strict=True)
    ]
    outcome = simulate(
        requests, 3000, budget_ms=4.0, cost_model=taught(*nets), margin=exact_margin()
    )
    held, due = outcome.deadlines_met
    assert due > 650 and held == due


def test_no_job_starves_in_an_overloaded_half_hour():
    """A job without a deadline is served in half an hour of unreachable deadlines.

    At least 50 of its runs and 500 of the other network's are done.
    """
    greedy, humble = network("greedy", 300.0), network("humble", 40.0)
    requests = [
        Arrival(greedy, period_ms=500.0, deadline_ms=400.0, priority=5.0, slot="g"),
        Arrival(humble, period_ms=20_000.0, priority=0.1),
    ]
    outcome = simulate(
        requests, 9000, budget_ms=40.0, frame_ms=200.0, cost_model=taught(greedy, humble),
        margin=exact_margin(),
    )  # fmt: skip
    done = Counter(job.name for job in outcome.jobs if job.state == "done")
    assert done["humble"] >= 50 and done["greedy"] >= 500


def test_job_without_deadline_is_served_beside_a_feasible_deadline():
    urgent, humble = network("urgent", 4000.0), network("humble", 1.0)
    loop = Loop(urgent, humble)
    held = loop.submit(urgent, deadline_ms=60_000)
    job = loop.submit(humble)
    loop.frames(25)
    assert job.progress == 0 and held.progress > 0
    loop.frames(10)
    assert job.state == "done" and held.laxity_ms(loop.clock.now_ms(), loop.scheduler.rate) > 0


def test_an_overdue_job_has_no_claim_but_its_share():
    late, fine = network("late", 200.0), network("fine", 30.0)
    loop = Loop(late, fine)
    overdue = loop.submit(late, deadline_ms=10)
    loop.frames(5)
    urgent = loop.submit(fine, deadline_ms=200)
    loop.until_done(urgent)
    assert urgent.ended_ms <= urgent.deadline_at_ms
    loop.until_done(overdue)


def test_shares_follow_priority():
    big, small = network("big", 400.0), network("small", 400.0)
    loop = Loop(big, small)
    a, b = loop.submit(big, priority=3.0), loop.submit(small, priority=1.0)
    loop.frames(60)
    assert a.given_ms / b.given_ms == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("deadline_ms", [None, 40.0])
def test_priority_zero_job_gets_only_leftover_time(deadline_ms):
    """A job of priority 0 gets only the time that other jobs leave in a frame, and all of it if
    alone.

    A deadline does not change that.
    """
    big, idle, small = network("big", 400.0), network("idle", 40.0), network("small", 1.0)
    loop = Loop(big, idle, small)
    first, last = loop.submit(big), loop.submit(idle, priority=0, deadline_ms=deadline_ms)
    loop.frames(60)
    assert not first.ended and last.given_ms == 0
    first.cancel()
    loop.frames()
    assert last.given_ms > 0 and not last.ended, "the only job gets all"
    beside = loop.submit(small)
    report = loop.frames()
    assert report.slices[0].job == beside.number
    assert beside.ended and report.slices[-1].job == last.number
    loop.until_done(last)


def test_by_priority_policy_runs_higher_priority_first():
    one, two = network("one", 40.0), network("two", 40.0)
    loop = Loop(one, two, policy=by_priority)
    low, high = loop.submit(one, priority=1), loop.submit(two, priority=2)
    loop.frames(3)
    assert low.progress == 0 and high.progress > 0.25


def test_cancel_pause_and_resume():
    net, other = network("n", 40.0), network("o", 40.0)
    loop = Loop(net, other)
    job, mate = loop.submit(net), loop.submit(other)
    loop.frames(2)
    job.pause()
    before = job.given_ms
    loop.frames(3)
    assert job.given_ms == before and job.state == "running"
    job.resume()
    loop.frames(1)
    job.cancel()
    assert job.state == "cancelled"
    ran = job.given_ms
    loop.until_done(mate)
    assert job.given_ms == ran and mate.state == "done"
    with pytest.raises(InputError, match="cancelled"):
        job.tensor("out")


def test_a_newer_input_supersedes_a_waiting_one():
    net = network("n", 40.0)
    loop = Loop(net)
    first = loop.submit(net, slot="tile 7")
    loop.frames(2)
    waiting = loop.submit(net, slot="tile 7")
    newest = loop.submit(net, slot="tile 7")
    assert (first.state, waiting.state, newest.state) == ("running", "cancelled", "queued")
    loop.until_done(first, newest)
    assert newest.state == "done"


def test_jobs_of_one_session_wait_for_its_memory():
    net = network("n", 8.0)
    loop = Loop(net)
    jobs = [loop.submit(net) for _ in range(3)]
    loop.frames(1)
    assert [j.state for j in jobs] == ["running", "queued", "queued"]
    loop.until_done(*jobs)
    assert [j.ended_ms for j in jobs] == sorted(j.ended_ms for j in jobs)


def test_job_waits_for_its_input_job():
    first, second = network("first", 20.0), network("second", 4.0)
    loop = Loop(first, second)
    maker = loop.submit(first)
    taker = loop.submit(second, {"x": maker.output("y")})
    loop.frames(3)
    assert taker.state == "queued"
    loop.until_done(maker, taker)
    assert taker.ended_ms > maker.ended_ms


def test_periodic_job_repeats_and_skips_missed_periods():
    quick, heavy = network("quick", 4.0), network("heavy", 100.0)
    loop = Loop(quick, heavy)
    made = []
    every = loop.scheduler.submit_periodic(quick, lambda: made.append(1) or {}, 10 * FRAME)
    loop.frames(101)
    assert len(made) == 11 and every.latest.state == "done"
    every.stop()
    loop.frames(30)
    assert len(made) == 11
    late = loop.scheduler.submit_periodic(heavy, dict, 5 * FRAME)
    loop.frames(200)
    assert late.latest is not None and len(loop.scheduler.jobs) <= 3
    with pytest.raises(InputError, match="period_ms"):
        loop.scheduler.submit_periodic(quick, dict, 0)


def test_failing_make_inputs_stops_only_its_periodic_job():
    """If a periodic job's input function raises, only this job stops, with the exception in its
    error."""
    net, other = network("n", 4.0), network("o", 40.0)
    loop = Loop(net, other)
    made = []

    def inputs():
        made.append(1)
        if len(made) == 3:
            raise KeyError("camera")
        return {}

    every = loop.scheduler.submit_periodic(net, inputs, 5 * FRAME, name="sky")
    mate = loop.submit(other)
    loop.until_done(mate)
    loop.frames(20)
    assert mate.state == "done" and len(made) == 3
    assert every.stopped and every.latest.state == "done"
    assert "'sky'" in every.error and "KeyError: 'camera'" in every.error


def test_refused_inputs_stop_only_their_periodic_job():
    loop = Loop()
    with pytest.raises(InputError, match="wanted one on a GPU"):
        loop.scheduler.submit_periodic(object(), dict, FRAME)
    every = loop.scheduler.submit_periodic(network("n", 4.0), list, FRAME)
    assert every.error == ""
    assert loop.frames().reason == "nothing to do"
    assert every.stopped and "inputs: wanted a dictionary" in every.error


def test_admission_refuses_infeasible_deadline():
    net = network("n", 40.0)
    loop = Loop(net)
    with pytest.raises(AdmissionError, match="cannot hold its deadline"):
        loop.submit(net, deadline_ms=50, admission="refuse")
    with pytest.warns(RuntimeWarning, match="cannot hold"):
        loop.submit(net, deadline_ms=50, admission="warn")
    assert loop.submit(network("n", 40.0), deadline_ms=5000, admission="refuse").state == "queued"
    loop.scheduler.budget.ms = 0.0
    with pytest.raises(AdmissionError, match="get no time from a budget of 0 ms"):
        loop.submit(net, deadline_ms=5000, admission="refuse")


def test_preparation_is_spread_over_frames_without_blocking_jobs():
    slow = network("slow", 4.0)
    slow.ready, slow.prepare_frames = False, 5
    fast = network("fast", 4.0)
    loop = Loop(slow, fast)
    waiting, running = loop.submit(slow), loop.submit(fast)
    loop.frames(1)
    assert running.state in ("running", "done") and waiting.state == "queued"
    loop.until_done(waiting, running)


NOT_TIMES = [float("nan"), float("inf"), -float("inf"), -1.0, "4", None, True]


#: calls by the number that they take
TAKE = {
    "priority": lambda loop, net, value: loop.submit(net, priority=value),
    "deadline_ms": lambda loop, net, value: loop.submit(net, deadline_ms=value),
    "period_ms": lambda loop, net, value: loop.scheduler.submit_periodic(net, dict, value),
    "fixed": lambda loop, net, value: FixedBudget(value),
    "least_ms": lambda loop, net, value: SpareBudget(FRAME, least_ms=value),
    "clock": lambda loop, net, value: loop.clock.advance(value),
} | {
    name: lambda loop, net, value, name=name: FrameScheduler(SimGpu(), **{name: value})
    for name in ("frame_ms", "budget_ms", "over_share", "max_frames_in_flight")
}


@pytest.mark.parametrize("value", [v for v in NOT_TIMES if v is not None])
@pytest.mark.parametrize("option", TAKE)
def test_invalid_numbers_are_refused_at_submit(option, value):
    loop = Loop()
    with pytest.raises(InputError, match=r"wanted a|got"):
        TAKE[option](loop, network("n", 1.0), value)
    assert loop.scheduler.jobs == []


class WildClock(VirtualClock):
    """A clock that returns the value of ``wild`` instead of the time if ``wild`` is set."""

    wild = None

    def now_ms(self):
        return super().now_ms() if self.wild is None else self.wild


#: a clock that gives something else than a number is refused when the scheduler is made, and None
#: means that no elapsed time is known
ACCEPTED = {("clock", "4"), ("clock", None), ("clock", True), ("elapsed", None)}
TIMES = ["render", "frame", "elapsed", "budget", "clock", "timing"]


@pytest.mark.parametrize(
    ("given", "value"), [(t, v) for t in TIMES for v in NOT_TIMES if (t, v) not in ACCEPTED]
)
def test_invalid_frame_time_is_ignored_and_counted(given, value):
    """An invalid time is ignored and counted: the next budgets are finite and the job ends."""
    net = network("n", 40.0)
    loop = Loop(net, budget_ms="spare" if given in ("render", "frame", "elapsed") else 4.0)
    clock = loop.clock = loop.scheduler.clock = WildClock()
    loop.scheduler._steady = SteadyClock(clock)
    clock.advance(1000.0)
    job = loop.submit(net)
    for _ in range(20):
        loop.scheduler.render_took(8.0)
    loop.frames(3)
    kept = loop.gpu.end_frame
    if given == "render":
        loop.scheduler.render_took(value)
    elif given == "frame":
        loop.scheduler.frame_took(value)
    elif given == "budget":
        loop.scheduler.budget.ms = value
    elif given == "clock":
        clock.wild = value
    else:
        loop.gpu.end_frame = lambda frame: [replace(t, ms=value) for t in kept(frame)]
    elapsed = value if given == "elapsed" else None
    loop.reports.append(loop.scheduler.encode(None, elapsed))
    loop.scheduler.end_frame()
    assert loop.scheduler.ignored_values > 0
    assert 0 < loop.reports[-1].aim_ms < 20 and loop.reports[-1].now_ms >= 1000.0
    clock.wild, loop.gpu.end_frame = None, kept
    if given == "budget":
        loop.scheduler.budget.ms = 4.0
    loop.until_done(job)
    assert all(math.isfinite(r.aim_ms) and math.isfinite(r.predicted_ms) for r in loop.reports)
    assert all(r.measured_ms is None or math.isfinite(r.measured_ms) for r in loop.reports)


def test_a_spare_budget_that_is_told_no_times_says_so():
    scheduler = Loop(budget_ms="spare").scheduler
    lacking = "call render_took() or frame_took() in each frame"
    assert f"{lacking}; until then the networks get 0.5 ms" in scheduler.describe()
    for _ in range(5):
        scheduler.encode(None)
        scheduler.end_frame()
        scheduler.render_took(6.0)
    assert lacking not in scheduler.describe()
    assert lacking not in Loop(budget_ms=4.0).scheduler.describe()


def test_a_frame_of_many_seconds_is_soon_forgotten():
    loop = Loop(budget_ms="spare")
    for ms in (8.0, 1e300, *[8.0] * 200):
        loop.scheduler.render_took(ms)
        loop.frames()
    assert loop.reports[-1].budget_ms > 3.0


def test_missing_render_times_do_not_block_jobs():
    """A job ends although the last render time left almost no budget, if no more render times come.

    This happens behind a loading screen, where nothing is drawn.
    """
    net = network("n", 4.0)
    loop = Loop(net, budget_ms="spare")
    for _ in range(5):
        loop.frames()
        loop.scheduler.render_took(60.0)
    assert loop.scheduler.next_budget_ms == 0.0
    job = loop.submit(net)
    loop.until_done(job)


def test_a_load_that_can_be_met_is_steady_a_second_after_a_stall():
    """The network needs 30 of every 80 ms, within 20 frames, beside a background of priority 4."""
    net, background = network("n", 30.0), network("background", 400.0)
    loop = Loop(net, background, budget_ms=8.0)
    dated, due_ms = [], 0.0
    for frame in range(600):
        if not any(job.name == "background" for job in loop.scheduler.jobs):
            loop.submit(background, priority=4.0)
        while due_ms <= loop.clock.now_ms():
            dated.append(loop.submit(net, deadline_ms=20 * FRAME))
            due_ms += 80.0
        loop.frames()
        if frame == 100:
            loop.clock.advance(400.0)
            stalled_ms = loop.clock.now_ms()
    later = [job for job in dated if stalled_ms + 1000.0 < job.submitted_ms and job.ended]
    assert len(later) > 60 and all(job.ended_ms <= job.deadline_at_ms for job in later)
    assert sum(not job.ended for job in dated) < 5
