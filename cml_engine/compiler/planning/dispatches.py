"""Lowers operators to dispatches with costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.layouts import PackedInput, rounded_weights
from cml_engine.compiler.planning.memory import Lifetime
from cml_engine.errors import (
    CmlError,
    DeviceError,
    InputError,
    OperatorError,
    ShapeError,
    located,
)
from cml_engine.errors.arguments import (
    ARENA_BYTES,
    GUARD_BYTES,
    check_flag,
    check_instance,
)
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Array, Epilogue, Fact, Graph, Node, is_whole
from cml_engine.ir.layout import C4H, PLAIN, VECTOR_TYPE, block_words, words
from cml_engine.ir.limits import Limits
from cml_engine.ir.reuse import sources_of
from cml_engine.ops.declaration.checks import fault, text_of
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
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
from cml_engine.ops.declaration.split_bindings import SplitBinding
from cml_engine.ops.elementwise.kernels.elementwise import CHAIN

#: the caller's decisions: by kind (``"kernel"``, ``"layout"``, …), the option of each tensor of the
#: optimized graph; a kernel is listed by the first result of its operator
Overrides = Mapping[str, Mapping[str, str]]
NO_OVERRIDES: Overrides = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for lowering a graph.

    - ``keep``: no tensor's memory is reused, so that all can be read after a run.
    - ``guard``: unused bytes before and after every tensor (tests fill them with a pattern).
    - ``stub``: an operator that is skipped; its results are undefined.
    - ``views``: parts of a tensor may share its memory (``planning/memory.py``); not with ``keep``.
    - ``variants``: the kernels that are faster on the device than those of the engine's rules.
    - ``retain``: tensors that a later run may reuse stay in memory (``ir/reuse.py``).
    - ``packed_inputs``: inputs of an integer network that are stored packed are converted during
      upload (``planning/layouts.py``); otherwise, and with ``keep``, a step converts them.
    - ``arena_limit``: the largest size of the arena in bytes; 0 is unlimited (``planning/bands/``).
    - ``overrides``: the caller's decisions (``planning/decisions.py``).

    Examples
    --------
    >>> options = cml.CompileOptions(plan=PlanOptions(keep=True))
    """

    keep: bool = False
    guard: int = 0
    stub: str = ""
    views: bool = True
    variants: VariantTable = NO_VARIANTS
    retain: bool = False
    packed_inputs: bool = True
    arena_limit: int = 0
    overrides: Overrides = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_flag(self.keep, "keep")
        check_flag(self.views, "views")
        check_flag(self.retain, "retain")
        check_flag(self.packed_inputs, "packed_inputs")
        GUARD_BYTES.check(self.guard, "guard")
        check_instance(str, self.stub, "stub")
        check_instance(VariantTable, self.variants, "variants")
        ARENA_BYTES.check(self.arena_limit, "arena_limit")
        check_instance(dict, self.overrides, "overrides")
        if self.keep and (self.arena_limit or self.decided("bands")):
            raise InputError("arena_limit: all tensors are kept whole: leave keep or that out")

    def decided(self, kind: str) -> Mapping[str, str]:
        """Returns the caller's decisions of one kind, by tensor."""
        return self.overrides.get(kind, {})


# -- draft ----------------------------------------------------------------------------------------

#: stands for the kernel of operators that have none
NUMPY = Kernel("NumPy")
#: a dispatch, and its node, kernel and cost
Launch = tuple[Node, Kernel, Dispatch, Cost]


@dataclass(frozen=True, slots=True)
class LoweredNode:
    """A node, and the dispatches and scratch tensors that it added to a draft.

    ``scratch`` has the size of each scratch tensor in 32-bit words.
    """

    node: Node
    launches: list[Launch]
    scratch: dict[str, int]


