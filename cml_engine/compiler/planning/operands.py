"""Lets a concat of windows compute operands that only it reads.

A network that joins maps of several kinds computes some of them from one map by a few operations
for each element: a convolution of one channel by one tap, a quotient, a clamp. On hardware each
was a dispatch of 3 µs and more, whose result the concat then copied. A software driver copies and
computes faster in loops of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.compiler.planning.joins import can_join
from cml_engine.compiler.planning.shuffles import preserved_roots
from cml_engine.ir.graph import Epilogue, Graph, Node
from cml_engine.ir.layout import PLAIN
from cml_engine.ops.common.shapes import contiguous_strides
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import formula_of, is_builtin, lookup
from cml_engine.ops.declaration.spec import Cost
from cml_engine.ops.elementwise.kernels.elementwise import Link
from cml_engine.ops.movement.strided_copy import Copy, Dim
from cml_engine.ops.movement.windows import (
    MAX_NUMBERS,
    Chain,
    Part,
    Window,
    copied_part,
    launch_parts,
    windows_of,
)


def compute_operands(draft: Draft) -> Draft:
    """Returns the draft without the dispatches of operands that a concat of windows can compute; on
    hardware alone."""
    graph, lowered = draft.graph, draft.lowered
    if not can_join(draft) or not is_builtin("concat_windows", "conv", "mul", "add"):
        return draft
    launches, unstored, computed = lowered.dispatches, set(lowered.unstored), set[str]()
    for node in graph.nodes:
        if node.op != "concat_windows":
            continue
        operands = _find_computed(draft, launches, node)
        if operands and (changed := _with_computed(draft, launches, node, operands)) is not None:
            launches = changed
            members = [member for operand in operands.values() for member in operand.members]
            unstored |= {member.outputs[0] for member in members}
            computed |= {member.title for member in members}
    if not computed:
        return draft
    choices = [choice for choice in lowered.choices if choice.node not in computed]
    lowered = replace(lowered, dispatches=list(launches), unstored=unstored, choices=choices)
    return replace(draft, lowered=lowered)


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand that a concat computes from a window of the tensor ``source``.

    ``members`` are the nodes that computed it, in execution order, and ``begin`` is where the
    window begins.
    """

    source: str
    begin: Sequence[int]
    members: Sequence[Node]
    chain: Chain


def _with_computed(
    draft: Draft, launches: Sequence[Launch], node: Node, operands: Mapping[str, _Operand]
) -> list[Launch] | None:
    """Returns the dispatches with that of a concat computing ``operands``, by name, and without
    those that did before; None if that is not possible."""
    facts, target = draft.graph.facts, node.outputs[0]
    members = {member.title for operand in operands.values() for member in operand.members}
    parts = []
    for name, window in zip(node.inputs, windows_of(node.attrs, facts[target]), strict=True):
        operand = operands.get(name)
        if operand is None:
            parts.append(copied_part(name, facts[name], window, facts[target]))
        else:
            parts.append(_computed_part(draft.graph, operand, window, target))
    numbers = sum(len(part.chain.numbers) for part in parts if part.chain)
    own = [launch for launch in launches if launch.node is node]
    if len(own) != 1 or numbers > MAX_NUMBERS:
        return None
    dispatch = launch_parts(parts, target, facts[target].rank)
    is_split = draft.is_split(dispatch.tensors)
    if is_split or len(dispatch.tensors) > draft.limits.max_storage_buffers:
        return None
    cost = own[0].cost
    flops = sum(launch.cost.flops for launch in launches if launch.node.title in members)
    cost = Cost(cost.flops + flops, cost.read, cost.written)
    joined = Launch(node, dispatch.kernel or own[0].kernel, dispatch, cost)
    kept = [launch for launch in launches if launch.node.title not in members]
    return [joined if launch.node is node else launch for launch in kept]


