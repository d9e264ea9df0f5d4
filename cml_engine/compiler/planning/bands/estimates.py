"""Estimates the memory and the work of runs of operators in bands.

The rows that a band needs of a tensor are a linear function of the rows of its readers. One pass
over the nodes, from the last to the first, therefore estimates every run with every number of
bands: a run that begins at a node follows from the runs that begin at the next node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, inf

import numpy as np

from cml_engine.compiler.planning.bands.rewrite import GraphRows, RowRule
from cml_engine.compiler.planning.draft import Draft
from cml_engine.compiler.planning.memory import (
    Lifetime,
    Views,
    live_bytes,
    merge_lifetimes,
    resolve_view,
    rounded_up,
)
from cml_engine.ir.graph import Array
from cml_engine.ops.declaration.registry import lookup

#: the number of operations that take as long as one byte of memory traffic
FLOPS_PER_BYTE = 16


class MemoryUsage:
    """The memory and the work of each node of a drafted graph without bands.

    Parts of tensors that are ``views`` take no memory of their own.
    """

    def __init__(self, draft: Draft, views: Views) -> None:
        self.draft, self.graph, self.views = draft, draft.graph, views
        self.items = rounded_up(merge_lifetimes(draft.lifetimes, views), draft.align)

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """For each node, the numbers of its first dispatch and of the dispatch after its last."""
        counts = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0)
        for node, *_ in self.draft.lowered.dispatches:
            counts[node.outputs[0]] += 1
        ends = list(accumulate(counts.values()))
        return [(end - n, end) for end, n in zip(ends, counts.values(), strict=True)]

    @cached_property
    def _alive(self) -> tuple[Array, int]:
        return live_bytes(self.items)

    def of_node(self, k: int) -> int:
        """Returns the bytes alive at the fullest dispatch of node ``k``; 0 if it has none."""
        alive, begin = self._alive
        first, end = (max(step - begin, 0) for step in self.steps[k])
        return int(alive[first:end].max(initial=0))

    def largest_of_node(self, k: int) -> int:
        """Returns the bytes of the largest tensor alive while node ``k`` is computed; 0 if it
        has no dispatch."""
        first, end = self.steps[k]
        lives = (i.nbytes for i in self.items if i.first < end and first <= i.last)
        return max(lives, default=0) if end > first else 0

    @cached_property
    def node_work(self) -> list[float]:
        """The work of each node in operations; its memory traffic is converted to operations."""
        by_node = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0.0)
        for node, _, _, cost in self.draft.lowered.dispatches:
            by_node[node.outputs[0]] += cost.flops + FLOPS_PER_BYTE * cost.bytes
        return list(by_node.values())


# -- run facts ------------------------------------------------------------------------------------

#: the numbers of bands that are considered
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class RowWindow:
    """The rows that a node reads of tensor ``name``: ``slope * rows + halo`` for ``rows`` rows
    of its result."""

    name: str
    slope: float
    halo: float

    def rows(self, result_rows: Array, step: int = 1) -> Array:
        """Returns the rows read for ``result_rows`` rows of the result, rounded up to a multiple of
        ``step``; 0 for none.

        ``step`` is that of the node that computes the tensor. With a halo the rows may begin and
        end inside a step.
        """
        rows = np.ceil(self.slope * result_rows + self.halo)
        if step > 1:
            rows = np.ceil((rows + (step - 1 if self.halo > 0 else 0)) / step) * step
        return np.where(result_rows > 0, rows, 0.0)


@dataclass(frozen=True, slots=True)
class LiveItem:
    """A tensor in the arena, the node ``producer`` of its rows, and the dispatches that use it.

    A node may work in ``rounds`` that share the scratch memory of one round. ``touched`` has all
    dispatches, ``touched_once`` those of the last round only: if a band is one round, its
    tensors live no longer than that.
    """

    life: Lifetime
    producer: int
    touched: list[int]
    touched_once: list[int]
    rounds: float
    is_scratch: bool


@dataclass
class RunFacts:
    """The facts about a graph's nodes that a search for bands needs, by node number.

    ``requested`` maps the last node of a run to the number of bands that the caller requested
    for it.
    """

    chart: GraphRows
    usage: MemoryUsage
    requested: Mapping[int, int]

    @cached_property
    def counts(self) -> Array:
        return np.array(sorted({*COUNTS, *self.requested.values()}), np.float64)

    @cached_property
    def allowed(self) -> Array:
        """A mask of the allowed numbers of bands: a row for each last node of a run, a column
        for each of ``counts``."""
        mask = np.tile(np.isin(self.counts, COUNTS), (len(self.chart.graph.nodes), 1))
        for k, count in self.requested.items():
            mask[k] = self.counts == count
        return mask

    @cached_property
    def producers(self) -> dict[str, int]:
        nodes = self.chart.graph.nodes
        return {name: k for k, node in enumerate(nodes) for name in node.outputs}

    @cached_property
    def reads(self) -> list[list[RowWindow]]:
        """For each node, the rows that it reads of its operands; empty for nodes without rows."""
        return [[] if rule is None else _reads_of(rule) for rule in self.chart.rules]

    @cached_property
    def first_begin(self) -> list[int]:
        """For each node, the number of the last node that a run containing it must not contain;
        -1 if there is none."""
        origin: list[int] = []
        barriers: list[int] = []
        for k, (node, rule) in enumerate(
            zip(self.chart.graph.nodes, self.chart.rules, strict=True)
        ):
            origins = {
                name: origin[self.producers[name]] for name in node.reads if name in self.producers
            }
            if rule is None:
                barriers.append(max(origins.values(), default=-1))
                origin.append(barriers[-1])
                continue
            reads = rule.for_rows(0, rule.extent).reads
            unaligned = (
                origins[read.name]
                for read in reads
                if read.name in origins
                and (read.span is None or read.axis != self.chart.axes[read.name])
            )
            barriers.append(max(unaligned, default=-1))
            origin.append(k)
        return barriers

    @cached_property
    def readers(self) -> list[list[tuple[int, RowWindow]]]:
        """For each node, the numbers of the nodes that read its result by rows, and the rows
        that they read."""
        by_producer: list[list[tuple[int, RowWindow]]] = [[] for _ in self.reads]
        for k, reads in enumerate(self.reads):
            for read in reads:
                if read.name in self.producers:
                    by_producer[self.producers[read.name]].append((k, read))
        return by_producer

    @cached_property
    def last_read(self) -> list[int]:
        """For each node, the number of its last reader: -1 for none, the number of nodes if a
        result is read after a run."""
        graph = self.chart.graph
        last_readers = [-1] * len(graph.nodes)
        for k, node in enumerate(graph.nodes):
            for name in node.reads:
                if name in self.producers:
                    last_readers[self.producers[name]] = k
        for name in graph.roots:
            if name in self.producers:
                last_readers[self.producers[name]] = len(graph.nodes)
        return last_readers

    @cached_property
    def items(self) -> dict[int, list[LiveItem]]:
        """The tensors in the arena except inputs, by the number of the node that first uses
        each."""
        usage = self.usage
        lives = {item.name: item for item in usage.items}
        touched: dict[str, list[int]] = {}
        alias = usage.draft.sharing.alias
        launches = usage.draft.lowered.dispatches
        for step, (_, _, dispatch, _) in enumerate(launches):
            for name in dict.fromkeys(dispatch.tensors):
                root, _ = resolve_view(usage.views, alias.get(name, name))
                if root in lives and (not touched.get(root) or touched[root][-1] != step):
                    touched.setdefault(root, []).append(step)
        rounds = self.rounds
        by_node: dict[int, list[LiveItem]] = {}
        for name, steps in touched.items():
            if name not in self.chart.graph.inputs:
                nodes = [self.node_of[step] for step in steps]
                last_round = [step for step in steps if self._is_last(step)]
                producer = max(self.producers.get(name, nodes[0]), nodes[0])
                n_rounds = max(rounds[k] for k in nodes)
                is_scratch = name not in self.producers
                item = LiveItem(lives[name], producer, steps, last_round, n_rounds, is_scratch)
                by_node.setdefault(nodes[0], []).append(item)
        return by_node

    def _is_last(self, step: int) -> bool:
        """Returns True if dispatch ``step`` is in the last round of its node."""
        k = self.node_of[step]
        first, end = self.usage.steps[k]
        return (end - step) * ceil(self.rounds[k]) <= end - first

    @cached_property
    def rounds(self) -> list[float]:
        """For each node, the number of times that it fills and reads its scratch memory; 1
        without scratch."""
        n_rounds = [1.0] * len(self.usage.steps)
        filled: dict[str, list[int]] = {}
        for _, _, dispatch, _ in self.usage.draft.lowered.dispatches:
            for name in self.usage.draft.lowered.scratch.keys() & set(dispatch.tensors):
                filled.setdefault(name, []).append(dispatch.groups)
        # dispatches that fill and read the scratch come in pairs
        for name, groups in filled.items():
            k = self.producers.get(name.rpartition(".scratch")[0])
            if k is not None:
                n_rounds[k] = max(n_rounds[k], sum(groups) / sum(groups[:2]))
        return n_rounds

    @cached_property
    def is_joined(self) -> list[bool]:
        """For each node, True if its operands may lie in its result, so that they take no memory
        of their own."""
        flags = []
        for node in self.chart.graph.nodes:
            parts = lookup(node.op).traits.parts
            fact = self.chart.graph.facts[node.outputs[0]]
            layout = self.usage.draft.layout(node.outputs[0])
            joins = parts is not None and parts.joined
            flags.append(bool(joins and parts and parts.place(node.attrs, fact, layout)))
        return flags

    @cached_property
    def node_of(self) -> list[int]:
        """The number of each dispatch's node, followed by the number of nodes."""
        node_numbers = [
            k for k, (first, end) in enumerate(self.usage.steps) for _ in range(first, end)
        ]
        return [*node_numbers, len(self.usage.steps)]


