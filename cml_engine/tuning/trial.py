"""Finds the fastest of several options by paired benchmarks, independently of the GPU.

Each option is timed in pairs with the default, close in time, so that other load on the machine
affects both alike. The order in a pair alternates from round to round, and only the ratio within
a pair counts. The best of many options may be best by chance, so it must beat the default again
in a second benchmark of as many new rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

#: an option must take this share of the default's time, or less, to replace it
WINS_BELOW = 0.95
#: an option that loses each of this many first rounds, by this median ratio, is not timed further
_FEW, _HOPELESS = 3, 1.05


@dataclass
class PairedTimes:
    """The milliseconds of an option and of the default, as pairs, one pair per round."""

    rounds: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median over rounds of the option's time divided by the default's."""
        return median(self._ratios) if self.rounds else 1.0

    @property
    def lost(self) -> bool:
        """True if the option is clearly slower after a few rounds."""
        enough = len(self.rounds) >= _FEW
        return enough and min(self._ratios) > 1 and self.ratio > _HOPELESS

    @property
    def won(self) -> bool:
        """True if the option is faster by more than chance.

        Its median ratio must be at most ``WINS_BELOW``, and it must be faster in more rounds
        than a fair coin would win, by two standard deviations.
        """
        faster, count = sum(ratio < 1 for ratio in self._ratios), len(self.rounds)
        often = faster >= min(count, count / 2 + sqrt(count))
        return count > 0 and often and self.ratio <= WINS_BELOW

    @property
    def _ratios(self) -> list[float]:
        return [option_ms / default_ms for option_ms, default_ms in self.rounds]


@dataclass
class Trial:
    """The paired benchmarks of one choice.

    :meth:`next` returns the pair to time, and :meth:`record` records its times.

    >>> trial = Trial("a", ("a", "b"), rounds=4)
    >>> while pair := trial.next():
    ...     trial.record({name: {"a": 2.0, "b": 1.0}[name] for name in pair})
    >>> trial.winner, trial.ratio("b")
    ('b', 0.5)
    """

    default: str
    options: Sequence[str]
    rounds: int = 30
    #: the first benchmark of each option
    pairs: dict[str, PairedTimes] = field(default_factory=dict)
    #: the best option's second benchmark
    final: PairedTimes = field(default_factory=PairedTimes)
    _dropped: dict[str, str] = field(default_factory=dict)

    def next(self) -> tuple[str, str] | None:
        """Returns the two options to time now, in this order; None when the trial is over."""
        option, paired = self._current()
        if option is None:
            return None
        pair = (self.default, option)
        return pair[::-1] if len(paired.rounds) % 2 else pair

    def record(self, ms: Mapping[str, float]) -> None:
        """Records the milliseconds of both options of the pair that :meth:`next` returned.

        An option's first times are a warm-up and are ignored, as are times that are not positive.
        """
        option, paired = self._current()
        assert option is not None and set(ms) == {option, self.default}
        if option not in self.pairs:
            self.pairs[option] = PairedTimes()
        elif min(ms.values()) > 0:
            paired.rounds.append((ms[option], ms[self.default]))

    def drop(self, option: str, why: str) -> None:
        """Excludes an option that cannot be timed, for the reason ``why``.

        If it is the default, all options are excluded.
        """
        for name in self.options if option == self.default else (option,):
            self._dropped[name] = why

    @property
    def dropped(self) -> Mapping[str, str]:
        """The reasons why options could not be timed, by option."""
        return self._dropped

    @property
    def winner(self) -> str:
        """The option that beat the default twice; otherwise the default."""
        leader = self._leader()
        return leader if leader is not None and self.final.won else self.default

    def ratio(self, option: str) -> float:
        """Returns the option's time divided by the default's; 1 if it was not timed.

        It is the median over rounds. For the winner it comes from the second benchmark.
        """
        if option == self.winner and option != self.default:
            return self.final.ratio
        return self.pairs[option].ratio if option in self.pairs else 1.0

    def ms(self) -> dict[str, float]:
        """Returns the time in ms of the default and of every timed option, by name.

        The mapping is empty before the first round. The default's time is its median over all
        rounds. An option's time is that median times the option's ratio, because rounds of
        different options saw different machine load.
        """
        timed = [name for name, paired in self.pairs.items() if paired.rounds]
        rounds = [pair for paired in (*self.pairs.values(), self.final) for pair in paired.rounds]
        if not rounds:
            return {}
        default_ms = median(ms_of_default for _, ms_of_default in rounds)
        return {self.default: default_ms, **{name: default_ms * self.ratio(name) for name in timed}}

    def _current(self) -> tuple[str | None, PairedTimes]:
        for option in self.options:
            paired = self.pairs.get(option, PairedTimes())
            if option != self.default and option not in self._dropped and not self._over(paired):
                return option, paired
        leader = self._leader()
        if leader is not None and not self._over(self.final):
            return leader, self.final
        return None, self.final

    def _over(self, paired: PairedTimes) -> bool:
        return paired.lost or len(paired.rounds) >= self.rounds

    def _leader(self) -> str | None:
        """Returns the option with the best ratio of those that won a first benchmark, or None."""
        winners = [n for n, paired in self.pairs.items() if paired.won and n not in self._dropped]
        return min(winners, key=lambda name: self.pairs[name].ratio, default=None)