@dataclass
class Draft:
    """A plan under construction: its dispatches name their tensors, which have no place in memory
    yet.

    ``packed`` has the packed weights by name, ``scratch`` the size of each scratch tensor in
    32-bit words. ``items`` are the lifetimes of the tensors that need a place in the arena.
    """

    graph: Graph
    limits: Limits
    layouts: dict[str, str]
    options: PlanOptions
    sibling: Sibling | None = None
    packed: dict[str, Array] = field(default_factory=dict)
    #: the names and values of the kernels that operators must use, by title
    pinned: Mapping[str, list[tuple[str, object]]] = field(default_factory=dict)
    #: a key by operator title: operators with equal keys have equal dispatches, except for the
    #: names of tensors; and the first operator lowered for each key
    dispatch_keys: Mapping[str, object] = field(default_factory=dict)
    lowered: dict[object, LoweredNode] = field(default_factory=dict)
    dispatches: list[Launch] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    #: the names and values of each operator's chosen kernels, by title
    chosen: dict[str, list[tuple[str, object]]] = field(default_factory=dict)
    #: the parts in which each bound tensor is bound
    parts: dict[str, SplitBinding] = field(default_factory=dict)
    #: by variable: the intermediate tensor for a new value that is in the weights
    passed_on: dict[str, str] = field(default_factory=dict)
    #: maps the results that take the memory of an operand to that operand
    in_place: Mapping[str, str] = field(default_factory=dict)
    #: maps tensors to those whose memory they share
    alias: dict[str, str] = field(default_factory=dict)
    #: the inputs that are converted during upload
    packed_inputs: Mapping[str, PackedInput] = field(default_factory=dict)
    #: maps the tensors that stay in memory between runs to those whose memory they use
    retained: Mapping[str, str] = field(default_factory=dict)
    items: list[Lifetime] = field(default_factory=list)
    #: the nodes of each dispatch of :data:`NUMPY`, by the first result of the first node
    cpu_parts: dict[str, list[Node]] = field(default_factory=dict)
    #: the reasons why kernels refused nodes of these, by first result
    refusals: Mapping[str, str] = field(default_factory=dict)
    #: the errors of the nodes that only the CPU can compute, by first result
    refused: dict[str, CmlError] = field(default_factory=dict)
    #: the results that only nodes of their own part read, which need no memory on the device
    on_host: set[str] = field(default_factory=set)

    @property
    def align(self) -> int:
        """The alignment of tensors in bytes."""
        return self.limits.storage_offset_alignment

    def refuse(self, node: Node, error: CmlError) -> None:
        """Adds a node that the device cannot compute to :attr:`refused`.

        Raises ``error`` if the CPU cannot compute it either, or if the caller decided its kernel
        or how its tensors are bound.
        """
        decided = node.outputs[0] in self.options.decided("kernel")
        decided |= not self.options.decided("parts").keys().isdisjoint((*node.reads, *node.outputs))
        if decided or lookup(node.op).cpu is None:
            raise error
        self.refused.setdefault(node.outputs[0], error)

    def raise_refusal(self) -> None:
        """Raises the first error of :attr:`refused`, if there is one."""
        for error in self.refused.values():
            raise error

    def root(self, name: str) -> str:
        """Returns the tensor that owns the memory of tensor ``name``, if no tensor is a view."""
        return self.alias.get(name, name)

    def nbytes(self, name: str) -> int:
        """Returns the bytes of a tensor in its layout, or of a scratch tensor."""
        if name in self.scratch:
            return 4 * self.scratch[name]
        return 4 * words(self.graph.facts[name], self.layouts.get(name, PLAIN))


# -- sibling --------------------------------------------------------------------------------------

_NOTHING: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Sibling:
    """The first plan of a network, and the optimized graph that it was made from.

    A plan of the network at other shapes uses the same kernel for a node if that is valid, also
    after the kernel's file has changed. It can then share the packed weights, which are on the
    device already.
    """

    graph: Graph
    plan: Plan

    @cached_property
    def _chosen(self) -> dict[str, list[str]]:
        by_node: dict[str, list[str]] = {}
        for choice in self.plan.choices:
            by_node.setdefault(choice.node, []).append(choice.chosen)
        return by_node

    def chosen(self, node: Node) -> list[str]:
        """Returns the names of the kernels that the first plan chose for the node, in the order
        of the choices."""
        return list(self._chosen.get(node.title, ()))

    def packed(self, node: Node, graph: Graph) -> Mapping[str, Array]:
        """Returns the first plan's packed weights by name.

        The mapping is empty if a constant that the node reads in ``graph`` is not the same array
        in the first graph.
        """
        read = [name for name in node.reads if name in graph.constants]
        are_shared = all(graph.constants[n] is self.graph.constants.get(n) for n in read)
        return self._packed if are_shared else _NOTHING

    @cached_property
    def kernel_texts(self) -> dict[str, str]:
        """The HLSL of a game's kernels by path, as the first plan read them."""
        return {str(step.path): step.inline for step in self.plan.steps if step.inline}

    @cached_property
    def _packed(self) -> dict[str, Array]:
        return {name: array for name, (_, array) in self.plan.weights.items()}

    def has_equal(self, name: str, array: Array) -> bool:
        """Returns True if the first plan has an equal array under this name in its weights,
        which are on the device."""
        entry = self.plan.weights.get(name)
        return entry is not None and is_same(array, entry[1])


def share_constants(graph: Graph, first: Graph) -> Graph:
    """Returns the graph with constants replaced by the equal arrays of the same name in
    ``first``."""
    constants = {
        name: first.constants[name] if is_same(array, first.constants.get(name)) else array
        for name, array in graph.constants.items()
    }
    return graph.with_(constants=constants)


