"""Which operators are computed in bands, and in how many, so that memory has a limit: those that
compute the least twice. What takes how much is estimated; the plan that is made of it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

import numpy as np

from cml_engine.compiler.planning.bands.estimates import Bounds, Estimates
from cml_engine.compiler.planning.bands.facts import COUNTS, RunFacts
from cml_engine.compiler.planning.bands.run import Run
from cml_engine.compiler.planning.bands.usage import Usage
from cml_engine.ir.graph import Array

#: of operators in bands: a plan of more takes longer to make than anybody waits; and how many bands
#: there may be all the same
_MOST_DISPATCHES, _FEWEST = 4096, 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """A run in a number of bands, and the bytes at its fullest step as estimated."""

    run: Run
    count: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Path:
    """A way through the graph: its runs, the bytes at its fullest step, and its additional work."""

    runs: tuple[Chosen, ...]
    nbytes: float
    work: float


@dataclass
class Search:
    """Over a graph that takes more than it may. ``plain`` is the usage of nodes that stay as they
    are. ``thinnest``: by node, the fewest rows for which it has the kernels of the whole."""

    facts: RunFacts
    plain: Usage
    thinnest: dict[int, int] = field(default_factory=dict)

    def cheapest(self, bounds: Bounds) -> Path | None:
        """The way with the least work on which all is within the bounds; None if there is none."""
        most = self._most_bands(bounds.total)
        return self._best(bounds, most, lambda nbytes, work: work, np.add)

    def smallest(self, bounds: Bounds) -> Path | None:
        """The way whose fullest step takes the fewest bytes that bands can reach."""
        found, most = None, float(COUNTS[-1])
        for _ in range(2):  # the first tells which nodes are in bands
            tensors = replace(bounds, total=inf)
            found = self._best(tensors, most, lambda nbytes, work: nbytes, np.maximum)
            most = 0.0 if found is None else self._most_bands(found.nbytes)
        return found

    def _most_bands(self, total: float) -> float:
        """In how many bands the nodes that take more than that may be."""
        facts, dispatches = self.facts, 0
        for k, (first, end) in enumerate(facts.usage.steps):
            if self.plain.of_node(k) > total:
                dispatches += ceil((end - first) / facts.rounds[k])
        return max(_FEWEST, _MOST_DISPATCHES / max(dispatches, 1))

    def too_much(self, bounds: Bounds) -> list[int]:
        """The nodes that take more than the bounds, or that are to be in bands."""
        return [k for k in range(len(self.facts.chart.graph.nodes)) if not self._holds(k, bounds)]

    def _holds(self, k: int, bounds: Bounds) -> bool:
        plain = self.plain
        held = plain.of_node(k) <= bounds.total and plain.largest_of_node(k) <= bounds.tensor
        return held and k not in self.facts.asked

    def _best(
        self,
        bounds: Bounds,
        most: float,
        value: Callable[[Array, Array], Array],
        join: Callable[[Any, Any], Any],
    ) -> Path | None:
        """The way of the least value from the first node to the last, in at most so many bands;
        ``join`` makes the value of two parts of a way that of both."""
        few = (self.facts.counts <= most) | np.isin(
            self.facts.counts, list(self.facts.asked.values())
        )
        count = len(self.facts.chart.graph.nodes)
        best = np.full(count + 1, inf)
        best[count] = 0.0
        taken: dict[int, Chosen] = {}
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
                run = Run(self.facts.chart, begin, begin + 1 + int(at))
                taken[begin] = Chosen(
                    run, int(self.facts.counts[column]), float(nbytes[at, column])
                )
        return None if best[0] == inf else self._path(taken, float(best[0]))

    def _path(self, taken: Mapping[int, Chosen], work: float) -> Path:
        runs, fullest, at = [], 0.0, 0
        while at < len(self.facts.chart.graph.nodes):
            chosen = taken.get(at)
            if chosen is None:
                fullest, at = max(fullest, self.plain.of_node(at)), at + 1
            else:
                runs.append(chosen)
                fullest, at = max(fullest, chosen.nbytes), chosen.run.end
        return Path(tuple(runs), fullest, work)