def _reads_of(rule: RowRule) -> list[RowWindow]:
    """Returns, for each operand that a node reads by rows, the rows read as a linear function of
    the result rows.

    The function is measured in the middle of the map, away from its borders.
    """
    step, extent = rule.rows.step, rule.extent
    n_large = max(extent // 2 // step, 2) * step
    n_small = max(n_large // 3 // step, 1) * step
    begin = max((extent - n_large) // 2 // step, 0) * step
    windows = []
    reads = [rule.for_rows(begin, min(begin + n, extent)).reads for n in (n_small, n_large)]
    for small, large in zip(*reads, strict=True):
        if small.span is None or large.span is None:
            continue
        rows = [float(read.span[1] - read.span[0]) for read in (small, large) if read.span]
        slope = (rows[1] - rows[0]) / (min(n_large, extent - begin) - n_small or 1)
        windows.append(RowWindow(small.name, slope, rows[0] - slope * n_small))
    return windows


# -- estimates ------------------------------------------------------------------------------------

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
        self.inside = np.zeros((self.size, 2))
        items = self.usage.items
        sizes = [self._sizes(item) for item in items]
        #: the same of all tensors that begin, or end, before each step
        self.begun = self._sums([item.first for item in items], sizes)
        self.ended = self._sums([item.last for item in items], sizes)
        #: the most bands of each run, and a mask of impossible combinations
        self.max_bands = np.full(self.size, inf)
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
            if facts.chart.rules[begin] is not None:
                self._add(begin)
            count = min(end - begin, self.size)
            nbytes = self._bytes(begin, count)
            yield begin, np.where(self._refused(begin, count), inf, nbytes), self.work[:count]

    def _shift(self) -> None:
        for array, new in ((self.peak, 0), (self.work, 0), (self.inside, 0), (self.refused, False),
                           (self.max_bands, inf)):  # fmt: skip
            array[1:] = array[:-1].copy()
            array[0] = new

    def _refused(self, begin: int, count: int) -> Array:
        max_bands = self.max_bands[:count, None]
        # infinity means that nothing is in bands
        too_many = (self.facts.counts > max_bands) | (max_bands == inf)
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
        other_bytes = self.begun[ends] - self.ended[first] - self.inside[:count]
        nbytes = other_bytes[:, :1] + self._peak(begin)[:count]
        return np.where(other_bytes[:, 1:] > 0, inf, nbytes)

    def _sizes(self, item: Lifetime) -> tuple[int, bool]:
        """Returns the bytes of a tensor, and True if they are too many for one tensor."""
        return item.nbytes, item.nbytes > self.bounds.tensor

    def _sums(self, steps: list[int], sizes: list[tuple[int, bool]]) -> Array:
        """Returns an array with, for each step, the sums of the ``sizes`` of earlier ``steps``."""
        sums = np.zeros((len(self.facts.node_of) + 2, 2))
        np.add.at(sums, np.array(steps, int) + 1, np.array(sizes).reshape(-1, 2))
        return np.cumsum(sums, 0)

    def _add(self, k: int) -> None:
        """Extends the estimates of all runs by node ``k``, which becomes their first node."""
        facts = self.facts
        rule = facts.chart.rules[k]
        assert rule is not None
        is_result = np.arange(1, self.size + 1) + k <= facts.last_read[k]
        rows = self.rows[k] = self._rows(k, rule, is_result)
        self.refused |= rows < self.thinnest.get(k, 0)
        units = -(-rule.extent // rule.rows.step)
        self.max_bands = np.where(is_result, np.minimum(self.max_bands, units), self.max_bands)
        computed_rows = np.minimum((facts.counts - 1) * rows + rule.extent / facts.counts,
                           facts.counts * rule.extent)  # fmt: skip
        self.work += self.usage.node_work[k] * (computed_rows / rule.extent - 1)
        first, end = self.usage.steps[k]
        self.work += _FLOPS_PER_DISPATCH * (end - first) * (facts.counts - 1)
        copied = sum(map(self.usage.draft.nbytes, self.nodes[k].outputs))
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
            distance = reader - k
            if distance < self.size and reader in self.rows:
                read_rows = read.rows(self.rows[reader][: self.size - distance], step)
                np.maximum(rows[distance:], read_rows, out=rows[distance:])
        share = np.ceil(-(-extent // step) / counts) * step
        rows = np.where(is_result[:, None], np.maximum(rows, share), rows)
        return np.minimum(rows, extent)

    def _add_item(self, k: int, item: LiveItem) -> None:
        """Adds the bytes of a tensor that node ``k`` is the first to use to the estimates of the
        runs."""
        facts, life = self.facts, item.life
        rule, distance = facts.chart.rules[item.producer], item.producer - k
        if rule is None or distance >= self.size or item.producer not in self.rows:
            return
        share = np.zeros_like(self.zeros)
        share[distance:] = self.rows[item.producer][: self.size - distance] / rule.extent
        all_rows = item.rounds * life.nbytes if item.is_scratch else life.nbytes
        nbytes = self._rounded(np.minimum(share * all_rows, life.nbytes))
        self.refused |= nbytes > self.bounds.tensor
        in_one = share * item.rounds <= 1
        self._add_uses(k, item.producer, item.touched_once, np.where(in_one, nbytes, 0.0))
        if item.rounds > 1:
            self._add_uses(k, item.producer, item.touched, np.where(in_one, 0.0, nbytes))
        last = item.touched[-1]
        if (life.first, life.last) == (item.touched[0], last):
            self.inside[facts.node_of[life.last] - k :] += self._sizes(life)

    def _add_uses(self, k: int, producer: int, uses: list[int], nbytes: Array) -> None:
        """Adds the bytes of one band of a tensor to the dispatches from its first use to its last
        use within the run.

        A part that lies in the tensor it is joined to is alive until the dispatch before the
        join only.
        """
        last = self.facts.node_of[uses[-1]]
        if len(uses) > 1 and self.facts.is_joined[last]:
            within = self._joins_all_rows(k, producer, last)
            self._add_lives(k, uses[:-1], np.where(within, nbytes, 0.0))
            nbytes = np.where(within, 0.0, nbytes)
        self._add_lives(k, uses, nbytes)

    def _joins_all_rows(self, k: int, producer: int, join: int) -> Array:
        """Returns a mask of the runs in which node ``join`` joins all rows of the result of
        ``producer``.

        In these runs the result lies in the joined tensor and takes no memory of its own at the
        join.
        """
        mask, distance = np.zeros_like(self.refused), join - k
        if distance < self.size and join in self.rows:
            rows_of_join = self.rows[join][: self.size - distance]
            readers = self.facts.readers[producer]
            read_rows = [read.rows(rows_of_join) for reader, read in readers if reader == join]
            rows = self.rows[producer][join - producer :][: self.size - distance]
            mask[distance:] = np.all([w >= rows for w in read_rows], 0)
        return mask

    def _add_lives(self, k: int, uses: list[int], nbytes: Array) -> None:
        remaining_uses = iter(uses)
        use = next(remaining_uses)
        for step in range(uses[0], uses[-1] + 1):
            if step > use:
                use = next(remaining_uses)
            if not self._add_alive(k, step, self.facts.node_of[use] - k, nbytes):
                break

    def _add_alive(self, k: int, step: int, distance: int, nbytes: Array) -> bool:
        """Adds bytes of bands at dispatch ``step``, for runs that end more than ``distance`` nodes
        after node ``k``.

        Updates the peaks of these runs. Returns False if no run is long enough.
        """
        if distance >= self.size:
            return False
        shift = self.facts.node_of[step] - k
        alive = self.alive.setdefault(step, np.zeros_like(self.zeros))
        alive = alive[distance - shift : self.size - shift]
        alive += nbytes[distance:]
        np.maximum(self.peak[distance:], alive, out=self.peak[distance:])
        return True

    def _add_slices(self, k: int, rule: RowRule) -> None:
        """Adds the bytes of copies of some rows of node ``k``'s result, for readers that need
        fewer rows than others."""
        row = sum(map(self.usage.draft.nbytes, self.nodes[k].outputs)) / rule.extent
        for reader, read in self.facts.readers[k]:
            distance = reader - k
            if distance >= self.size or reader not in self.rows or self.facts.is_joined[reader]:
                continue
            read_rows = read.rows(self.rows[reader][: self.size - distance])
            nbytes = np.zeros_like(self.zeros)
            fewer = read_rows < self.rows[k][distance:]
            nbytes[distance:] = np.where(fewer, self._rounded(read_rows * row), 0.0)
            if fewer.any():
                for step in range(*self.usage.steps[reader]):
                    self._add_alive(k, step, distance, nbytes)

    def _peak(self, begin: int) -> Array:
        """Returns the peak bytes of bands of the runs that begin with node ``begin``.

        They include copies of some rows of the runs' inputs, which are counted only here.
        """
        facts, peak = self.facts, self.peak.copy()
        for k, reads in self.from_before.items():
            distance = k - begin
            result_rows = self.rows[k][: self.size - distance]
            nbytes = np.zeros_like(result_rows)
            for read in reads:
                producer = facts.producers.get(read.name, -1)
                if producer >= begin and facts.chart.rules[producer] is not None:
                    continue
                extent = self._extent(read.name, k)
                if facts.is_joined[k]:
                    continue  # the copies are parts of the result
                rows = np.minimum(read.rows(result_rows), extent)
                size = self.usage.draft.nbytes(read.name) / extent
                nbytes = nbytes + np.where(rows < extent, self._rounded(rows * size), 0.0)
            for step in range(*self.usage.steps[k]):
                if step in self.alive:
                    alive = self.alive[step][: self.size - distance] + nbytes
                    np.maximum(peak[distance:], alive, out=peak[distance:])
        return peak

    def _extent(self, name: str, reader: int) -> int:
        rule = self.facts.chart.rules[reader]
        assert rule is not None
        return self.usage.graph.facts[name].shape[rule.axis]

    def _rounded(self, nbytes: Array) -> Array:
        return np.ceil(nbytes / self.usage.draft.align) * self.usage.draft.align
