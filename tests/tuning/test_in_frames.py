"""Tests on the virtual clock of tuning within frames: chosen options, saved records, the budget."""

import time
from dataclasses import dataclass, field

import pytest

from cml_engine import FrameScheduler, Tuning
from cml_engine.errors import DeviceError
from cml_engine.scheduler import VirtualClock
from cml_engine.scheduler.tools.simulate import EXACT, Noise, SimGpu, SimNetwork, SimStep
from cml_engine.tuning.trial import Trial
from tests.fixtures.frames.turns import turns

BUDGET = 2.0
#: floating-point operations of a workgroup, and the milliseconds that the first guess gives it
FLOPS, GROUP_MS = 1e6, 0.05


@dataclass
class Bench:
    """A stand-in for the choices that a tuning makes: ``choices`` has true milliseconds by option.

    Its keys are the candidates; a candidate in ``broken`` cannot be planned.
    """

    choices: dict[str, dict[str, float]] = field(
        default_factory=lambda: {"k": {"a": 1.0, "b": 0.5}}
    )
    prepare_frames: int = 3
    saved: list = field(default_factory=list)
    made: list = field(default_factory=list)
    broken: tuple[str, ...] = ()

    @property
    def candidates(self):
        return list(self.choices)

    def plans(self, candidate):
        if candidate in self.broken:
            raise RuntimeError(f"{candidate} cannot be planned")
        return {option: (candidate, option, ms) for option, ms in self.choices[candidate].items()}

    def trial(self, candidate, plans, rounds):
        return Trial(next(iter(plans)), tuple(plans), rounds)

    def program(self, plan, *, deferred):
        assert deferred
        candidate, option, ms = plan
        if option in self.broken:
            raise MemoryError("no memory for it")
        self.made.append(option)
        groups = max(1, round(ms / GROUP_MS))
        step = SimStep(f"{candidate} {option}", groups, ms / groups, flops=FLOPS)
        return SimNetwork(option, [step], ready=False, prepare_frames=self.prepare_frames)

    def record(self, candidate, trial):
        return (candidate, trial.winner) if trial.ms() else None

    def save(self, records):
        self.saved += records


class Game:
    """A simulated game loop with a scheduler, a tuning, and perhaps a network of the game itself.

    The network takes ``own_ms`` and is due every ``period`` frames.
    """

    def __init__(self, bench, noise=EXACT, own_ms=0.0, period=1, **options):
        self.gpu = SimGpu(noise, **options)
        self.clock = VirtualClock()
        self.scheduler = FrameScheduler(self.gpu, budget_ms=BUDGET, clock=self.clock)
        self.tuning = Tuning(self.scheduler, bench)
        groups = max(1, round(own_ms / GROUP_MS))
        step = SimStep("own", groups, GROUP_MS, flops=FLOPS)
        self.own = SimNetwork("own", [step]) if own_ms else None
        self.period = period
        self.jobs, self.measured, self.encoded = [], [], []

    def frame(self):
        due = len(self.encoded) % self.period == 0
        if self.own and due and (not self.jobs or self.jobs[-1].ended):
            self.jobs.append(self.scheduler.submit(self.own, {}))
        self.encoded.append(self.scheduler.encode(None))
        self.clock.advance(1000 / 60)
        reports = self.scheduler.end_frame()
        self.measured += reports
        return self.tuning.observe(reports)

    def until(self, condition):
        """Runs frames until ``condition()`` is true or the tuning is done."""
        for _ in turns():
            if condition() or self.frame():
                return
            time.sleep(1e-5)  # lets the tuning's thread run

    def until_done(self):
        self.until(lambda: False)
        return self


def test_the_fastest_options_are_found_and_kept():
    bench = Bench({
        "one": {"a": 3.0, "b": 1.5, "c": 2.0},
        "two": {"d": 1.0, "e": 4.0},
    })  # fmt: skip
    game = Game(bench).until_done()
    assert bench.saved == [("one", "b"), ("two", "d")] == game.tuning.records
    assert game.tuning.decided == game.tuning.total == 2


