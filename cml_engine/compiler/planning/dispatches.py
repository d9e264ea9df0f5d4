"""Lowers operators to dispatches with costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from types import MappingProxyType

from cml_engine.compiler.planning.draft import Draft, Launch, Lowered, NodesRefused, PlanOptions
from cml_engine.compiler.planning.layouts import rounded_weights
from cml_engine.errors import (
    CmlError,
    DeviceError,
    InputError,
    OperatorError,
    ShapeError,
    located,
)
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Epilogue, Fact, Graph, Node, is_whole
from cml_engine.ir.layout import C4H, PLAIN, VECTOR_TYPE, block_words
from cml_engine.ir.reuse import sources_of
from cml_engine.ops.declaration.checks import fault, text_of
from cml_engine.ops.declaration.epilogue import STEPS
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.lowering import (
    Lowering,
    check_atomics,
    choose_kernel,
    split_binding,
    whole,
)
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel, OpSpec
from cml_engine.ops.elementwise.kernels.elementwise import CHAIN

#: stands for the kernel of operators that have none
NUMPY = Kernel("NumPy")

# -- check dispatches -----------------------------------------------------------------------------
# Checks the dispatches that an operator's lowering returns, before anything is planned.
#
# Every dispatch must write to the node's own tensors, and every epilogue must be applied.


def check_dispatches(spec: OpSpec, op: Lowering, lowered: Sequence[object]) -> None:
    """Raises :class:`OperatorError` if the dispatches that an operator returned for a node are
    invalid.

    A dispatch is invalid if it is no :class:`Dispatch`, binds a tensor that the node does not
    have, or writes to a tensor that is no result or scratch. A result that is never written is
    an error too.
    """
    results = {*op.out_names, *op.scratch_words}
    bindable = {*op.node.reads, *results, *op.packed}
    written: set[str] = set()
    dispatches = [_check_form(spec, op, dispatch) for dispatch in lowered]
    for dispatch in dispatches:
        for name in dispatch.tensors:
            if name not in bindable:
                raise _wrong(spec, op, f"binds '{name}', which is no tensor of this node")
        for name in dispatch.written:
            if name not in results:
                description = "its input" if name in op.node.reads else "a constant of the plan"
                raise _wrong(spec, op, f"writes to '{name}', {description}")
        written.update(dispatch.written if dispatch.groups else ())
    for name in op.out_names:
        if name not in written and op.fact(name).size:
            raise _wrong(spec, op, f"writes nothing to its result '{name}'")
    if spec.is_custom:
        _check_promises(spec, op, dispatches)


def _check_form(spec: OpSpec, op: Lowering, dispatch: object) -> Dispatch:
    if not isinstance(dispatch, Dispatch):
        raise _wrong(
            spec, op, f"gives {dispatch!r}, wanted a cml.ops.Dispatch: op.launch(…) makes one"
        )
    groups, writes = dispatch.groups, dispatch.writes
    if not is_whole(groups) or groups < 0:
        raise _wrong(spec, op, f"wants {groups!r} workgroups; wanted a whole number")
    if not is_whole(writes) or not 0 < writes <= len(dispatch.tensors):
        raise _wrong(spec, op, f"writes {writes!r} of {len(dispatch.tensors)} tensors")
    kernel: object = dispatch.kernel
    cost: object = dispatch.cost
    if not isinstance(kernel, Kernel | None) or not isinstance(cost, Cost | None):
        raise _wrong(
            spec, op, "has a kernel or a cost of another type than cml.Kernel, cml.ops.Cost"
        )
    return dispatch


def _check_promises(spec: OpSpec, op: Lowering, dispatches: Sequence[Dispatch]) -> None:
    """Raises :class:`OperatorError` if a node's dispatches ignore a feature that its kernel
    declares.

    The features are epilogues, which a dispatch must apply, and maps in 16 bits, which each
    dispatch that binds one must support.
    """
    if op.epilogues and not any(
        dispatch.defines.keys() & {STEPS, CHAIN} for dispatch in dispatches
    ):
        names = ", ".join(epilogue.op for epilogue in op.epilogues)
        raise _wrong(spec, op, f"does not apply the epilogues that its kernel states ({names})")
    half = VECTOR_TYPE[C4H]
    for dispatch in dispatches:
        stored = [name for name in dispatch.tensors if op.layout(name) == C4H]
        if stored and half not in dispatch.defines.values():
            raise _wrong(spec, op, f"reads '{stored[0]}' in 32 bits, though its kernel states half")


def _wrong(spec: OpSpec, op: Lowering, problem: str) -> OperatorError:
    origin = "a launch of its lower" if spec.kernel and spec.kernel.lower else "its launch"
    return fault(spec, f"{op.node.title}: {origin} {problem}", op.node.source)


# -- dispatches -----------------------------------------------------------------------------------


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
        operands = [facts[n] for n in epilogue.inputs]
        flops = lookup(epilogue.op).cost(epilogue.attrs, [*outputs, *operands], outputs).flops
        cost = cost + Cost(flops, sum(f.nbytes for f in operands), 0)
    shares = {n: block_words(layouts.get(n, PLAIN)) / 4 for n in node.tensors}
    shares |= dict.fromkeys(rounded_weights(node, graph, layouts), 0.5)
    read, written = (_stored_share(names, graph, shares) for names in (node.reads, node.outputs))
    return Cost(cost.flops, cost.read * read, cost.written * written)


def _stored_share(names: Sequence[str], graph: Graph, shares: Mapping[str, float]) -> float:
    """Returns the bytes that tensors take in memory, divided by their bytes in 32 bits; 1.0 for
    empty tensors.

    ``shares`` has this quotient for each tensor.
    """
    unpacked = sum(graph.facts[n].nbytes for n in names)
    stored = sum(graph.facts[n].nbytes * shares[n] for n in names)
    return stored / unpacked if unpacked else 1.0


def _own_cost(spec: OpSpec, node: Node, inputs: list[Fact], outputs: list[Fact]) -> Cost:
    with located(node.source), calling(spec.is_custom, "cost", node_fault(node)):
        cost: object = spec.cost(node.attrs, inputs, outputs)
    if not isinstance(cost, Cost) or not all(0 <= n < inf for n in (cost.flops, cost.bytes)):
        raise fault(spec, f"its cost function gave {cost!r}; wanted a cml.ops.Cost", node.source)
    return cost


def lower_nodes(draft: Draft) -> Draft:
    """Returns the draft with the dispatches of all nodes.

    Raises :class:`NodesRefused` with the errors of the nodes that their kernels refuse.
    """
    graph, stub, parts = draft.graph, draft.options.stub, draft.options.decided("parts")
    if stub and stub not in graph.ops:
        raise InputError(f"stub: model '{graph.name}' has no operator '{stub}'")
    sharing = draft.sharing
    uploaded = {entry.words for entry in sharing.packed_inputs.values()}
    on_cpu = _find_cpu_parts(graph, draft.options)
    lowered = Lowered(
        # the weights that the graph without bands has packed
        packed=dict(draft.lowered.packed),
        scratch={name: graph.facts[v].size for v, name in sharing.passed_on.items()},
    )
    draft = replace(draft, lowered=lowered)
    by_key: dict[object, tuple[Node, list[Launch]]] = {}
    refused: dict[str, CmlError] = {}
    for node in graph.nodes:
        if node.outputs[0] in uploaded:
            continue
        if part := on_cpu.get(node.outputs[0]):
            if node is part[0]:
                _add_cpu_part(draft, part)
            continue
        yield_to_frame()
        key = draft.bands.keys.get(node.title)
        if key in by_key:
            _repeat(lowered, *by_key[key], node)
            continue
        count = len(lowered.dispatches)
        try:
            _lower_node(draft, node)
        except (ShapeError, DeviceError) as error:
            refused.setdefault(node.outputs[0], error)
            continue
        if key is not None:
            by_key[key] = node, lowered.dispatches[count:]
    if refused:
        raise NodesRefused(refused)
    if unbound := [name for name in parts if name not in lowered.parts]:
        raise InputError(
            f"decide: '{unbound[0]}' cannot be bound in parts: no kernel of '{graph.name}' binds it"
        )
    moved = _move_joins_early(lowered.dispatches, draft.bands.joins, sharing.alias)
    return replace(draft, lowered=replace(lowered, dispatches=moved))


def _find_cpu_parts(graph: Graph, options: PlanOptions) -> dict[str, list[Node]]:
    """Returns the runs of consecutive operators without a kernel, by the first result of each node.

    An alias of a result belongs to the run. With ``retain`` all nodes of a run depend on the same
    inputs, because a later run computes all of them or none.
    """
    parts: dict[str, list[Node]] = {}
    sources = sources_of(graph) if options.retain else {}
    part: list[Node] = []
    for node in graph.nodes:
        spec, name = lookup(node.op), node.outputs[0]
        if part and sources.get(part[0].outputs[0]) != sources.get(name):
            part = []
        follows = spec.alias and any(node.inputs[0] in member.outputs for member in part)
        if follows or (spec.is_cpu_only and node.op != options.stub):
            part.append(node)
            parts[name] = part
        else:
            part = []
    return parts


def _add_cpu_part(draft: Draft, part: list[Node]) -> None:
    """Adds one dispatch to ``draft.lowered`` for operators that the CPU computes.

    It reads what comes from elsewhere and writes what is read elsewhere.
    """
    graph, lowered = draft.graph, draft.lowered
    results = [name for node in part for name in node.outputs]
    read = [name for node in part for name in node.reads]
    reads = [n for n in read if n not in results and not graph.is_constant(n)]
    reads_elsewhere = [
        n for node in graph.nodes if node.outputs[0] not in results for n in node.reads
    ]
    needed = {draft.root(name) for name in (*reads_elsewhere, *graph.roots)}
    stored = [n for n in results if n not in draft.sharing.alias]
    writes = [n for n in stored if n in needed or draft.options.keep]
    lowered.unstored.update(
        n for n in results if draft.root(n) in stored and draft.root(n) not in writes
    )
    tensors = (*dict.fromkeys(reads), *writes)
    cost = sum((node_cost(lookup(n.op), n, graph) for n in part), Cost(0, 0, 0))
    dispatch = Dispatch(0, tensors, writes=len(writes))
    lowered.cpu_parts[part[0].outputs[0]] = part
    lowered.dispatches.append(Launch(part[0], NUMPY, dispatch, cost))


def _repeat(lowered: Lowered, original: Node, launches: Sequence[Launch], node: Node) -> None:
    """Adds the dispatches of ``original``, a node equal to ``node``, to ``lowered`` once more, with
    the tensors of ``node``."""
    tensors = zip(original.tensors, node.tensors, strict=True)
    names = dict(tensors)
    for launch in launches:
        dispatch = launch.dispatch
        for name in dispatch.tensors:
            if name in lowered.scratch and name not in names:
                names[name] = node.outputs[0] + name.removeprefix(original.outputs[0])
                lowered.scratch[names[name]] = lowered.scratch[name]
            lowered.parts[names.get(name, name)] = lowered.parts[name]
        renamed = tuple(names.get(name, name) for name in dispatch.tensors)
        lowered.dispatches.append(
            launch._replace(node=node, dispatch=replace(dispatch, tensors=renamed))
        )
    lowered.chosen[node.title] = lowered.chosen.get(original.title, [])


def _lower_node(draft: Draft, node: Node) -> None:
    """Adds the dispatches, scratch and kernel choices of one node to ``draft.lowered``.

    An alias and the stub have none.
    """
    options, sibling, spec = draft.options, draft.sibling, lookup(node.op)
    lowered, in_place = draft.lowered, draft.sharing.in_place
    if spec.alias or node.op == options.stub:
        return
    if any(epilogue.op == options.stub for epilogue in node.epilogues):
        node = replace(node, epilogues=_drop_epilogues(node.epilogues, options.stub))
    assert spec.kernel is not None  # others are in a part for the CPU
    op = Lowering(
        draft.graph, node, draft.limits, draft.layouts, lowered.packed, variants=options.variants
    )
    op.required_choices = list(draft.bands.kernels.get(node.title, ()))
    op.requested_kernel = options.decided("kernel").get(node.outputs[0], "")
    op.in_place = {n: in_place[n] for n in node.outputs if n in in_place}
    op.requested_parts = options.decided("parts")
    if sibling is not None:
        op.earlier_choices = sibling.chosen(node)
        op.packed_before = sibling.packed(node, draft.graph)
        op.texts = sibling.kernel_texts
    with located(node.source), calling(spec.is_custom, "cost", node_fault(node)):
        op.kernel, variant = choose_kernel(op, spec.kernel)
    dispatches = [
        replace(d, variant=d.variant or variant)
        for d in _dispatches_of(spec, op.kernel, op)
        if d.groups > 0
    ]
    _check_requests(op, dispatches, op.kernel)
    total = sum(d.groups for d in dispatches if d.cost is None)
    cost = node_cost(spec, node, draft.graph, draft.layouts)
    for dispatch in dispatches:
        share = dispatch.cost or cost.scaled(dispatch.groups / total)
        kernel = dispatch.kernel or op.kernel
        dispatch = _with_parts(spec, op, kernel, dispatch, lowered)
        lowered.dispatches.append(Launch(node, kernel, dispatch, share))
    lowered.scratch.update(op.scratch_words)
    lowered.choices.extend(op.choices)
    lowered.chosen[node.title] = op.chosen


def _with_parts(
    spec: OpSpec, op: Lowering, kernel: Kernel, dispatch: Dispatch, lowered: Lowered
) -> Dispatch:
    """Returns the dispatch with defines for the tensors that are bound in several parts.

    Adds the parts of all its tensors to ``lowered``.
    """
    defines: dict[str, int | str] = {}
    for i, name in enumerate(dispatch.tensors):
        parts = lowered.parts[name] = split_binding(op, name)
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
    kernels = {d.variant or str((d.kernel or kernel).path) for d in dispatches}
    if op.requested_kernel and not op.choices and op.requested_kernel not in kernels:
        raise InputError(
            f"decide: {op.node.title} cannot have the kernel '{op.requested_kernel}': there is "
            f"nothing to choose, it has {', '.join(sorted(kernels)) or 'none'}",
            op.node.source,
        )


def _drop_epilogues(epilogues: Sequence[Epilogue], op: str) -> tuple[Epilogue, ...]:
    """Returns the epilogues of a node without those of operator ``op``; readers of such a step's
    result read the step before it."""
    remaining: list[Epilogue] = []
    new_numbers = [0]  # maps each old step number to the number of the last step kept up to it
    for epilogue in epilogues:
        if epilogue.op != op:
            own_steps = tuple((position, new_numbers[link]) for position, link in epilogue.own)
            remaining.append(replace(epilogue, own=own_steps))
        new_numbers.append(len(remaining))
    return tuple(remaining)


def _dispatches_of(spec: OpSpec, kernel: Kernel, op: Lowering) -> list[Dispatch]:
    function = "threads" if kernel.lower is None else "lower"
    with located(op.node.source), calling(spec.is_custom, function, node_fault(op.node)):
        lowered = [whole(op, spec, kernel)] if kernel.lower is None else kernel.lower(op)
        dispatches = list(lowered)
    check_dispatches(spec, op, dispatches)
    return dispatches


# -- limits ---------------------------------------------------------------------------------------


def defines_of(kernel: Kernel, dispatch: Dispatch) -> dict[str, int | str]:
    """Returns the defines of a dispatch's kernel, with the number of threads of a workgroup."""
    return {"GROUP": prod(kernel.group_shape), **kernel.defines, **dispatch.defines}