def is_same(a: Array, b: Array | None) -> bool:
    """Returns True if two arrays have the same type, shape and bits."""
    if a is b:
        return True
    if b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    a_bytes, b_bytes = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(a_bytes, b_bytes))


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
        targets = dispatch.tensors[len(dispatch.tensors) - dispatch.writes :]
        for name in targets:
            if name not in results:
                description = "its input" if name in op.node.reads else "a constant of the plan"
                raise _wrong(spec, op, f"writes to '{name}', {description}")
        written.update(targets if dispatch.groups else ())
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
    shares = {n: block_words(layouts.get(n, PLAIN)) / 4 for n in (*node.reads, *node.outputs)}
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


def add_dispatches(draft: Draft) -> None:
    """Adds the dispatches of all nodes to the draft.

    Raises the error of the first node that its kernel refuses (:attr:`Draft.refused`).
    """
    graph, stub, parts = draft.graph, draft.options.stub, draft.options.decided("parts")
    if stub and stub not in graph.ops:
        raise InputError(f"stub: model '{graph.name}' has no operator '{stub}'")
    uploaded = {entry.words for entry in draft.packed_inputs.values()}
    on_cpu = _find_cpu_parts(graph, draft.options)
    for node in graph.nodes:
        if node.outputs[0] in uploaded:
            continue
        if part := on_cpu.get(node.outputs[0]):
            if node is part[0]:
                _add_cpu_part(draft, part)
            continue
        yield_to_frame()
        key = draft.dispatch_keys.get(node.title)
        if key in draft.lowered:
            _repeat(draft, draft.lowered[key], node)
            continue
        count, scratch = len(draft.dispatches), set(draft.scratch)
        try:
            _lower_node(draft, node)
        except (ShapeError, DeviceError) as error:
            draft.refuse(node, error)
            continue
        if key is not None:
            added = {n: size for n, size in draft.scratch.items() if n not in scratch}
            draft.lowered[key] = LoweredNode(node, draft.dispatches[count:], added)
    draft.raise_refusal()
    if unbound := [name for name in parts if name not in draft.parts]:
        raise InputError(
            f"decide: '{unbound[0]}' cannot be bound in parts: no kernel of '{graph.name}' binds it"
        )


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
    """Adds one dispatch to the draft for operators that the CPU computes.

    It reads what comes from elsewhere and writes what is read elsewhere.
    """
    graph, results = draft.graph, [name for node in part for name in node.outputs]
    read = [name for node in part for name in node.reads]
    reads = [n for n in read if n not in results and not graph.is_constant(n)]
    reads_elsewhere = [
        n for node in graph.nodes if node.outputs[0] not in results for n in node.reads
    ]
    needed = {draft.root(name) for name in (*reads_elsewhere, *graph.roots)}
    stored = [n for n in results if n not in draft.alias]
    writes = [n for n in stored if n in needed or draft.options.keep]
    draft.on_host.update(
        n for n in results if draft.root(n) in stored and draft.root(n) not in writes
    )
    tensors = (*dict.fromkeys(reads), *writes)
    cost = sum((node_cost(lookup(n.op), n, graph) for n in part), Cost(0, 0, 0))
    dispatch = Dispatch(0, tensors, writes=len(writes))
    draft.cpu_parts[part[0].outputs[0]] = part
    draft.dispatches.append((part[0], NUMPY, dispatch, cost))


def _repeat(draft: Draft, first: LoweredNode, node: Node) -> None:
    """Adds the dispatches of ``first``, a node equal to ``node``, to the draft once more, with
    the tensors of ``node``."""
    original = first.node
    names = dict(
        zip((*original.reads, *original.outputs), (*node.reads, *node.outputs), strict=True)
    )
    for name, size in first.scratch.items():
        names[name] = node.outputs[0] + name.removeprefix(original.outputs[0])
        draft.scratch[names[name]] = size
    for _, kernel, dispatch, cost in first.launches:
        for name in dispatch.tensors:
            draft.parts[names.get(name, name)] = draft.parts[name]
        tensors = tuple(names.get(name, name) for name in dispatch.tensors)
        draft.dispatches.append((node, kernel, replace(dispatch, tensors=tensors), cost))
    draft.chosen[node.title] = draft.chosen.get(original.title, [])


def _lower_node(draft: Draft, node: Node) -> None:
    """Adds the dispatches, scratch and kernel choices of one node to the draft; none for an alias
    or the stub.
    """
    options, sibling, spec = draft.options, draft.sibling, lookup(node.op)
    if spec.alias or node.op == options.stub:
        return
    if any(epilogue.op == options.stub for epilogue in node.epilogues):
        node = replace(node, epilogues=_drop_epilogues(node.epilogues, options.stub))
    assert spec.kernel is not None  # others are in a part for the CPU
    op = Lowering(
        draft.graph, node, draft.limits, draft.layouts, draft.packed, variants=options.variants
    )
    op.required_choices = list(draft.pinned.get(node.title, ()))
    op.requested_kernel = options.decided("kernel").get(node.outputs[0], "")
    op.in_place = {n: draft.in_place[n] for n in node.outputs if n in draft.in_place}
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
