"""Ranks operators by cost, since the start or in the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cml_engine.tools.panel.operators import Key, OperatorTime

#: the length of "the last seconds", and the interval between saved sums
WINDOW_S = 5.0
_KEEP_EVERY_S = 0.5
_COLUMNS = ("name", "share", "total_ms", "runs", "average_ms", "error", "gflops", "gbytes")


@dataclass(frozen=True, slots=True)
class RankRow:
    """One operator's row in the ranking: its time, share, prediction error and rates.

    ``share`` is its share of all GPU time for networks; ``error`` is predicted over measured time
    minus 1; ``gflops`` and ``gbytes`` are per second. Unknown values are 0.

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

    @property
    def name(self) -> str:
        """The network's name and the operator's title, with a space between them."""
        return f"{self.network} {self.title}"


@dataclass(frozen=True, slots=True)
class Best:
    """The highest rates of any operator, with which the others are compared."""

    gflops: float = 0.0
    gbytes: float = 0.0

    def raised(self, rows: Sequence[RankRow]) -> Best:
        """Returns the higher of these rates and the highest rates among the rows."""
        return Best(
            max([self.gflops, *(row.gflops for row in rows)]),
            max([self.gbytes, *(row.gbytes for row in rows)]),
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """The accumulated times and runs of an operator at some moment."""

    total_ms: float = 0.0
    predicted_ms: float = 0.0
    runs: float = 0.0


_NOTHING = Sums()


class RecentSums:
    """Remembers the operators' accumulated costs of about :data:`WINDOW_S` seconds ago."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, dict[Key, Sums]]] = deque()

    def keep(self, now_s: float, operators: Mapping[Key, OperatorTime]) -> None:
        """Saves the operators' current sums if the last saved ones are old enough.

        Sums that are no longer needed are dropped.
        """
        if self._kept and now_s - self._kept[-1][0] < _KEEP_EVERY_S:
            return
        sums = {k: Sums(o.total_ms, o.predicted_ms, o.runs) for k, o in operators.items()}
        self._kept.append((now_s, sums))
        while len(self._kept) > 1 and now_s - self._kept[1][0] >= WINDOW_S:
            self._kept.popleft()

    def before(self) -> Mapping[Key, Sums]:
        """Returns the oldest saved sums by operator; empty if none were saved."""
        return self._kept[0][1] if self._kept else {}


def rows(
    operators: Mapping[Key, OperatorTime], before: Mapping[Key, Sums] | None = None
) -> list[RankRow]:
    """Returns a row for every operator that has run, with its cost since ``before``.

    Without ``before`` the cost since the start counts.

    Examples
    --------
    >>> rows({})
    []
    """
    spent = {}
    for key, operator in operators.items():
        past = (before or {}).get(key, _NOTHING)
        since = Sums(
            operator.total_ms - past.total_ms,
            operator.predicted_ms - past.predicted_ms,
            operator.runs - past.runs,
        )
        if since.total_ms > 0:
            spent[key] = since
    whole = sum(sums.total_ms for sums in spent.values())
    return [_row(operators[key], sums, whole) for key, sums in spent.items()]


def _row(operator: OperatorTime, sums: Sums, whole_ms: float) -> RankRow:
    average_ms = sums.total_ms / sums.runs if sums.runs > 0 else 0.0
    # work per ms, times 1000 ms, over 1e9
    per_second = 1e-6 / average_ms if average_ms > 0 else 0.0
    return RankRow(
        key=(operator.network, operator.step),
        network=operator.network,
        title=operator.title,
        share=sums.total_ms / whole_ms,
        total_ms=sums.total_ms,
        runs=sums.runs,
        average_ms=average_ms,
        error=sums.predicted_ms / sums.total_ms - 1,
        gflops=operator.flops * per_second,
        gbytes=operator.bytes * per_second,
    )


def ordered(found: Sequence[RankRow], column: int, descending: bool) -> list[RankRow]:
    """Returns the rows sorted by the table's column number ``column``, equal rows by name."""
    name = _COLUMNS[column]
    by_name = sorted(found, key=lambda row: row.name)
    return sorted(by_name, key=lambda row: getattr(row, name), reverse=descending)
