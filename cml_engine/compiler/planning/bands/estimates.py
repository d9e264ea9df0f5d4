"""Estimates the memory and the work of runs of operators in bands.

The rows that a band needs of a tensor are a linear function of the rows of its readers. One pass
over the nodes, from the last to the first, therefore estimates every run with every number of
bands: a run that begins at a node follows from the runs that begin at the next node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from cml_engine.compiler.planning.bands.graph_rows import RowRule
from cml_engine.compiler.planning.bands.memory_usage import FLOPS_PER_BYTE
from cml_engine.compiler.planning.bands.run_facts import LiveItem, RowWindow, RunFacts
from cml_engine.compiler.planning.plan_memory import Lifetime
from cml_engine.ir.graph import Array

#: the number of operations that take as long as one dispatch
_FLOPS_PER_DISPATCH = 1e6
#: the most nodes of a run: in longer runs the halo is most of a band
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory limits in bytes: ``total`` for all tensors alive at one step, ``tensor`` for each
    tensor."""

    total: float
    tensor: float


class Estimates:
    """Estimates the memory and the work of all runs of nodes in bands.

    ``by_begin`` yields, for each node from the last to the first, the bytes and the repeated
    work of the runs that begin with it. Arrays have a row for each end of a run, from one node
    behind its first, and a column for each number of bands.
    """

    def __init__(self, facts: RunFacts, bounds: Bounds, thinnest: Mapping[int, int]) -> None:
        self.facts, self.usage, self.bounds, self.thinnest = facts, facts.usage, bounds, thinnest
        self.nodes = facts.chart.graph.nodes
        self.size = min(_LONGEST, len(self.nodes))
        shape = self.size, len(facts.counts)
        self.zeros = np.zeros(shape)
        #: the bytes of bands at their fullest step, and the extra work
        self.peak, self.work = np.zeros(shape), np.zeros(shape)
        #: the bytes of whole tensors that bands replace, and the number that are too large
        self.inside, self.large_inside = np.zeros(self.size), np.zeros(self.size)
        #: the most bands of each run, and a mask of impossible combinations
        self.most = np.full(self.size, inf)
        self.refused = np.zeros(shape, bool)
        #: the rows of each node, and the bytes of bands alive at each dispatch
        self.rows: dict[int, Array] = {}
        self.alive: dict[int, Array] = {}
        #: the reads of each node from tensors before the run
        self.from_before: dict[int, list[RowWindow]] = {}

    def by_begin(self) -> Iterator[tuple[int, Array, Array]]:
        facts, end = self.facts, len(self.nodes)
        limits: dict[int, int] = {}
        for k, first in enumerate(facts.first_begin):
            limits.setdefault(first, k)
        for begin in range(len(self.nodes) - 1, -1, -1):
            end = min(end, limits.get(begin, end))
            if begin in facts.requested:
                end = begin + 1
            self._shift()
            if begin + self.size < len(self.nodes):
                self._forget(begin + self.size)
            if not facts.is_small[begin]:
                self._add(begin)
            count = min(end - begin, self.size)
            nbytes = self._bytes(begin, count)
            yield begin, np.where(self._refused(begin, count), inf, nbytes), self.work[:count]

    def _shift(self) -> None:
        for array, new in ((self.peak, 0), (self.work, 0), (self.inside, 0), (self.refused, False),
                           (self.large_inside, 0), (self.most, inf)):  # fmt: skip
            array[1:] = array[:-1].copy()
            array[0] = new

    def _refused(self, begin: int, count: int) -> Array:
        most = self.most[:count, None]
        too_many = (self.facts.counts > most) | (most == inf)  # inf means that nothing is in bands
        refused = self.refused[:count] | ~self.facts.allowed[begin : begin + count]
        return np.asarray(refused | too_many)

    def _bytes(self, begin: int, count: int) -> Array:
        """Returns the bytes alive at the fullest step of the ``count`` shortest runs that begin
        with node ``begin``.

        They are the bytes of the bands and of the tensors beside them; infinity if a tensor
        beside them is too large.
        """
        first = self.usage.steps[begin][0]
        ends = [end for _, end in self.usage.steps[begin : begin + count]]
        beside = self._begun[ends] - self._ended[first] - self.inside[:count]
        large = self._large_begun[ends] - self._large_ended[first] - self.large_inside[:count]
        nbytes = beside[:, None] + self._peak(begin)[:count]
        return np.where(large[:, None] > 0, inf, nbytes)

    @cached_property
    def _begun(self) -> Array:
        return self._sums([i.first for i in self.usage.items], [i.nbytes for i in self.usage.items])

    @cached_property
    def _ended(self) -> Array:
        return self._sums([i.last for i in self.usage.items], [i.nbytes for i in self.usage.items])

    @cached_property
    def _large_begun(self) -> Array:
        return self._sums([i.first for i in self._large], [1] * len(self._large))

    @cached_property
    def _large_ended(self) -> Array:
        return self._sums([i.last for i in self._large], [1] * len(self._large))

    @cached_property
    def _large(self) -> list[Lifetime]:
        return [i for i in self.usage.items if i.nbytes > self.bounds.tensor]

    def _sums(self, steps: list[int], values: list[int]) -> Array:
        """Returns an array with, for each step, the sum of the values of earlier steps.

        ``steps`` has the step of each value.
        """
        found = np.zeros(len(self.facts.node_of) + 2)
        np.add.at(found, np.array(steps, int) + 1, values)
        return np.cumsum(found)

    def _add(self, k: int) -> None:
        """Extends the estimates of all runs by node ``k``, which becomes their first node."""
        facts = self.facts
        rule = facts.chart.rules[k]
        assert rule is not None
        is_result = np.arange(1, self.size + 1) + k <= facts.last_read[k]
        rows = self.rows[k] = self._rows(k, rule, is_result)
        self.refused |= rows < self.thinnest.get(k, 0)
        units = -(-rule.extent // rule.rows.step)
        self.most = np.where(is_result, np.minimum(self.most, units), self.most)
        twice = np.minimum((facts.counts - 1) * rows + rule.extent / facts.counts,
                           facts.counts * rule.extent)  # fmt: skip
        self.work += self.usage.node_work[k] * (twice / rule.extent - 1)
        first, end = self.usage.steps[k]
        self.work += _FLOPS_PER_DISPATCH * (end - first) * (facts.counts - 1)
        copied = sum(map(self.usage.nbytes, self.nodes[k].outputs))
        self.work += np.where(is_result, 2.0 * FLOPS_PER_BYTE * copied, 0.0)[:, None]
        for item in facts.items.get(k, ()):
            self._add_item(k, item)
        self._add_slices(k, rule)
        self.from_before[k] = facts.reads[k]

    def _forget(self, k: int) -> None:
        """Drops the data of node ``k``, which is too far behind to be in any run from now on."""
        self.rows.pop(k, None)
        self.from_before.pop(k, None)
        for step in range(*self.usage.steps[k]):
            self.alive.pop(step, None)

    def _rows(self, k: int, rule: RowRule, is_result: Array) -> Array:
        """Returns the rows of its result that node ``k`` computes in one band, by the end of the
        run and the number of bands.

        ``is_result`` marks the run ends for which the result is read after the run.
        """
        step, extent, counts = rule.rows.step, rule.extent, self.facts.counts
        rows = np.zeros_like(self.zeros)
        for reader, read in self.facts.readers[k]:
            behind = reader - k
            if behind < self.size and reader in self.rows:
                wanted = read.rows(self.rows[reader][: self.size - behind], step)
                np.maximum(rows[behind:], wanted, out=rows[behind:])
        share = np.ceil(-(-extent // step) / counts) * step
        rows = np.where(is_result[:, None], np.maximum(rows, share), rows)
        return np.minimum(rows, extent)

    def _add_item(self, k: int, item: LiveItem) -> None:
        """Adds the bytes of a tensor that node ``k`` is the first to use to the estimates of the
        runs."""
        facts, life = self.facts, item.life
        rule, after = facts.chart.rules[item.maker], item.maker - k
        if rule is None or after >= self.size or item.maker not in self.rows:
            return
        share = np.zeros_like(self.zeros)
        share[after:] = self.rows[item.maker][: self.size - after] / rule.extent
        all_rows = item.rounds * life.nbytes if item.is_scratch else life.nbytes
        nbytes = self._rounded(np.minimum(share * all_rows, life.nbytes))
        self.refused |= nbytes > self.bounds.tensor
        in_one = share * item.rounds <= 1
        self._add_uses(k, item.maker, item.touched_once, np.where(in_one, nbytes, 0.0))
        if item.rounds > 1:
            self._add_uses(k, item.maker, item.touched, np.where(in_one, 0.0, nbytes))
        last = item.touched[-1]
        if (life.first, life.last) == (item.touched[0], last):
            self.inside[facts.node_of[life.last] - k :] += life.nbytes
            if life.nbytes > self.bounds.tensor:
                self.large_inside[facts.node_of[life.last] - k :] += 1

    def _add_uses(self, k: int, maker: int, uses: list[int], nbytes: Array) -> None:
        """Adds the bytes of one band of a tensor to the dispatches from its first use to its last
        use within the run.

        A part that lies in the tensor it is joined to is alive until the dispatch before the
        join only.
        """
        last = self.facts.node_of[uses[-1]]
        if len(uses) > 1 and self.facts.is_joined[last]:
            within = self._is_within(k, maker, last)
            self._add_lives(k, uses[:-1], np.where(within, nbytes, 0.0))
            nbytes = np.where(within, 0.0, nbytes)
        self._add_lives(k, uses, nbytes)

    def _is_within(self, k: int, maker: int, join: int) -> Array:
        """Returns a mask of the runs in which node ``join`` joins all rows of the result of
        ``maker``.

        In these runs the result lies in the joined tensor and takes no memory of its own at the
        join.
        """
        found, behind = np.zeros_like(self.refused), join - k
        if behind < self.size and join in self.rows:
            wanted = [read.rows(self.rows[join][: self.size - behind])
                      for reader, read in self.facts.readers[maker] if reader == join]  # fmt: skip
            rows = self.rows[maker][join - maker :][: self.size - behind]
            found[behind:] = np.all([w >= rows for w in wanted], 0)
        return found

    def _add_lives(self, k: int, uses: list[int], nbytes: Array) -> None:
        following = iter(uses)
        use = next(following)
        for step in range(uses[0], uses[-1] + 1):
            if step > use:
                use = next(following)
            if not self._add_alive(k, step, self.facts.node_of[use] - k, nbytes):
                break

    def _add_alive(self, k: int, step: int, behind: int, nbytes: Array) -> bool:
        """Adds bytes of bands at dispatch ``step``, for runs that end more than ``behind`` nodes
        after node ``k``.

        Updates the peaks of these runs. Returns False if no run is long enough.
        """
        if behind >= self.size:
            return False
        shift = self.facts.node_of[step] - k
        alive = self.alive.setdefault(step, np.zeros_like(self.zeros))
        alive = alive[behind - shift : self.size - shift]
        alive += nbytes[behind:]
        np.maximum(self.peak[behind:], alive, out=self.peak[behind:])
        return True

    def _add_slices(self, k: int, rule: RowRule) -> None:
        """Adds the bytes of copies of some rows of node ``k``'s result, for readers that need
        fewer rows than others."""
        row = sum(map(self.usage.nbytes, self.nodes[k].outputs)) / rule.extent
        for reader, read in self.facts.readers[k]:
            behind = reader - k
            if behind >= self.size or reader not in self.rows or self.facts.is_joined[reader]:
                continue
            wanted = read.rows(self.rows[reader][: self.size - behind])
            nbytes = np.zeros_like(self.zeros)
            fewer = wanted < self.rows[k][behind:]
            nbytes[behind:] = np.where(fewer, self._rounded(wanted * row), 0.0)
            if fewer.any():
                for step in range(*self.usage.steps[reader]):
                    self._add_alive(k, step, behind, nbytes)

    def _peak(self, begin: int) -> Array:
        """Returns the peak bytes of bands of the runs that begin with node ``begin``.

        They include copies of some rows of the runs' inputs, which are counted only here.
        """
        facts, peak = self.facts, self.peak.copy()
        for k, reads in self.from_before.items():
            behind = k - begin
            own = self.rows[k][: self.size - behind]
            nbytes = np.zeros_like(own)
            for read in reads:
                maker = facts.makers.get(read.name, -1)
                if maker >= begin and not facts.is_small[maker]:
                    continue
                extent = self._extent(read.name, k)
                if facts.is_joined[k]:
                    continue  # the copies are parts of the result
                rows = np.minimum(read.rows(own), extent)
                size = self.usage.nbytes(read.name) / extent
                nbytes = nbytes + np.where(rows < extent, self._rounded(rows * size), 0.0)
            for step in range(*self.usage.steps[k]):
                if step in self.alive:
                    alive = self.alive[step][: self.size - behind] + nbytes
                    np.maximum(peak[behind:], alive, out=peak[behind:])
        return peak

    def _extent(self, name: str, reader: int) -> int:
        rule = self.facts.chart.rules[reader]
        assert rule is not None
        return self.usage.graph.facts[name].shape[rule.axis]

    def _rounded(self, nbytes: Array) -> Array:
        return np.ceil(nbytes / self.usage.align) * self.usage.align
