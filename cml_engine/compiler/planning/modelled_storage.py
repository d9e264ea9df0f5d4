"""Chooses between 16 and 32 bits for each feature map and matrix, by the model of hardware.

Convolutions multiply in 16 bits what is stored so, which is faster where they are large. But a
dispatch in the place of several convolutions computes with floats, depthwise kernels and products
of matrices unpack what they read. So with ``CompileOptions(arithmetic="half")`` on a device with
``shader-f16`` a map is stored in 16 bits where the modelled time of its operators is less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from math import inf

from cml_engine.compiler.planning.dispatches import node_cost
from cml_engine.compiler.planning.draft import Draft, JoinedTensors, Lowered
from cml_engine.compiler.planning.layouts import (
    choose_layout,
    decide_layouts,
    layouts_for,
    matrices_in_half,
    stored_alike,
    without_taps,
)
from cml_engine.compiler.planning.lowering_stages import lower_maps
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.layout import C4, C4H
from cml_engine.ops.conv.kernels.conv_half import least_seconds
from cml_engine.ops.conv.node import Conv
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import is_builtin, lookup

_SHAPES = {"conv": conv_shape, "deconv": deconv_shape}
#: rounds of the search, which seldom needs more than three
_ROUNDS = 8


def store_by_model(draft: Draft) -> Draft:
    """Returns the draft with 32 bits for the maps and matrices that are faster so.

    It is unchanged unless the caller and the device allow products of 16 bits. What the caller
    decided stays.
    """
    limits, decided = draft.limits, draft.options.decided("storage")
    if draft.arithmetic != "half" or limits.software or not limits.half_arithmetic:
        return draft
    graph = without_taps(draft.graph)
    floats = lower_maps(decide_layouts(replace(draft, storage="float")))
    maps = _Maps(draft, graph, floats.lowered.joined)
    kept = [*_slow_matrices(graph, floats.lowered), *_slow_maps(maps)]
    overrides = {**dict.fromkeys(kept, "float"), **decided}
    layouts = layouts_for(graph, draft.storage, overrides, draft.options.decided("layout"))
    packed = Lowered(packed=floats.lowered.packed)
    return replace(draft, layouts=layouts, lowered=packed)


def _slow_matrices(graph: Graph, floats: Lowered) -> set[str]:
    """Returns the matrices of weights that tiles multiply, and unpack in every turn.

    A kernel that computes each sum by a workgroup reads them once, so bytes decide.
    """
    read_once = {node.outputs[0] for node, _, d, _ in floats.dispatches if "REDUCE" in d.defines}
    return {
        name
        for name in matrices_in_half(graph)
        if not all(n.outputs[0] in read_once for n in graph.consumers[name])
    }


# -- maps ------------------------------------------------------------------------------------------


class _Maps:
    """The sets of maps that must be stored alike, and what changes with their storage.

    ``sets`` has the maps of each set that may have 16 or 32 bits, by the tensor that identifies it.
    ``joins`` are the sets whose maps a joined dispatch of floats replaces or reads, with the
    seconds that it saves.
    """

    def __init__(self, draft: Draft, graph: Graph, joined: Iterable[JoinedTensors]) -> None:
        self._draft, self._graph = draft, graph
        layouts = choose_layout(graph, draft.options.decided("layout"))
        self._ties, refused = stored_alike(graph, layouts)
        decided = {self._ties.find(name) for name in draft.options.decided("storage")}
        self.sets: dict[str, list[str]] = {}
        for name, layout in layouts.items():
            root = self._ties.find(name)
            if layout == C4 and root not in refused and root not in decided:
                self.sets.setdefault(root, []).append(name)
        found = [({*map(self._ties.find, names)} & self.sets.keys(), s) for names, s in joined]
        self.joins = [(roots, saved) for roots, saved in found if roots]
        self._nodes: dict[str, set[int]] = {root: set() for root in self.sets}
        for number, node in enumerate(graph.nodes):
            for name in node.tensors:
                self._nodes.get(self._ties.find(name), set()).add(number)
        self._seconds_of: dict[tuple[int, frozenset[str]], float] = {}

    def seconds(self, changed: Collection[str], in_half: Collection[str]) -> float:
        """Returns the modelled time of the operators that read or write the sets ``changed``.

        The sets ``in_half`` have 16 bits.
        """
        numbers = {number for root in changed for number in self._nodes[root]}
        joins = [(r, saved) for r, saved in self.joins if not r.isdisjoint(changed)]
        saved = sum(saved for roots, saved in joins if roots.isdisjoint(in_half))
        return sum(self._operator_seconds(n, in_half) for n in sorted(numbers)) - saved

    def _operator_seconds(self, number: int, in_half: Collection[str]) -> float:
        node = self._graph.nodes[number]
        names = set(node.tensors) & self._draft.layouts.keys()
        halves = frozenset(name for name in names if self._ties.find(name) in in_half)
        key = number, halves
        if key not in self._seconds_of:
            layouts = {name: self._draft.layouts[name] for name in names}
            layouts |= {name: C4 for name in names if self._ties.find(name) in self.sets}
            layouts |= dict.fromkeys(halves, C4H)
            self._seconds_of[key] = _operator_seconds(self._draft, self._graph, node, layouts)
        return self._seconds_of[key]


def _operator_seconds(draft: Draft, graph: Graph, node: Node, layouts: dict[str, str]) -> float:
    """Returns the modelled time of an operator with these layouts of its maps.

    That of a convolution follows from the table of its kernels, that of others from their bytes.
    """
    if node.op in _SHAPES and is_builtin(node.op):
        op = Lowering(graph, node, draft.limits, layouts, {})
        least = least_seconds(Conv(op, _SHAPES[node.op](op.attrs, *op.inputs), node.op == "deconv"))
        if least < inf:
            return least
    table = hardware_table(draft.limits)
    return table.launch + node_cost(lookup(node.op), node, graph, layouts).bytes / table.memory


def _slow_maps(maps: _Maps) -> Iterator[str]:
    """Yields the maps that are faster in 32 bits.

    All begin in 16 bits. A set of maps changes where that makes the plan faster, alone or with the
    others of a joined dispatch.
    """
    in_half = set(maps.sets)
    moves = [*(roots for roots, _ in maps.joins), *({root} for root in maps.sets)]
    for _ in range(_ROUNDS):
        before = set(in_half)
        for changed in moves:
            is_half = not in_half.isdisjoint(changed)
            moved = in_half - changed if is_half else in_half | changed
            if maps.seconds(changed, moved) < maps.seconds(changed, in_half):
                in_half = moved
        if in_half == before:
            break
    for root, names in maps.sets.items():
        if root not in in_half:
            yield from names
