"""Which of some options is the fastest, decided by paired benchmarks: knows no GPU.

Options are timed in pairs with the default, close in time, so that whatever else the machine does
touches both alike; the order in a pair changes from round to round. What counts is the ratio in a
pair. Of many options one is always lucky: so the best of them must beat the default once more, in
as many rounds of which none was seen before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

#: an option must take this share of the default's time, or less, to replace it
WINS_BELOW = 0.95
#: after so many rounds an option that lost all of them, by this ratio in the median, is out
_FEW, _HOPELESS = 3, 1.05


@dataclass
class PairedTimes:
    """An option beside the default: milliseconds of both in each round."""

    rounds: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The option's time over the default's, the median of the rounds."""
        return median(self._ratios) if self.rounds else 1.0

    @property
    def lost(self) -> bool:
        """Whether a few rounds are enough to see that it is slower."""
        enough = len(self.rounds) >= _FEW
        return enough and min(self._ratios) > 1 and self.ratio > _HOPELESS

    @property
    def won(self) -> bool:
        """Whether it is faster by more than chance: in the median, and in so many rounds that a
        fair coin is two standard deviations away."""
        faster, count = sum(ratio < 1 for ratio in self._ratios), len(self.rounds)
        often = faster >= min(count, count / 2 + sqrt(count))
        return count > 0 and often and self.ratio <= WINS_BELOW

    @property
    def _ratios(self) -> list[float]:
        return [own / other for own, other in self.rounds]


@dataclass
class Trial:
    """The paired benchmarks of one choice; :meth:`next` says what to time, :meth:`told` takes it.

    >>> trial = Trial("a", ("a", "b"), rounds=4)
    >>> while pair := trial.next():
    ...     trial.told({name: {"a": 2.0, "b": 1.0}[name] for name in pair})
    >>> trial.winner, trial.ratio("b")
    ('b', 0.5)
    """

    default: str
    options: Sequence[str]
    rounds: int = 30
    #: by option
    pairs: dict[str, PairedTimes] = field(default_factory=dict)
    #: the best option's second benchmark
    final: PairedTimes = field(default_factory=PairedTimes)
    _dropped: dict[str, str] = field(default_factory=dict)

    def next(self) -> tuple[str, str] | None:
        """The pair to time now, in this order; None when all is decided."""
        option, paired = self._current()
        if option is None:
            return None
        pair = (self.default, option)
        return pair[::-1] if len(paired.rounds) % 2 else pair

    def told(self, ms: Mapping[str, float]) -> None:
        """The times of the pair that :meth:`next` named. The first of an option warms up and does
        not count, nor do times that are none (not above 0)."""
        option, paired = self._current()
        assert option is not None and set(ms) == {option, self.default}
        if option not in self.pairs:
            self.pairs[option] = PairedTimes()
        elif min(ms.values()) > 0:
            paired.rounds.append((ms[option], ms[self.default]))

    def drop(self, option: str, why: str) -> None:
        """The option cannot be timed; without the default none can."""
        for name in self.options if option == self.default else (option,):
            self._dropped[name] = why

    @property
    def dropped(self) -> Mapping[str, str]:
        """The options that could not be timed, and why."""
        return self._dropped

    @property
    def winner(self) -> str:
        """The option that beat the default twice, else the default."""
        leader = self._leader()
        return leader if leader is not None and self.final.won else self.default

    def ratio(self, option: str) -> float:
        """The option's time over the default's: the winner's in its second benchmark."""
        if option == self.winner and option != self.default:
            return self.final.ratio
        return self.pairs[option].ratio if option in self.pairs else 1.0

    def ms(self) -> dict[str, float]:
        """The median time of the default in all rounds, and that times the ratio of each option
        that was timed: rounds of different options met different loads on the machine."""
        timed = [name for name, paired in self.pairs.items() if paired.rounds]
        rounds = [pair for paired in (*self.pairs.values(), self.final) for pair in paired.rounds]
        if not rounds:
            return {}
        usual = median(other for _, other in rounds)
        return {self.default: usual, **{name: usual * self.ratio(name) for name in timed}}

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
        """The best of those that have won theirs."""
        won = [n for n, paired in self.pairs.items() if paired.won and n not in self._dropped]
        return min(won, key=lambda name: self.pairs[name].ratio, default=None)
