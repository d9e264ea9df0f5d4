"""Computes a sum of convolutions with unlike windows in one dispatch.

A network that adds the results of several convolutions of one size, of one tap and of nine or of
different maps, had a dispatch for each. Small maps take less time than a launch of 3 µs, and the
results between are stored and loaded. On hardware alone: a software driver launches for less, and
its kernels multiply faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.compiler.planning.joins import (
    Join,
    apply_joins,
    can_join,
    is_internal,
    is_plain_conv,
    single_launches,
)
from cml_engine.compiler.planning.shuffles import preserved_roots
from cml_engine.ir.graph import Array, Epilogue, Node
from cml_engine.ir.layout import C4, PLAIN, VECTOR_TYPE
from cml_engine.ops.conv.kernels import conv_window
from cml_engine.ops.conv.kernels.conv_sum import (
    KERNEL,
    Channels,
    Elements,
    Formulas,
    Operand,
    Result,
    Single,
    Steps,
    Sum,
    Term,
    default_tile,
    is_inner,
    is_possible,
    seconds,
)
from cml_engine.ops.conv.node import GROUP, Conv, ConvTile
from cml_engine.ops.conv.shapes import ConvShape, conv_shape
from cml_engine.ops.declaration.epilogue import is_by_position, is_wide
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import formula_of, is_builtin
from cml_engine.ops.declaration.spec import Cost
from cml_engine.ops.elementwise.kernels.elementwise import KERNEL_PATH, Link


def join_sums(draft: Draft) -> Draft:
    """Returns the draft with sums of convolutions as one dispatch each, where the model of hardware
    says that it is faster; on hardware alone."""
    has_room = draft.limits.max_group_threads >= max(conv_window.PARTS) * GROUP
    if not can_join(draft) or not has_room or not is_builtin("conv"):
        return draft
    joins = (_join(draft, run) for run in _runs(draft))
    return apply_joins(draft, [join for join in joins if join is not None])


def _join(draft: Draft, run: Sequence[Launch]) -> Join | None:
    """Returns the dispatch of a sum; None if the kernel cannot compute it, or not faster."""
    builder = _Builder(draft, [node for node, *_ in run])
    terms, table = builder.terms(), hardware_table(draft.limits)
    tile = default_tile(terms, table) if terms else None
    members = [*builder.computed, *run]
    if terms is None or tile is None:
        return None
    saved = sum(_seconds(draft, launch) for launch in members) - seconds(terms, tile, table)
    if saved <= 0:
        return None
    found = Sum(terms, tile)
    is_split = draft.is_split(found.tensors)
    if not found.fits or is_split or len(found.tensors) + 2 > draft.limits.max_storage_buffers:
        return None
    names = [n for node, *_ in members for n in node.reads if n in draft.graph.constants]
    depths = "".join(str(term.depth) for term in terms)
    name = "+".join([*dict.fromkeys(names), f"sum{depths}.rows{tile.rows}"])
    return Join(members, _joined(draft, members, found, name), name, found.weights, saved)


def _seconds(draft: Draft, launch: Launch) -> float:
    """Returns the modelled time of a convolution's own dispatch, or the least of another's."""
    node, _, dispatch, _ = launch
    if node.op != "conv":
        return hardware_table(draft.limits).launch
    op = Lowering(draft.graph, node, draft.limits, draft.layouts, draft.lowered.packed)
    numbers = (int(dispatch.defines[name]) for name in ("ROWS", "COLUMNS", "LANES", "PARTS"))
    return conv_window.seconds(Conv(op, _shape(draft, node), False), ConvTile(*numbers))


def _joined(draft: Draft, members: Sequence[Launch], found: Sum, weights: str) -> Launch:
    """Returns the dispatch that computes the nodes ``members`` with these packed filters."""
    node, _, last, after = members[-1]
    shuffle = {k: v for k, v in last.defines.items() if k in ("SHUFFLE_Y", "SHUFFLE_X")}
    dispatch = found.launch(
        weights, last.tensors[-1], {"OUT_C4": last.defines["OUT_C4"], **shuffle}
    )
    between = sum(draft.graph.facts[inner.outputs[0]].nbytes for inner, *_ in members[:-1])
    costs = [cost for *_, cost in members]
    cost = Cost(sum(c.flops for c in costs), sum(c.read for c in costs) - between, after.written)
    return Launch(node, KERNEL, dispatch, cost)


# -- runs ------------------------------------------------------------------------------------------


def _runs(draft: Draft) -> list[list[Launch]]:
    """Returns the dispatches of convolutions whose results only the epilogues of a last one read,
    in their order."""
    single = single_launches(draft)
    possible = {launch.node.outputs[0]: launch for launch in single if _is_window(draft, launch)}
    preserved, used, runs = preserved_roots(draft), set[str](), []
    for result in reversed(possible):
        if result in used:
            continue
        names = _added(draft, possible, preserved, result)
        used |= names
        if len(names) > 1:
            runs.append([launch for name, launch in possible.items() if name in names])
    return runs


def _added(
    draft: Draft, possible: Mapping[str, Launch], preserved: set[str], result: str
) -> set[str]:
    """Returns a result and those of the convolutions that are added to it, directly or not."""
    names, (node, *_), facts = {result}, possible[result], draft.graph.facts
    for name in [name for epilogue in node.epilogues for name in epilogue.inputs]:
        is_alike = facts[name] == facts[result]
        if name in possible and is_alike and is_internal(draft, preserved, name):
            names |= _added(draft, possible, preserved, name)
    return names


def _is_window(draft: Draft, launch: Launch) -> bool:
    """Returns True for the dispatch of a convolution of floats that may be a term of a sum."""
    node, defines = launch.node, launch.dispatch.defines
    if launch.path != str(conv_window.KERNEL.path) or not is_plain_conv(draft, launch):
        return False
    is_float = defines["T1_TYPE"] == defines["T2_TYPE"] == VECTOR_TYPE[C4]
    return is_float and is_possible(_shape(draft, node), draft.layout(node.inputs[0]) == PLAIN)


def _shape(draft: Draft, node: Node) -> ConvShape:
    return conv_shape(node.attrs, *draft.graph.facts_of(node.inputs))


# -- terms -----------------------------------------------------------------------------------------


class _Builder:
    """Makes the terms of a sum from the convolutions ``nodes``, in execution order.

    ``computed`` are the dispatches of elementwise operators that the sum computes itself, because
    only it reads their results.
    """

    def __init__(self, draft: Draft, nodes: Sequence[Node]) -> None:
        self._draft, self._nodes = draft, nodes
        self._results = {node.outputs[0]: Result(n) for n, node in enumerate(nodes)}
        self._preserved = preserved_roots(draft)
        self.computed: list[Launch] = []

    def terms(self) -> list[Term] | None:
        """Returns the terms, or None if the kernel cannot apply their epilogues."""
        found = []
        for node in self._nodes:
            steps = _steps(node, partial(self._operand, node))
            if steps is None:
                return None
            found.append(self._term(node, steps))
        return found

    def _term(self, node: Node, steps: Steps) -> Term:
        """Returns the term of a convolution."""
        draft = self._draft
        shape, (filter, bias) = _shape(draft, node), self._constants(node)
        source, changed = self._source(node, shape)
        is_plain = draft.layout(source) == PLAIN
        inner = None if changed else self._inner(source, shape)
        return Term(shape, source, is_plain, filter, bias, steps, changed, inner)

    def _inner(self, name: str, outer: ConvShape) -> Term | None:
        """Returns the convolution that computes the input ``name`` of a term, and adds its dispatch
        to those that are not needed; None if the kernel cannot compute it."""
        draft, writer = self._draft, self._writer(name)
        if writer is None or not _is_window(draft, writer):
            return None
        node = writer[0]
        shape, source = _shape(draft, node), node.inputs[0]
        is_plain = draft.layout(source) == PLAIN
        steps = _steps(node, self._number) if is_plain and is_inner(shape, outer) else None
        if steps is None:
            return None
        filter, bias = self._constants(node)
        self.computed.append(writer)
        return Term(shape, source, is_plain, filter, bias, steps)

    def _constants(self, node: Node) -> tuple[Array, Array]:
        """Returns the filter and the bias of a convolution."""
        _, filter, bias = node.inputs
        return self._draft.graph.constants[filter], self._draft.graph.constants[bias]

    def _number(self, name: str) -> float | Single | None:
        """Returns an operand that is a single value; None for another."""
        value = self._draft.graph.constant(name)
        if self._draft.graph.facts[name].size != 1:
            return None
        if value is not None:
            return float(value.reshape(()))
        return None if self._draft.is_overwritten(name) else Single(name)

    def _writer(self, name: str) -> Launch | None:
        """Returns the only dispatch that writes a tensor, if one node alone reads the tensor and it
        need not be stored."""
        if not is_internal(self._draft, self._preserved, name):
            return None
        launches = [x for x in self._draft.lowered.dispatches if x.node.outputs[0] == name]
        return launches[0] if len(launches) == 1 else None

    def _operand(self, node: Node, name: str) -> Operand | None:
        """Returns an operand of an epilogue, or None if the kernel cannot read it."""
        graph, result = self._draft.graph, self._draft.graph.facts[node.outputs[0]]
        value, fact = graph.constant(name), graph.facts[name]
        if name in self._results:
            return self._results[name]
        if fact.size == 1:
            return self._number(name)
        layout, is_free = self._draft.layout(name), not self._draft.is_overwritten(name)
        if fact == result:
            is_read = is_free and value is None and layout in (PLAIN, C4)
            return Elements(name, layout == PLAIN) if is_read else None
        if fact.size != result.shape[1] or is_by_position(fact, result):
            return None
        if value is not None:
            return value
        if (formulas := self._formulas(name, "")) is not None:
            return formulas
        return Channels(name) if is_free and layout == PLAIN else None

    def _source(self, node: Node, shape: ConvShape) -> tuple[str, Formulas | None]:
        """Returns the map that a convolution's input is computed from by formulas, and these; or
        the input itself."""
        name, draft = node.inputs[0], self._draft
        fact, layout = draft.graph.facts[name], draft.layout(name)
        writer = next((n for n in draft.graph.nodes if name in n.outputs), None)
        # lanes beyond the last channel have values of their own
        is_whole = layout == PLAIN or shape.in_channels % 4 == 0
        reads = [n for n in (writer.reads if writer else ()) if n not in draft.graph.constants]
        maps = {n for n in reads if draft.graph.facts[n] == fact}
        if len(maps) != 1 or not is_whole:
            return name, None
        source = maps.pop()
        is_alike = draft.layout(source) == layout and not draft.is_overwritten(source)
        formulas = self._formulas(name, source) if is_alike and fact.size > 1 else None
        return (name, None) if formulas is None else (source, formulas)

    def _formulas(self, name: str, source: str) -> Formulas | None:
        """Returns the formulas that compute a tensor, and adds its dispatch to those that are not
        needed; None if the kernel cannot compute it.

        They read single values, and the elements of ``source``, or without it constants with a
        value for each channel.
        """
        draft, graph, writer = self._draft, self._draft.graph, self._writer(name)
        if writer is None:
            return None
        node, _, dispatch, _ = writer
        is_own = writer.path == KERNEL_PATH and is_builtin(*node.ops)
        is_plain = source or draft.layout(name) == PLAIN
        if not is_own or not is_plain or dispatch.live:
            return None
        if any(graph.facts[n].dtype != "scalar" for n in (*node.reads, name)):
            return None
        operands: list[float | Array | Single] = []
        indices = {source: 0} if source else {}
        for read in dict.fromkeys(node.reads):
            if read == source:
                continue
            value = graph.constant(read)
            operand: float | Array | Single | None = self._number(read)
            if value is not None and not source and value.size == graph.facts[name].size > 1:
                operand = value
            if operand is None:
                return None
            operands.append(operand)
            indices[read] = len(operands)
        self.computed.append(writer)
        return Formulas(_links(node, indices), operands)


def _steps(node: Node, operand: Callable[[str], Operand | None]) -> Steps | None:
    """Returns a node's epilogues with their operands, or None if the kernel cannot apply them."""
    steps = []
    for epilogue in node.epilogues:
        operands = [operand(name) for name in epilogue.inputs]
        known = [value for value in operands if value is not None]
        if len(known) < len(operands) or not is_wide(epilogue):
            return None
        steps.append((epilogue, known))
    return steps


def _links(node: Node, indices: Mapping[str, int]) -> list[Link]:
    """Returns the formulas of an elementwise operator and its epilogues."""
    links: list[Link] = []
    steps = [Epilogue(node.op, node.inputs, node.attrs, position=None), *node.epilogues]
    for step in steps:
        formula = formula_of(step.op)
        assert formula is not None  # elementwise operators have formulas
        others = [indices[name] for name in step.inputs]
        operands = step.operands(others, [~i for i in range(len(links))])
        links.append(Link(formula, tuple(formula.values(step.attrs)), tuple(operands)))
    return links
