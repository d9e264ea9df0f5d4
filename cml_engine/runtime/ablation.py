"""Measures an operator's end-to-end cost by replacing it with a stub that computes nothing.

The rank-operations report times every step separately. Here whole runs are timed, which includes
the operator's effect on its neighbours (caches, overlap).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.registry import lookup


@dataclass(frozen=True)
class AblationReport:
    """The times in ms of a network with and without an operator, as medians over runs.

    ``gain_ms`` is the median of the differences of consecutive runs.
    """

    model: str
    operator: str
    count: int
    device: str
    clock: str
    runs: int
    with_ms: float
    without_ms: float
    gain_ms: float
    with_spread_ms: tuple[float, float]
    without_spread_ms: tuple[float, float]

    @classmethod
    def of(
        cls, graph: Graph, operator: str, device: str, clock: str, times: Sequence[Sequence[float]]
    ) -> AblationReport:
        """Returns a report of ``times`` in ms, ``[runs, (with, without)]``, with their medians."""
        both = np.asarray(times, np.float64)
        medians = np.median(both, axis=0)
        low, high = both.min(axis=0), both.max(axis=0)
        return cls(
            model=graph.name,
            operator=operator,
            count=count_uses(graph, operator),
            device=device,
            clock=clock,
            runs=len(both),
            with_ms=float(medians[0]),
            without_ms=float(medians[1]),
            gain_ms=float(np.median(both[:, 0] - both[:, 1])),
            with_spread_ms=(float(low[0]), float(high[0])),
            without_spread_ms=(float(low[1]), float(high[1])),
        )

    @property
    def share(self) -> float:
        """The operator's share of the network's time: ``gain_ms`` in percent of ``with_ms``."""
        return 100 * self.gain_ms / self.with_ms if self.with_ms else 0.0

    def __str__(self) -> str:
        def line(label: str, ms: float, spread: tuple[float, float]) -> str:
            return f"  {label:24s} {ms:9.3f} ms   ({spread[0]:.3f} to {spread[1]:.3f} ms)"

        return "\n".join(
            [
                f"{self.model}: {self.operator} ({self.count} of them) replaced by a stub that "
                "computes nothing",
                f"Device: {self.device}; clock: {self.clock}, whole runs, {self.runs} of each in "
                "turns, medians",
                line(f"with {self.operator}", self.with_ms, self.with_spread_ms),
                line(f"without {self.operator}", self.without_ms, self.without_spread_ms),
                f"  {'the most to be gained':24s} {self.gain_ms:9.3f} ms   ({self.share:.1f} %)",
            ]
        )

    def json(self) -> str:
        """Returns the report as the text of a JSON object."""
        return json.dumps({**asdict(self), "share": self.share}, indent=2)

    def csv(self) -> str:
        """Returns the report as CSV text: a header and one row."""
        fields = ("operator", "count", "with_ms", "without_ms", "gain_ms", "share")
        return ",".join(fields) + "\n" + ",".join(str(getattr(self, f)) for f in fields)


def count_uses(graph: Graph, operator: str) -> int:
    """Returns the number of uses of the operator in the network, including fused ones."""
    return sum((node.op, *(e.op for e in node.epilogues)).count(operator) for node in graph.nodes)


def check_operator(graph: Graph, operator: str) -> None:
    """Raises :class:`InputError` if the operator is not in the graph or runs nothing on the GPU."""
    names = {op for node in graph.nodes for op in (node.op, *(e.op for e in node.epilogues))}
    if operator not in names:
        raise InputError(
            f"no operator '{operator}' in model '{graph.name}'; it has {', '.join(sorted(names))}"
        )
    if lookup(operator).alias:
        raise InputError(f"'{operator}' runs nothing on the GPU: there is nothing to replace")


def time_interleaved(runs: int, *timers: Callable[[], Any]) -> list[list[float]]:
    """Calls timers in alternating order and returns their milliseconds, ``[runs, timers]``.

    A timer is a function that measures one run and returns its milliseconds. Each is called once
    before as a warm-up.

    Examples
    --------
    >>> def run_once() -> float:
    ...     return 0.5  # milliseconds
    >>> time_interleaved(2, run_once, run_once)
    [[0.5, 0.5], [0.5, 0.5]]
    """
    for timer in timers:
        timer()
    found = []
    for run in range(runs):
        order = range(len(timers)) if run % 2 == 0 else reversed(range(len(timers)))
        times = {i: float(timers[i]()) for i in order}
        found.append([times[i] for i in range(len(timers))])
    return found
