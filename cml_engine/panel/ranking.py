"""Ranks operators by cost, since the start or in the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from cml_engine.panel.frames import Key, OperatorTime

#: the length of "the last seconds", and the interval between saved costs
WINDOW_S = 5.0
_KEEP_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class RankRow:
    """One operator's row in the ranking: its time, share, prediction error and rates.

    ``share`` is its share of all GPU time for networks; ``error`` is predicted over measured time
    minus 1; ``gflops`` and ``gbytes`` are per second. Unknown values are 0. Times are estimates
    unless ``is_measured``.

    Examples
    --------
    >>> [row.title for row in rows({})]
    []
    """

    key: Key
    network: str
    title: str
    share: float
    total_ms: float
    runs: float
    average_ms: float
    error: float
    gflops: float
    gbytes: float
    is_measured: bool = True

    @property
    def name(self) -> str:
        """The network's name and the operator's title, with a space between them."""
        return f"{self.network} {self.title}"


class RecentTimes:
    """Remembers the operators' accumulated costs of about :data:`WINDOW_S` seconds ago."""

    def __init__(self) -> None:
        self._saved: deque[tuple[float, dict[Key, OperatorTime]]] = deque()

    def save(self, now_s: float, operators: Mapping[Key, OperatorTime]) -> None:
        """Saves the operators' current costs if the last saved ones are old enough.

        Costs that are no longer needed are dropped.
        """
        if self._saved and now_s - self._saved[-1][0] < _KEEP_EVERY_S:
            return
        self._saved.append((now_s, {key: copy(time) for key, time in operators.items()}))
        while len(self._saved) > 1 and now_s - self._saved[1][0] >= WINDOW_S:
            self._saved.popleft()

    def before(self) -> Mapping[Key, OperatorTime]:
        """Returns the oldest saved costs by operator; empty if none were saved."""
        return self._saved[0][1] if self._saved else {}


def rows(
    operators: Mapping[Key, OperatorTime], before: Mapping[Key, OperatorTime] | None = None
) -> list[RankRow]:
    """Returns a row for every operator that has run, with its cost since ``before``.

    Without ``before`` the cost since the start counts.

    Examples
    --------
    >>> rows({})
    []
    """
    spent = []
    for key, operator in operators.items():
        recent = operator.since((before or {}).get(key))
        average_ms = recent.average_ms if recent.runs > 0 else 0.0  # a median: computed once
        if average_ms > 0:
            spent.append((key, recent, average_ms))
    sum_ms = sum(average_ms * recent.runs for _, recent, average_ms in spent)
    return [_row(key, recent, average_ms, sum_ms) for key, recent, average_ms in spent]


def _row(key: Key, time: OperatorTime, average_ms: float, sum_ms: float) -> RankRow:
    # work per ms, times 1000 ms, over 1e9
    per_second = 1e-6 / average_ms if average_ms > 0 else 0.0
    return RankRow(
        key=key,
        network=time.network,
        title=f"{time.title} {time.part}".rstrip(),
        share=average_ms * time.runs / sum_ms,
        total_ms=average_ms * time.runs,
        runs=time.runs,
        average_ms=average_ms,
        error=time.error,
        gflops=time.flops * per_second,
        gbytes=time.bytes * per_second,
        is_measured=time.is_measured,
    )


def ordered(ranked: Sequence[RankRow], value: str, descending: bool) -> list[RankRow]:
    """Returns the rows sorted by the value of this name, equal rows by name."""
    by_name = sorted(ranked, key=lambda row: row.name)
    return sorted(by_name, key=lambda row: getattr(row, value), reverse=descending)