def test_tuning_measures_long_choices_in_slices():
    bench = Bench({"long": {"a": 9.0, "b": 6.0}})
    game = Game(bench).until_done()
    assert bench.saved == [("long", "b")]
    assert all(len({p.job for p in r.slices}) <= 2 for r in game.measured)


@pytest.mark.shipped_guesses
@pytest.mark.parametrize(("noise", "share"), [(EXACT, 0.0), (Noise.of_tail(1.3), 0.02)])
def test_tuning_does_not_increase_frames_over_budget(noise, share):
    bench = Bench({f"choice {k}": {"a": 2.0, "b": 1.0 + k, "c": 0.8 + k} for k in range(12)})
    game = Game(bench, noise, seed=3)
    game.until_done()
    busy = [r for r in game.measured if r.slices]
    assert len(busy) > 100 and sum(r.over_budget for r in busy) <= share * len(busy)


@pytest.mark.parametrize("period", [1, 12])
def test_tuning_slows_the_game_network_by_at_most_three_percent(period):
    """With a tuning beside it, the game's network does at least 97 % of the runs that it does
    alone.

    The tuning gets the time that the network leaves in a frame.
    """

    def runs(bench):
        game = Game(bench, own_ms=5.0, period=period)
        for _ in range(600):
            game.frame()
        return sum(job.state == "done" for job in game.jobs), game

    (alone, _), (beside, game) = runs(Bench({})), runs(Bench({"k": {"a": 3.0, "b": 2.0}}))
    assert alone > 40 and beside >= 0.97 * alone
    tuned = {run.number for run in game.jobs}
    assert any(part.job not in tuned for report in game.encoded for part in report.slices)


def test_tuning_waits_for_preparation():
    bench = Bench(prepare_frames=40)
    game = Game(bench)
    game.until(lambda: [r.reason for r in game.encoded].count("preparing") > 30)
    assert not any(r.slices for r in game.encoded) and not game.tuning.done
    game.until_done()
    assert bench.saved == [("k", "b")]


def test_tuning_skips_options_without_memory_and_unplannable_choices():
    choices = {"l": {"a": 1.0}, "k": {"a": 1.0, "b": 0.5, "c": 0.7}}
    bench = Bench(choices, broken=("b", "l"))
    with pytest.warns(RuntimeWarning, match="l cannot be planned"):
        Game(bench).until_done()
    assert bench.saved == [("k", "c")]


def test_unwritable_tuning_table_is_a_warning():
    bench = Bench()

    def save(records):
        raise OSError("disk full")

    bench.save = save
    game = Game(bench)
    with pytest.warns(RuntimeWarning, match="disk full"):
        game.until_done()
    assert game.tuning.records == [("k", "b")]


def test_stopped_tuning_leaves_no_jobs():
    bench = Bench({"k": {"a": 1.0, "b": 0.5}, "l": {"a": 1.0, "b": 0.5}})
    game = Game(bench)
    game.until(lambda: game.tuning.decided == 1)
    for _ in range(10):
        game.frame()
    game.tuning.stop()
    game.until_done()
    for _ in range(5):
        game.frame()
    assert [r.slices for r in game.encoded[-5:]] == [[]] * 5
    assert bench.saved == [("k", "b")]


def test_tuning_ignores_times_that_several_jobs_share():
    """Keeps the default if the options' times cannot be told from those of other jobs."""
    bench = Bench()
    game = Game(bench, max_groups=1)
    game.until_done()
    assert ("k", "b") not in bench.saved


def test_tuning_keeps_at_most_two_programs():
    bench = Bench({"k": {name: 1.0 + i / 10 for i, name in enumerate("abcdef")}})
    game = Game(bench)
    while not game.frame():
        assert len(game.tuning._programs) <= 2
        time.sleep(1e-5)
    assert bench.made.count("a") == 1


def test_a_device_without_timestamps_is_refused():
    bench = Bench()
    scheduler = FrameScheduler(SimGpu(clock_source="wall clock"), budget_ms=1.0)
    with pytest.raises(DeviceError, match="cml tune"):
        Tuning(scheduler, bench)
