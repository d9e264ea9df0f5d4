"""What memory a graph's operators take, as they are and in bands."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from cml_engine.errors import CmlError
from cml_engine.graph import Graph, Node
from cml_engine.layout import PLAIN, words
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import EXACT
from cml_engine.planning.bands.rewrite import Rewriting
from cml_engine.planning.bands.run import Band, Run
from cml_engine.planning.lower import Draft, Drafted, lower_node
from cml_engine.planning.plan_memory import Lifetime, lower_bound, rounded_up
from cml_engine.planning.views import Views, merged

#: a kernel and its defines: what its code is
Code = tuple[str, frozenset[tuple[str, int | str]]]
#: bytes of memory that are worth an operation, where work is compared
_FLOPS_PER_BYTE = 16


@dataclass(frozen=True, slots=True)
class Launches:
    """What lowering makes of a node: the tensors of each dispatch, of which those that are scratch
    have so many words, and its kernels' code."""

    tensors: tuple[tuple[str, ...], ...]
    scratch: dict[str, int]
    codes: frozenset[Code]


@dataclass(frozen=True, slots=True)
class InBandsUse:
    """A run in so many bands: the bytes that it takes at its fullest step, the largest tensor
    among them, and how much more work it is than the run as it is."""

    nbytes: int
    largest: int
    work: float


class Usage:
    """Of a graph that is drafted as it is, with parts of tensors in their wholes."""

    def __init__(self, drafted: Drafted, views: Views) -> None:
        self.drafted, self.graph = drafted, drafted.graph
        self.align = drafted.limits.storage_offset_alignment
        self.items = rounded_up(merged(drafted.items, views), self.align)
        self._draft = Draft(packed=dict(drafted.draft.packed))
        self._known: dict[object, Launches | None] = {}

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """For each node its first dispatch and the one behind its last."""
        counts = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0)
        for node, *_ in self.drafted.draft.dispatches:
            counts[node.outputs[0]] += 1
        ends = list(accumulate(counts.values()))
        return [(end - n, end) for end, n in zip(ends, counts.values(), strict=True)]

    @cached_property
    def alive(self) -> list[int]:
        """Bytes alive before the first dispatch, at each, and behind the last."""
        count = len(self.drafted.draft.dispatches)
        change = [0] * (count + 3)
        for item in self.items:
            change[item.first + 1] += item.nbytes
            change[item.last + 2] -= item.nbytes
        return list(accumulate(change))[: count + 2]

    def of_node(self, k: int) -> int:
        """Bytes alive at the fullest step of a node."""
        first, end = self.steps[k]
        return max(self.alive[first + 1 : end + 1], default=0)

    def largest_of_node(self, k: int) -> int:
        """Bytes of the largest tensor that lives while the node is computed."""
        first, end = self.steps[k]
        lives = (i.nbytes for i in self.items if i.first < end and first <= i.last)
        return max(lives, default=0) if end > first else 0

    def between(self, k: int) -> int:
        """Bytes that live from before a node until behind it, or from the node before it."""
        at = self.steps[k][0] if k < len(self.steps) else len(self.drafted.draft.dispatches)
        return sum(i.nbytes for i in self.items if i.first < at <= i.last)

    def beside(self, run: Run) -> tuple[int, int]:
        """Bytes of what lives beside a run while it is computed, and of the largest of that."""
        begin, end = self.steps[run.first][0], self.steps[run.end - 1][1] - 1
        aside = {n for k in run.aside for n in self.graph.nodes[k].outputs}
        lives = [
            item.nbytes
            for item in self.items
            if item.first <= end
            and begin <= item.last
            and (item.first < begin or end < item.last or item.name in aside)
        ]
        return sum(lives), max(lives, default=0)

    def in_bands(self, run: Run, count: int) -> InBandsUse | None:
        """The run in so many bands; None where a band would have other kernels than the whole."""
        nbytes, largest = self.beside(run)
        most = 0
        for band, _ in _alike(run, count):
            rewriting = Rewriting(self.graph)
            rewriting.add_band(run, band)
            items = self._items(rewriting)
            if items is None:
                return None
            most = max(most, lower_bound(items))
            largest = max(largest, *(item.nbytes for item in items))
        return InBandsUse(nbytes + most, largest, self.work_in_bands(run, count))

    def work_in_bands(self, run: Run, count: int) -> float:
        """More work than that of the run as it is: what is computed twice, and what is copied."""
        work = -sum(self._node_work[k] for k in range(run.first, run.end) if k not in run.aside)
        for band, times in _alike(run, count):
            for k, part in band.parts.items():
                rows = (part.made[1] - part.made[0]) / max(run.extent(k), 1)
                work += times * rows * self._node_work[k]
        return work + sum(2.0 * _FLOPS_PER_BYTE * self.nbytes(name) for name in run.results)

    @cached_property
    def _node_work(self) -> list[float]:
        by_node = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0.0)
        for node, _, _, cost in self.drafted.draft.dispatches:
            by_node[node.outputs[0]] += cost.flops + _FLOPS_PER_BYTE * cost.bytes
        return list(by_node.values())

    def nbytes(self, name: str) -> int:
        """Of a tensor that lies as it is."""
        return 4 * words(self.graph.facts[name], self.drafted.layouts.get(name, PLAIN))

    def _bytes(self, band: Rewriting, name: str) -> int:
        of, layouts = band.of.get(name, name), self.drafted.layouts
        fact = band.facts.get(name) or self.graph.facts[name]
        return 4 * words(fact, layouts.get(of, PLAIN))

    def _items(self, band: Rewriting) -> list[Lifetime] | None:
        """What lives in a band alone, with its steps; a share of a result until it is copied."""
        graph = self.graph.with_(
            facts=ChainMap(band.facts, dict(self.graph.facts)),
            words=ChainMap(
                {n: self.graph.words[of] for n, of in band.of.items() if of in self.graph.words},
                dict(self.graph.words),
            ),
        )
        used: dict[str, tuple[int, int]] = {}
        sizes: dict[str, int] = {}
        alias: dict[str, str] = {}
        layouts, step = band.layouts(self.drafted.layouts), 0
        for node in band.nodes:
            if lookup(node.op).alias:
                alias[node.outputs[0]] = alias.get(node.inputs[0], node.inputs[0])
                continue
            launches = self._launches(node, graph, layouts, band)
            if launches is None:
                return None
            names = dict(_places(node))
            for tensors in launches.tensors:
                for place in tensors:
                    name = names.get(place, f"{node.outputs[0]} {place}")
                    if place in launches.scratch:
                        sizes[name] = 4 * launches.scratch[place]
                    root = alias.get(name, name)
                    if root in band.facts:
                        sizes[root] = self._bytes(band, root)
                    if root in sizes:
                        used[root] = (used.get(root, (step, step))[0], step)
                step += 1
        ends = band.nodes[-1].outputs if band.nodes else ()
        used |= {alias.get(n, n): (used[alias.get(n, n)][0], step) for n in ends if n in used}
        return rounded_up((Lifetime(n, sizes[n], *used[n]) for n in used), self.align)

    def _launches(
        self, node: Node, graph: Graph, layouts: dict[str, str], band: Rewriting
    ) -> Launches | None:
        facts = [graph.facts[name] for name in (*node.reads, *node.outputs)]
        of = tuple(band.of.get(name, name) for name in node.reads)
        key = (band.titles.get(node.title), of, repr(node.attrs), tuple(f.shape for f in facts))
        if key not in self._known:
            self._known[key] = self._lowered(node, graph, layouts, band)
        return self._known[key]

    def _lowered(
        self, node: Node, graph: Graph, layouts: dict[str, str], band: Rewriting
    ) -> Launches | None:
        """None where the node cannot have the very kernels that the whole one has: with others the
        bits could be others. What only moves numbers gives the same by any."""
        draft = Draft(packed=self._draft.packed)
        title = band.titles.get(node.title)
        draft.pinned = {node.title: self.drafted.draft.chosen.get(title or "", [])}
        try:
            lower_node(draft, graph, node, self.drafted.limits, layouts, self.drafted.options, None)
        except CmlError:
            return None
        found = _launches_of(node, draft)
        spec = lookup(node.op)
        free = title is None or spec.tolerance == EXACT or spec.formula is not None
        return found if free or found.codes <= self._codes[title or ""] else None

    @cached_property
    def _codes(self) -> dict[str, frozenset[Code]]:
        found: dict[str, set[Code]] = {node.title: set() for node in self.graph.nodes}
        for node, kernel, dispatch, _ in self.drafted.draft.dispatches:
            found[node.title].add(_code(str(kernel.path), dispatch.defines))
        return {title: frozenset(codes) for title, codes in found.items()}