def _computed_part(graph: Graph, operand: _Operand, window: Window, target: str) -> Part:
    extents = graph.facts[operand.source].shape
    strides = contiguous_strides(extents)
    offset = sum(s * b for s, b in zip(strides, operand.begin, strict=True))
    # one channel of the source may serve all channels of the part
    sources = [0 if extent == 1 else s for extent, s in zip(extents, strides, strict=True)]
    targets = contiguous_strides(graph.facts[target].shape)
    dims = tuple(map(Dim, window.shape, sources, targets))
    dims = dims[1:] if window.shape[0] == 1 else dims
    return Part(operand.source, Copy(dims, offset, window.offset), operand.chain)


# -- operands --------------------------------------------------------------------------------------


def _find_computed(draft: Draft, launches: Sequence[Launch], node: Node) -> dict[str, _Operand]:
    """Returns the operands of a concat of channels that it can compute, by name."""
    found, fixed = {}, preserved_roots(draft)
    for name, begin, count in zip(node.inputs, node.attrs.begins, node.attrs.counts, strict=True):
        shape = draft.graph.facts[name].shape
        is_whole = len(shape) > 2 and list(begin[:2]) == [0, 0] and shape[1] == count
        if node.attrs.axis != 1 or not is_whole or shape[0] != node.attrs.extents[0]:
            continue
        members = _find_members(draft, launches, node, name, fixed)
        operand = _Builder(draft, members).operand(name, begin) if members else None
        if operand is not None:
            found[name] = operand
    return found


def _find_members(
    draft: Draft, launches: Sequence[Launch], node: Node, name: str, fixed: set[str]
) -> dict[str, Node]:
    """Returns the nodes that compute the operand ``name`` of a concat and nothing else, by result,
    in execution order. ``fixed`` are the tensors that must be stored."""
    graph, options = draft.graph, draft.options
    members: dict[str, Node] = {}
    for candidate in reversed(graph.nodes[: graph.nodes.index(node)]):
        result = candidate.outputs[0]
        readers = graph.consumers.get(result, [])
        inside = [r for r in readers if r.outputs[0] in members or (r is node and result == name)]
        if not readers or len(inside) < len(readers):
            continue
        is_free = draft.root(result) not in fixed and result not in options.decided("kernel")
        if is_free and _is_formula(draft, candidate) and _is_launched(draft, launches, candidate):
            members[result] = candidate
    return dict(reversed(members.items()))


def _is_launched(draft: Draft, launches: Sequence[Launch], node: Node) -> bool:
    """Returns True if dispatches of this node alone write its result, which is plain, and no slider
    changes them."""
    result = node.outputs[0]
    writers = [launch for launch in launches if result in launch.dispatch.written]
    is_plain = draft.layout(result) == PLAIN
    is_own = all(writer.node is node and not writer.dispatch.live for writer in writers)
    return is_plain and bool(writers) and is_own


def _is_formula(draft: Draft, node: Node) -> bool:
    """Returns True if a formula computes each element of a node's result from floats at one
    position."""
    facts, names = draft.graph.facts, node.tensors
    if not is_builtin(*node.ops) or any(facts[name].dtype != "scalar" for name in names):
        return False
    is_own = _is_pointwise(draft.graph, node) if node.op == "conv" else _has_formula(node.op)
    return is_own and all(_has_formula(epilogue.op) for epilogue in node.epilogues)


def _has_formula(op: str) -> bool:
    traits = lookup(op).traits
    return bool(formula_of(op)) and not traits.quantizes_input and not traits.reads_sums


def _is_pointwise(graph: Graph, node: Node) -> bool:
    """Returns True for a conv of one channel by one constant tap for each result, without a
    border."""
    shape = conv_shape(node.attrs, *graph.facts_of(node.inputs))
    is_constant = all(graph.constant(name) is not None for name in node.inputs[1:])
    is_inside = all(a.stride == 1 and a.before <= 0 and a.after <= 0 for a in shape.axes)
    return is_constant and is_inside and shape.in_channels == shape.taps == 1


