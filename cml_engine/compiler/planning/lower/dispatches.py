"""Lowers operators to dispatches with costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any

from cml_engine.compiler.planning.check_dispatches import check_dispatches
from cml_engine.compiler.planning.choose_storage import rounded_weights
from cml_engine.compiler.planning.lower.draft import Draft, LoweredNode
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.sibling import Sibling
from cml_engine.errors import InputError, UnsupportedOp, located
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Epilogue, Fact, Graph, Node
from cml_engine.ir.layout import PLAIN, block_words
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration import accessors
from cml_engine.ops.declaration.checks import fault, text_of
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel, OpSpec
from cml_engine.ops.declaration.split_bindings import check_atomics, split_binding


def node_cost(
    spec: OpSpec, node: Node, graph: Graph, layouts: Mapping[str, str] = MappingProxyType({})
) -> Cost:
    """Returns the cost of an operator with its epilogues, including the operands that the epilogues
    read.

    Tensors in fewer bits count with their stored bytes.
    """
    facts = graph.facts
    outputs = [facts[n] for n in node.outputs]
    cost = _own_cost(spec, node, [facts[n] for n in node.inputs], outputs)
    for epilogue in node.epilogues:
        others = [facts[n] for n in epilogue.inputs]
        flops = lookup(epilogue.op).cost(epilogue.attrs, [*outputs, *others], outputs).flops
        cost = cost + Cost(flops, sum(f.nbytes for f in others), 0)
    shares = {n: block_words(layouts.get(n, PLAIN)) / 4 for n in (*node.reads, *node.outputs)}
    shares |= dict.fromkeys(rounded_weights(node, graph, layouts), 0.5)
    read, written = (_stored_share(names, graph, shares) for names in (node.reads, node.outputs))
    return Cost(cost.flops, cost.read * read, cost.written * written)


def _stored_share(names: Sequence[str], graph: Graph, shares: Mapping[str, float]) -> float:
    """Returns the bytes that tensors take in memory, divided by their bytes in 32 bits; 1.0 for
    empty tensors.

    ``shares`` has this quotient for each tensor.
    """
    full = sum(graph.facts[n].nbytes for n in names)
    stored = sum(graph.facts[n].nbytes * shares[n] for n in names)
    return stored / full if full else 1.0


def _own_cost(spec: OpSpec, node: Node, inputs: list[Fact], outputs: list[Fact]) -> Cost:
    with located(node.source), calling(spec.is_custom, "cost", node_fault(node)):
        cost: Any = spec.cost(node.attrs, inputs, outputs)
    if not isinstance(cost, Cost) or not all(0 <= n < inf for n in (cost.flops, cost.bytes)):
        raise fault(spec, f"its cost function gave {cost!r}; wanted a cml.Cost", node.source)
    return cost


def add_dispatches(
    draft: Draft,
    graph: Graph,
    limits: Limits,
    layouts: dict[str, str],
    options: PlanOptions,
    sibling: Sibling | None,
    uploaded: Collection[str],
) -> None:
    stub = options.stub
    if stub and stub not in {
        op for n in graph.nodes for op in (n.op, *(e.op for e in n.epilogues))
    }:
        raise InputError(f"stub: model '{graph.name}' has no operator '{stub}'")
    for node in graph.nodes:
        if node.outputs[0] in uploaded:
            continue
        yield_to_frame()
        key = draft.alike.get(node.title)
        if key in draft.lowered:
            _repeat(draft, draft.lowered[key], node)
            continue
        count, scratch = len(draft.dispatches), set(draft.scratch)
        lower_node(draft, graph, node, limits, layouts, options, sibling)
        if key is not None:
            added = {n: words for n, words in draft.scratch.items() if n not in scratch}
            draft.lowered[key] = LoweredNode(node, draft.dispatches[count:], added)
    if unbound := [name for name in options.parts if name not in draft.parts]:
        raise InputError(
            f"decide: '{unbound[0]}' cannot be bound in parts: no kernel of '{graph.name}' binds it"
        )


def _repeat(draft: Draft, first: LoweredNode, node: Node) -> None:
    """Adds the dispatches of ``first``, a node equal to ``node``, to the draft once more, with
    the tensors of ``node``."""
    was, now = first.node, node
    names = dict(zip((*was.reads, *was.outputs), (*now.reads, *now.outputs), strict=True))
    for name, words in first.scratch.items():
        names[name] = now.outputs[0] + name.removeprefix(was.outputs[0])
        draft.scratch[names[name]] = words
    for _, kernel, dispatch, cost in first.launches:
        for name in dispatch.tensors:
            draft.parts[names.get(name, name)] = draft.parts[name]
        tensors = tuple(names.get(name, name) for name in dispatch.tensors)
        draft.dispatches.append((node, kernel, replace(dispatch, tensors=tensors), cost))
    draft.chosen[node.title] = draft.chosen.get(was.title, [])


def lower_node(
    draft: Draft,
    graph: Graph,
    node: Node,
    limits: Limits,
    layouts: dict[str, str],
    options: PlanOptions,
    sibling: Sibling | None,
) -> None:
    """Adds the dispatches, scratch and kernel choices of one node to the draft; none for an alias
    or the stub.

    Raises :class:`UnsupportedOp` if the operator has no GPU kernel.
    """
    spec = lookup(node.op)
    if spec.alias or node.op == options.stub:
        return
    if any(epilogue.op == options.stub for epilogue in node.epilogues):
        node = replace(node, epilogues=_without(node.epilogues, options.stub))
    if spec.kernel is None:
        raise UnsupportedOp(
            f"{node.title}: has no GPU kernel; use the CPU backend (--backend cpu)", node.source
        )
    op = Lowering(graph, node, limits, layouts, draft.packed, variants=options.variants)
    op.pinned = list(draft.pinned.get(node.title, ()))
    op.requested_kernel, op.requested_parts = (
        options.kernels.get(node.outputs[0], ""),
        options.parts,
    )
    if sibling is not None:
        op.kept, op.known = sibling.chosen(node), sibling.packed(node, graph)
    dispatches = [d for d in _dispatches_of(spec, spec.kernel, op) if d.groups > 0]
    _check_requests(op, dispatches, spec.kernel)
    total = sum(d.groups for d in dispatches if d.cost is None)
    cost = node_cost(spec, node, graph, layouts)
    for dispatch in dispatches:
        share = dispatch.cost or cost.scaled(dispatch.groups / total)
        kernel = dispatch.kernel or spec.kernel
        dispatch = _with_parts(spec, op, kernel, dispatch, draft)
        draft.dispatches.append((node, kernel, dispatch, share))
    draft.scratch.update(op.scratch_words)
    draft.choices += op.choices
    draft.chosen[node.title] = op.chosen


def _with_parts(
    spec: OpSpec, op: Lowering, kernel: Kernel, dispatch: Dispatch, draft: Draft
) -> Dispatch:
    """Returns the dispatch with defines for the tensors that are bound in several parts.

    Adds the parts of all its tensors to the draft.
    """
    defines: dict[str, int | str] = {}
    for i, name in enumerate(dispatch.tensors):
        parts = draft.parts[name] = split_binding(op, name)
        if parts.count > 1:
            defines |= {f"T{i}_PARTS": parts.count, f"T{i}_PART_BYTES": parts.nbytes}
            if not kernel.interface:
                check_atomics(op, text_of(kernel, spec), f"T{i}", name)
    if not defines or kernel.interface:  # a generated interface contains the parts already
        return dispatch
    return replace(dispatch, defines={**dispatch.defines, **defines})


def _check_requests(op: Lowering, dispatches: Sequence[Dispatch], kernel: Kernel) -> None:
    """Raises :class:`InputError` if the caller requested a kernel that an operator without
    choices does not have."""
    there = {d.variant or str((d.kernel or kernel).path) for d in dispatches}
    if op.requested_kernel and not op.choices and op.requested_kernel not in there:
        raise InputError(
            f"decide: {op.node.title} cannot have the kernel '{op.requested_kernel}': there is "
            f"nothing to choose, it has {', '.join(sorted(there)) or 'none'}",
            op.node.source,
        )


def _without(epilogues: Sequence[Epilogue], op: str) -> tuple[Epilogue, ...]:
    """Returns the epilogues of a node without those of operator ``op``; readers of such a step's
    result read the step before it."""
    kept: list[Epilogue] = []
    number = [0]  # maps each old step number to the number of the last step kept up to it
    for epilogue in epilogues:
        if epilogue.op != op:
            own = tuple((place, number[link]) for place, link in epilogue.own)
            kept.append(replace(epilogue, own=own))
        number.append(len(kept))
    return tuple(kept)


def _dispatches_of(spec: OpSpec, kernel: Kernel, op: Lowering) -> list[Dispatch]:
    what = "threads" if kernel.lower is None else "lower"
    with located(op.node.source), calling(spec.is_custom, what, node_fault(op.node)):
        given = [accessors.whole(op, spec, kernel)] if kernel.lower is None else kernel.lower(op)
        dispatches = list(given)
    check_dispatches(spec, op, dispatches)
    return dispatches