def check_limits(draft: Draft) -> None:
    """Raises :class:`NodesRefused` if dispatches exceed the bindings or the threads of the
    device."""
    limits, parts, refused = draft.limits, draft.lowered.parts, dict[str, CmlError]()
    for node, kernel, dispatch, _ in draft.arena.dispatches:
        if kernel is NUMPY:
            continue
        bindings = [name for name in dispatch.tensors for _ in range(parts[name].count)]
        threads = int(defines_of(kernel, dispatch)["GROUP"])
        if len(bindings) > limits.max_storage_buffers:
            excess = (
                f"binds {_listed(bindings)}, together {len(bindings)}, this device allows "
                f"{limits.max_storage_buffers}. Use a smaller input"
            )
        elif threads > limits.max_group_threads:
            excess = (
                f"wants workgroups of {threads} threads, this device allows "
                f"{limits.max_group_threads}. Use smaller workgroups"
            )
        else:
            continue
        error = DeviceError(f"{node.title}: {excess} or another device.", node.source)
        refused.setdefault(node.outputs[0], error)
    if refused:
        raise NodesRefused(refused)


def _listed(bindings: Sequence[str]) -> str:
    """Returns the names of the bound tensors as text, with the number of bindings of each."""
    counts = Counter(bindings).items()
    return ", ".join(f"'{n}' in {c} bindings" if c > 1 else f"'{n}'" for n, c in counts)


# -- join order -----------------------------------------------------------------------------------


def _move_joins_early(
    launches: Sequence[Launch], joins: Collection[str], alias: Mapping[str, str]
) -> list[Launch]:
    """Returns the dispatches with each copy of a part into a tensor of ``joins`` moved directly
    after the dispatch that computes the part.

    Other tensors can then use the memory of the part. ``alias`` maps tensors to those whose
    memory they share.
    """
    copies: dict[str, list[Launch]] = {}
    remaining: list[Launch] = []
    for launch in launches:
        part = launch.dispatch.tensors[0]
        if launch.node.outputs[0] in joins:
            copies.setdefault(alias.get(part, part), []).append(launch)
        else:
            remaining.append(launch)
    last = {name: i for i, launch in enumerate(remaining) for name in launch.dispatch.written}
    ordered = [
        launch for name, part_copies in copies.items() if name not in last for launch in part_copies
    ]
    for i, launch in enumerate(remaining):
        ordered.append(launch)
        for name in dict.fromkeys(launch.dispatch.written):
            if last[name] == i:
                ordered += copies.get(name, [])
    return ordered