class _Refused(Exception):
    """Raised if a concat cannot compute an operand."""


class _Builder:
    """Makes the formulas that compute an operand from the nodes ``members``, by result."""

    def __init__(self, draft: Draft, members: Mapping[str, Node]) -> None:
        self._draft = draft
        self._facts = draft.graph.facts
        self._members = members
        self._links: list[Link] = []
        #: all operands but the first, which is the element of the window
        self._operands: list[str | tuple[float, ...]] = []
        #: the last formula of each member's result
        self._results: dict[str, int] = {}
        #: where the windows of maps begin
        self._begins: dict[str, list[int]] = {}
        self._source = ""

    def operand(self, name: str, begin: Sequence[int]) -> _Operand | None:
        """Returns the operand ``name`` whose window begins there, or None if it is refused."""
        self._begins[name] = list(begin)
        members = list(self._members.values())
        try:
            for node in reversed(members):
                for read in dict.fromkeys(node.reads):
                    self._place(node, read)
            for node in members:
                self._add(node)
        except _Refused:
            return None
        # the concat reads the source later than the members did
        if not self._source or self._draft.is_overwritten(self._source):
            return None
        chain = Chain(tuple(self._links), tuple(self._operands))
        return _Operand(self._source, self._begins[self._source], members, chain)

    def _place(self, node: Node, name: str) -> None:
        """Sets where the window of a map begins that a member reads."""
        if self._draft.graph.constant(name) is not None or self._facts[name].size == 1:
            return
        begin = self._begins[node.outputs[0]]
        found, wanted = self._facts[name].shape, self._facts[node.outputs[0]].shape
        if node.op == "conv" and name == node.inputs[0]:
            shape = conv_shape(node.attrs, *(self._facts[n] for n in node.inputs))
            crops = [0, 0, *(-axis.before for axis in shape.axes)]
            begin = [b + crop for b, crop in zip(begin, crops, strict=True)]
        elif found not in (wanted, (*wanted[:1], 1, *wanted[2:])):
            raise _Refused
        if self._begins.setdefault(name, begin) != begin:
            raise _Refused
        if name not in self._members:
            is_plain = self._draft.layout(name) == PLAIN
            if self._source not in ("", name) or not is_plain:
                raise _Refused
            self._source = name

    def _add(self, node: Node) -> None:
        """Adds the formulas of a member."""
        channels = self._facts[node.outputs[0]].shape[1]
        operands = [self._index(name, channels) for name in node.inputs]
        if node.op == "conv":
            x, filter, bias = operands
            product = self._link("mul", node, (x, filter))
            results = [self._link("add", node, (product, bias))]
        else:
            results = [self._link(node.op, node, operands)]
        for epilogue in node.epilogues:
            others = [self._index(name, channels) for name in epilogue.inputs]
            operands = epilogue.operands(others, results)
            results.append(self._link(epilogue.op, epilogue, operands))
        self._results[node.outputs[0]] = results[-1]

    def _link(self, op: str, step: Node | Epilogue, operands: Sequence[int]) -> int:
        """Adds the formula of an operator and returns its number as an operand."""
        formula = formula_of(op)
        assert formula is not None  # members have no others
        values = formula.values(step.attrs) if formula.attrs else []
        self._links.append(Link(formula, tuple(values), tuple(operands)))
        return ~(len(self._links) - 1)

    def _index(self, name: str, channels: int) -> int:
        """Returns the number of an operand that a member reads."""
        if name in self._results:
            return self._results[name]
        if name == self._source:
            return 0
        value = self._draft.graph.constant(name)
        operand: str | tuple[float, ...] = name
        if value is not None:
            if value.size not in (1, channels):
                raise _Refused
            operand = tuple(map(float, value.reshape(-1)))
        self._operands.append(operand)
        return len(self._operands)