def _alike(run: Run, count: int) -> list[tuple[Band, int]]:
    """The first, the last and one of so many bands between, which are much alike: each with how
    many it stands for."""
    found = [(run.band(0, count), 1), (run.band(count - 1, count), 1)]
    return found if count < 3 else [*found, (run.band(count // 2, count), count - 2)]


def _places(node: Node) -> Iterator[tuple[str, str]]:
    yield from ((f"read {k}", name) for k, name in enumerate(node.reads))
    yield from ((f"result {k}", name) for k, name in enumerate(node.outputs))


def _launches_of(node: Node, draft: Draft) -> Launches:
    """Independent of the tensors' names."""
    places = {name: place for place, name in _places(node)}
    places |= {name: f"scratch {k}" for k, name in enumerate(draft.scratch)}
    return Launches(
        tuple(
            tuple(places[name] for name in d.tensors if name in places)
            for _, _, d, _ in draft.dispatches
        ),
        {places[name]: size for name, size in draft.scratch.items()},
        frozenset(_code(str(k.path), d.defines) for _, k, d, _ in draft.dispatches),
    )


def _code(path: str, defines: Iterable[str] | object) -> Code:
    """Without what says in which parts tensors are bound: that is how they are found, no more."""
    assert isinstance(defines, dict)
    pairs = defines.items()
    return path, frozenset((k, v) for k, v in pairs if "_PART" not in k)
