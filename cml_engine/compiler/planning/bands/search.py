"""Searches for the runs and numbers of bands that keep a memory limit with the least repeated work.

The memory of each candidate is estimated; the plan made from it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

import numpy as np

from cml_engine.compiler.planning.bands.estimates import Bounds, Estimates
from cml_engine.compiler.planning.bands.memory_usage import MemoryUsage
from cml_engine.compiler.planning.bands.run import OperatorRun
from cml_engine.compiler.planning.bands.run_facts import COUNTS, RunFacts
from cml_engine.ir.graph import Array

#: the most dispatches in bands, beyond which planning takes too long, and the number of bands
#: that is always allowed
_MOST_DISPATCHES, _FEWEST = 4096, 4


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run with its number of bands, and the estimated bytes at its fullest step."""

    run: OperatorRun
    count: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class BandPath:
    """A partition of the graph into runs in bands and single nodes.

    ``runs`` are in execution order. ``nbytes`` is the estimated bytes at its fullest step.
    ``work`` is the value that the search minimized: the repeated work for
    :meth:`BandSearch.cheapest`, bytes for :meth:`BandSearch.smallest`.
    """

    runs: tuple[ChosenRun, ...]
    nbytes: float
    work: float


@dataclass
class BandSearch:
    """A search for the runs of a graph to compute in bands, by dynamic programming over its nodes.

    ``plain`` is the memory usage of nodes outside of bands. ``thinnest`` has, by node number,
    the fewest rows with which a band can use the same kernel as the whole node.
    """

    facts: RunFacts
    plain: MemoryUsage
    thinnest: dict[int, int] = field(default_factory=dict)

    def cheapest(self, bounds: Bounds) -> BandPath | None:
        """Returns the path with the least repeated work within the bounds, or None if there is
        none."""
        most = self._most_bands(bounds.total)
        return self._best(bounds, most, lambda nbytes, work: work, np.add)

    def smallest(self, bounds: Bounds) -> BandPath | None:
        """Returns the path whose fullest step takes the fewest bytes, or None if there is none.

        It ignores ``bounds.total``.
        """
        found, most = None, float(COUNTS[-1])
        for _ in range(2):  # the first round finds the nodes that are in bands
            tensors = replace(bounds, total=inf)
            found = self._best(tensors, most, lambda nbytes, work: nbytes, np.maximum)
            most = 0.0 if found is None else self._most_bands(found.nbytes)
        return found

    def _most_bands(self, total: float) -> float:
        """Returns the largest number of bands per run that keeps the number of dispatches low.

        ``total`` is the memory limit in bytes, which decides the nodes that must be in bands.
        """
        facts, dispatches = self.facts, 0
        for k, (first, end) in enumerate(facts.usage.steps):
            if self.plain.of_node(k) > total:
                dispatches += ceil((end - first) / facts.rounds[k])
        return max(_FEWEST, _MOST_DISPATCHES / max(dispatches, 1))

    def find_excess(self, bounds: Bounds) -> list[int]:
        """Returns the numbers of the nodes that exceed the bounds without bands, or that the
        caller requested in bands."""
        return [k for k in range(len(self.facts.chart.graph.nodes)) if not self._holds(k, bounds)]

    def _holds(self, k: int, bounds: Bounds) -> bool:
        plain = self.plain
        held = plain.of_node(k) <= bounds.total and plain.largest_of_node(k) <= bounds.tensor
        return held and k not in self.facts.requested

    def _best(
        self,
        bounds: Bounds,
        most: float,
        value: Callable[[Array, Array], Array],
        join: Callable[[Any, Any], Any],
    ) -> BandPath | None:
        """Returns the path with the least value and at most ``most`` bands per run, or None if none
        is possible.

        ``value`` gives the value of a run from its bytes and work; ``join`` combines two values.
        Requested numbers of bands may exceed ``most``.
        """
        few = (self.facts.counts <= most) | np.isin(
            self.facts.counts, list(self.facts.requested.values())
        )
        count = len(self.facts.chart.graph.nodes)
        best = np.full(count + 1, inf)
        best[count] = 0.0
        taken: dict[int, ChosenRun] = {}
        for begin, nbytes, work in Estimates(self.facts, bounds, self.thinnest).by_begin():
            if self._holds(begin, bounds):
                own = value(np.array(float(self.plain.of_node(begin))), np.zeros(()))
                best[begin] = join(own, best[begin + 1])
            if not len(nbytes):
                continue
            behind = best[begin + 1 : begin + 1 + len(nbytes), None]
            possible = few & (nbytes <= bounds.total) & (nbytes < inf)
            found = np.where(possible, join(value(nbytes, work), behind), inf)
            at, column = np.unravel_index(found.argmin(), found.shape)
            if found[at, column] < best[begin]:
                best[begin] = found[at, column]
                run = OperatorRun(self.facts.chart, begin, begin + 1 + int(at))
                taken[begin] = ChosenRun(
                    run, int(self.facts.counts[column]), float(nbytes[at, column])
                )
        return None if best[0] == inf else self._path(taken, float(best[0]))

    def _path(self, taken: Mapping[int, ChosenRun], work: float) -> BandPath:
        runs, fullest, at = [], 0.0, 0
        while at < len(self.facts.chart.graph.nodes):
            chosen = taken.get(at)
            if chosen is None:
                fullest, at = max(fullest, self.plain.of_node(at)), at + 1
            else:
                runs.append(chosen)
                fullest, at = max(fullest, chosen.nbytes), chosen.run.end
        return BandPath(tuple(runs), fullest, work)
