"""Lowers a graph to a :class:`Plan`: dispatches, places of tensors, and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from cml_engine.compiler.plan import Binding, CpuPart, Memory, Plan, Reuse, Step, TensorPlace
from cml_engine.compiler.planning.dispatches import (
    NUMPY,
    Draft,
    Launch,
    PlanOptions,
    Sibling,
    add_dispatches,
)
from cml_engine.compiler.planning.layouts import find_packed_inputs
from cml_engine.compiler.planning.memory import (
    Lifetime,
    Views,
    find_views,
    is_view_copy,
    merge_lifetimes,
    place_in_segments,
    resolve_view,
)
from cml_engine.errors import DeviceError, InputError, InternalError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Array, Graph, Node, unused_name
from cml_engine.ir.layout import PLAIN, stored_bytes
from cml_engine.ir.limits import Limits
from cml_engine.ir.reuse import boundaries, sources_of
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.lowering import in_place_operand
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Dispatch
from cml_engine.ops.declaration.split_bindings import SplitBinding

#: the sizes of bindings are multiples of this, so that vector loads stay inside and consecutive
#: copies begin at offsets that a device can map
MIN_BYTES = 16


@dataclass(slots=True)
class _WeightBlock:
    """Constants at consecutive aligned offsets in a buffer, by name with their offset in bytes."""

    values: dict[str, tuple[int, Array]] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, name: str, array: Array, align: int) -> None:
        self.values[name] = self.nbytes, array
        self.nbytes += -(-max(stored_bytes(array), MIN_BYTES) // align) * align


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The constants of a plan: ``shared`` with plans at other shapes, and its ``own``.

    ``used`` names the shared ones that the plan uses.
    """

    shared: _WeightBlock
    own: _WeightBlock
    used: frozenset[str]

    def find(self, name: str) -> tuple[str, int, Array] | None:
        """Returns the space (``"own"`` or ``"weights"``), byte offset and value of a constant,
        or None if it has no place."""
        if name in self.own.values:
            return ("own", *self.own.values[name])
        return ("weights", *self.shared.values[name]) if name in self.used else None


def place_weights(draft: Draft) -> PackedWeights:
    """Places the constants that a dispatch binds, an update writes, or an output is, and returns
    them.

    Variables are never shared, nor constants that the sibling does not have. With a sibling the
    shared constants have its offsets.
    """
    graph, sibling = draft.graph, draft.sibling
    names = [draft.root(n) for _, _, d, _ in draft.dispatches for n in d.tensors]
    names += map(draft.root, graph.roots)
    variables = {variable: None for variable, _ in graph.updates}
    shared, own, used = _WeightBlock(), _WeightBlock(), set[str]()
    if sibling is not None:
        shared = _WeightBlock(dict(sibling.plan.weights), sibling.plan.weights_bytes)
    for name in dict.fromkeys([*names, *variables]):
        array = draft.packed.get(name, graph.constants.get(name))
        if array is None:
            continue
        if name in variables or not (sibling is None or sibling.has_equal(name, array)):
            own.add(name, array, draft.align)
            continue
        used.add(name)
        if sibling is None:
            shared.add(name, array, draft.align)
    return PackedWeights(shared, own, frozenset(used))


def aligned_bytes(nbytes: int) -> int:
    return -(-max(nbytes, 1) // MIN_BYTES) * MIN_BYTES


# -- tensors --------------------------------------------------------------------------------------


def aliases_of(graph: Graph) -> dict[str, str]:
    """Maps every result that shares another tensor's memory, such as a reshape's, to the tensor
    that owns it."""
    alias: dict[str, str] = {}
    for node in graph.nodes:
        spec = lookup(node.op)
        if spec.alias:
            facts = [graph.facts[name] for name in (node.inputs[0], node.outputs[0])]
            if (facts[0].size, facts[0].dtype) != (facts[1].size, facts[1].dtype):
                raise fault(spec, f"{node.title}: an alias of {facts[0]} cannot be {facts[1]}")
            source = node.inputs[0]
            alias[node.outputs[0]] = alias.get(source, source)
    return alias


def find_in_place(draft: Draft) -> dict[str, str]:
    """Maps the results that take the memory of an operand to that operand, as kernels allow it.

    The operand is an intermediate tensor of the same size and layout that nothing reads
    afterwards, in this run or in a later one. Adds the results to ``draft.alias``.
    """
    graph, operand_of = draft.graph, dict[str, str]()
    last = {draft.root(name): i for i, node in enumerate(graph.nodes) for name in node.reads}
    # what a later run needs is among the roots
    protected = set(map(draft.root, [*graph.inputs, *graph.constants, *graph.roots]))
    for i, node in enumerate(graph.nodes):
        name, operand = node.outputs[0], in_place_operand(node)
        if operand is None or name in draft.alias:
            continue
        root = draft.root(operand)
        read_once = [draft.root(read) for read in node.reads].count(root) == 1
        is_alike = all(
            draft.layouts.get(candidate, PLAIN) == draft.layouts.get(name, PLAIN)
            and draft.graph.facts[candidate].dtype == draft.graph.facts[name].dtype
            and draft.nbytes(candidate) == draft.nbytes(name)
            for candidate in (operand, root)
        )
        if read_once and is_alike and root not in protected and last[root] == i:
            operand_of[name] = operand
            draft.alias |= {n: root for n in graph.facts if draft.root(n) == name}
            last[root] = last.get(name, i)
            protected |= {root} if name in protected else set()
    return operand_of


def passed_on_names(draft: Draft) -> dict[str, str]:
    """Returns the name of an intermediate tensor for each variable that is updated from a constant
    or another variable.

    The new value is copied there first, because a buffer cannot be copied within itself, and two
    variables may be swapped.
    """
    return {
        variable: unused_name(f"{variable}.next", draft.graph.facts)
        for variable, value in draft.graph.updates
        if draft.root(value) in draft.graph.constants
    }


def lifetimes_of(draft: Draft) -> list[Lifetime]:
    """Returns the size in bytes and the lifetime of every tensor in the arena, if none is a view.

    Retained tensors stay in memory between runs, so they live throughout a run.
    """
    graph, options, last_step = draft.graph, draft.options, len(draft.dispatches)
    retained = draft.retained.values()
    used: dict[str, tuple[int, int]] = dict.fromkeys(map(draft.root, graph.inputs), (-1, -1))
    for node in graph.nodes:  # a result that no dispatch writes (zero extents) also needs a place
        for name in node.outputs:
            if name not in draft.alias and name not in draft.on_host:
                used.setdefault(name, (last_step, -1))
    for step, (_, _, dispatch, _) in enumerate(draft.dispatches):
        for name in dispatch.tensors:
            root = draft.root(name)
            if root not in graph.constants and root not in draft.packed:
                first, last = used.get(root, (step, step))
                used[root] = (min(first, step), max(last, step))
    for root in map(draft.root, graph.roots):
        if root in used:
            used[root] = (used[root][0], last_step)
    used |= dict.fromkeys(draft.passed_on.values(), (last_step, last_step))
    items = []
    for name, (first, last) in used.items():
        size = max(draft.nbytes(name), MIN_BYTES) + 2 * options.guard
        throughout = options.keep or name in retained
        lifetime = (-1, last_step) if throughout else (first, max(first, last))
        items.append(Lifetime(name, size, *lifetime))
    return items


def retained_tensors(draft: Draft) -> dict[str, str]:
    """Maps the tensors that stay in memory between runs to the tensors whose memory they use.

    They are the inputs, and the tensors that a later run may reuse. Constants are left out.
    """
    names = [*draft.graph.inputs, *boundaries(draft.graph)]
    return {n: draft.root(n) for n in names if draft.root(n) not in draft.graph.constants}


def views_of(draft: Draft) -> Views:
    """Maps the tensors that may lie in the memory of a whole tensor to their place in it; empty
    if views are off."""
    options = draft.options
    if not options.views or options.keep or options.guard:
        return {}
    return find_views(draft.graph, draft.layouts, draft.alias, draft.align, draft.items)


def place_arena(draft: Draft) -> tuple[dict[str, int], Memory, list[Launch]]:
    """Returns the byte offset of every tensor in the arena, the size of the arena, and the
    dispatches to run.

    Parts lie in the whole, and the dispatches that would copy them are left out, unless that
    makes the arena larger. Raises :class:`DeviceError` if a tensor is larger than a buffer.
    """
    items, guard, align, max_bytes = (
        draft.items, draft.options.guard, draft.align, draft.limits.max_buffer_bytes
    )  # fmt: skip
    _check_sizes(draft.graph, items, align, max_bytes)
    offsets, memory = place_in_segments(items, align, max_bytes)
    views = views_of(draft)
    if views:
        with_views, smaller = place_in_segments(merge_lifetimes(items, views), align, max_bytes)
        within = smaller.segment == memory.segment or smaller.peak <= max_bytes
        if within and smaller.peak <= memory.peak:
            offsets, memory = with_views, smaller
        else:
            views = {}
    placed = {name: offset + guard for name, offset in offsets.items()}
    for name in views:
        root, words_before = resolve_view(views, name)
        placed[name] = placed[root] + 4 * words_before
    launches = [
        launch
        for launch in draft.dispatches
        if not is_view_copy(launch[0], launch[2].tensors, views, draft.alias)
    ]
    return placed, memory, launches


def _check_sizes(graph: Graph, items: Iterable[Lifetime], align: int, max_bytes: int) -> None:
    """Raises :class:`DeviceError` if a tensor is larger than the largest buffer of ``max_bytes``
    bytes."""
    largest = max(items, key=lambda item: item.nbytes, default=None)
    if largest is not None and largest.nbytes > max_bytes // align * align:
        raise DeviceError(
            f"tensor '{largest.name}' of '{graph.name}' takes {largest.nbytes} bytes, this device "
            f"allows buffers of {max_bytes}. Run the network on tiles of its input (cml.run_tiled, "
            "cml run --tile), use a smaller input, or another device."
        )


# -- steps ----------------------------------------------------------------------------------------


def updates_of(draft: Draft, locate: Locator) -> tuple[tuple[Binding, Binding], ...]:
    """Returns the copies (source, target) after a run that update variables, in the order in which
    they must run.

    New values that are in the weights are copied to intermediate tensors first.
    """
    staged, written = [], []
    for variable, value in draft.graph.updates:
        source = locate(value)
        if variable in draft.passed_on:
            intermediate = locate(draft.passed_on[variable])
            staged.append((source, intermediate))
            source = intermediate
        written.append((source, locate(variable)))
    return (*staged, *written)


@dataclass(frozen=True)
class Locator:
    """Finds the place of a tensor by name: a call returns its binding, ``place`` also its fact
    and layout."""

    draft: Draft
    arena: Mapping[str, int]
    weights: PackedWeights

    def __call__(self, name: str) -> Binding:
        root = self.draft.root(name)
        constant = self.weights.find(root)
        if constant is not None:
            space, offset, array = constant
            return Binding(name, space, offset, aligned_bytes(stored_bytes(array)))
        if root not in self.arena:
            raise InternalError(f"tensor '{name}' has no place in memory")
        return Binding(name, "arena", self.arena[root], aligned_bytes(self.draft.nbytes(root)))

    def place(self, name: str) -> TensorPlace:
        layout = self.draft.layouts.get(name, PLAIN)
        return TensorPlace(self(name), self.draft.graph.facts[name], layout)


def _step_of(index: int, launch: Launch, locate: Locator) -> Step:
    node, kernel, dispatch, cost = launch
    yield_to_frame()
    if kernel is NUMPY:
        return _cpu_step(index, launch, locate)
    bindings = [_cut(locate(name), locate.draft.parts[name]) for name in dispatch.tensors]
    return Step(
        index=index,
        op=node.op,
        title=node.title,
        path=kernel.path,
        params_layout=kernel.params,
        params=dispatch.params,
        defines={"GROUP": prod(kernel.group_shape), **kernel.defines, **dispatch.defines},
        bindings=tuple(part for binding in bindings for part in binding),
        writes=sum(map(len, bindings[len(bindings) - dispatch.writes :])),
        groups=dispatch.groups,
        cost=cost,
        trusted=kernel.trusted,
        interface=kernel.interface,
        inline=kernel.source,
        fused=tuple(e.op for e in node.epilogues),
        source=node.source,
        variant=dispatch.variant,
        live=dispatch.live,
    )


def _cpu_step(index: int, launch: Launch, locate: Locator) -> Step:
    """Returns the step of a dispatch of :data:`NUMPY`, with its operators as a graph."""
    first, kernel, dispatch, cost = launch
    graph = locate.draft.graph
    nodes, refusals = tuple(locate.draft.cpu_parts[first.outputs[0]]), locate.draft.refusals
    reads, writes = dispatch.tensors[: -dispatch.writes], dispatch.tensors[-dispatch.writes :]
    used = {name for node in nodes for name in (*node.reads, *node.outputs)}
    part = graph.with_(
        inputs=reads,
        outputs=writes,
        nodes=nodes,
        facts={n: fact for n, fact in graph.facts.items() if n in used},
        constants={n: v for n, v in graph.constants.items() if n in used and n not in reads},
        updates=(),
        taps={},
        unfused=(),
    )
    places = {name: locate.place(name) for name in dispatch.tensors}
    return Step(
        index=index,
        op="+".join(dict.fromkeys(node.op for node in nodes)),
        title=", ".join(node.title for node in nodes),
        path=kernel.path,
        params_layout="",
        params={},
        defines={},
        bindings=tuple(place.binding for place in places.values()),
        writes=dispatch.writes,
        groups=0,
        cost=cost,
        trusted=True,
        source=first.source,
        cpu_part=CpuPart(
            graph=part,
            reads=_select(reads, places),
            writes=_select(writes, places),
            refusals=tuple(refusals[n.outputs[0]] for n in nodes if n.outputs[0] in refusals),
        ),
    )


def _select(names: Sequence[str], places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    return {name: places[name] for name in names}


def _cut(binding: Binding, parts: SplitBinding) -> list[Binding]:
    if parts.count == 1:
        return [binding]
    return [
        replace(binding, offset=binding.offset + start, nbytes=nbytes)
        for start, nbytes in parts.ranges(binding.nbytes)
    ]


def input_place(locate: Locator, name: str) -> TensorPlace:
    """Returns the place of input ``name``, with the layout and the conversion of its words if it
    is stored packed."""
    place, packed = locate.place(name), locate.draft.packed_inputs.get(name)
    if packed is None:
        return place
    return replace(place, layout=locate.draft.layouts[packed.words], conversion=packed.conversion)


def _check_limits(
    draft: Draft, launches: Sequence[Launch], steps: Sequence[Step], weights: PackedWeights
) -> None:
    """Raises :class:`DeviceError` if the weights exceed a buffer of the device, or a step exceeds
    the bindings or the threads of a dispatch (:attr:`Draft.refused`)."""
    limits = draft.limits
    sizes = (("weights", weights.shared.nbytes), ("variables", weights.own.nbytes))
    for content, size in sizes:
        if size > limits.max_buffer_bytes:
            raise DeviceError(
                f"the model's {content} take {size} bytes, this device allows buffers of "
                f"{limits.max_buffer_bytes}. Use a smaller input or another device."
            )
    for (node, *_), step in zip(launches, steps, strict=True):
        bindings, threads = len(step.bindings), step.defines.get("GROUP", 0)
        excess = ""
        if step.cpu_part is None and bindings > limits.max_storage_buffers:
            excess = (
                f"binds {_listed(step.bindings)}, together {bindings}, this device allows "
                f"{limits.max_storage_buffers}. Use a smaller input"
            )
        elif int(threads) > limits.max_group_threads:
            excess = (
                f"wants workgroups of {threads} threads, this device allows "
                f"{limits.max_group_threads}. Use smaller workgroups"
            )
        if excess:
            error = DeviceError(f"{step.title}: {excess} or another device.", step.source)
            draft.refuse(node, error)
    draft.raise_refusal()


def _listed(bindings: Sequence[Binding]) -> str:
    """Returns the names of the bound tensors as text, with the number of bindings of each."""
    counts = Counter(binding.tensor for binding in bindings)
    return ", ".join(f"'{n}' in {c} bindings" if c > 1 else f"'{n}'" for n, c in counts.items())


# -- join order -----------------------------------------------------------------------------------

#: a dispatch with its node, its kernel and its cost
L = TypeVar("L", bound=tuple[Node, object, Dispatch, object])


def move_joins_early(
    launches: Sequence[L], joins: Collection[str], alias: Mapping[str, str]
) -> list[L]:
    """Returns the dispatches with each copy of a part into a tensor of ``joins`` moved directly
    after the dispatch that computes the part.

    Other tensors can then use the memory of the part. ``alias`` maps tensors to those whose
    memory they share.
    """
    copies: dict[str, list[L]] = {}
    remaining: list[L] = []
    for launch in launches:
        part = launch[2].tensors[0]
        if launch[0].outputs[0] in joins:
            copies.setdefault(alias.get(part, part), []).append(launch)
        else:
            remaining.append(launch)
    last = {name: i for i, launch in enumerate(remaining) for name in _written(launch[2])}
    ordered = [
        launch for name, part_copies in copies.items() if name not in last for launch in part_copies
    ]
    for i, launch in enumerate(remaining):
        ordered.append(launch)
        for name in dict.fromkeys(_written(launch[2])):
            if last[name] == i:
                ordered += copies.get(name, [])
    return ordered


def _written(dispatch: Dispatch) -> tuple[str, ...]:
    return dispatch.tensors[len(dispatch.tensors) - dispatch.writes :]


# -- stages ---------------------------------------------------------------------------------------


def lower(
    graph: Graph,
    limits: Limits,
    layouts: Mapping[str, str] | None = None,
    options: PlanOptions = PlanOptions(),
    sibling: Sibling | None = None,
) -> Plan:
    """Returns the plan of a graph whose facts are known.

    Equal arguments give equal plans. With a ``sibling`` the plan uses its kernels and packed
    weights if they are valid.
    """
    return place_draft(complete_draft(Draft(graph, limits, dict(layouts or {}), options, sibling)))


def complete_draft(draft: Draft, joins: Collection[str] = ()) -> Draft:
    """Adds the dispatches of its graph and the lifetimes of its tensors to a draft, and returns it.

    The parts of each tensor in ``joins`` are copied into it as soon as they are computed.
    """
    graph, options = draft.graph, draft.options
    if options.guard % draft.align:
        raise InputError(
            f"guard: wanted a multiple of {draft.align}, at which tensors lie on this device, got "
            f"{options.guard}"
        )
    draft.alias = aliases_of(graph)
    if options.packed_inputs and not options.keep:
        draft.packed_inputs = find_packed_inputs(graph, draft.layouts, draft.limits)
        draft.alias |= {name: packed.words for name, packed in draft.packed_inputs.items()}
    if not options.keep:
        draft.in_place = find_in_place(draft)
    add_dispatches(draft)
    yield_to_frame()
    draft.dispatches = move_joins_early(draft.dispatches, joins, draft.alias)
    draft.passed_on = passed_on_names(draft)
    draft.scratch |= {name: graph.facts[v].size for v, name in draft.passed_on.items()}
    if options.retain:
        draft.retained = retained_tensors(draft)
    draft.items = lifetimes_of(draft)
    return draft


def place_draft(draft: Draft) -> Plan:
    """Returns the plan of a draft: gives every tensor a place in memory, and makes the dispatches
    steps.

    Raises :class:`DeviceError` if the plan exceeds the device's limits.
    """
    graph, options = draft.graph, draft.options
    arena, memory, launches = place_arena(draft)
    decided = options.decided("parts")
    yield_to_frame()
    weights = place_weights(draft)
    locate = Locator(draft, arena, weights)
    steps = tuple(_step_of(i, launch, locate) for i, launch in enumerate(launches))
    _check_limits(draft, launches, steps, weights)
    inputs = {name: input_place(locate, name) for name in graph.inputs}
    variables = {name: locate.place(name) for name, _ in graph.updates}
    results = (name for node in graph.nodes for name in node.outputs)
    computed = {name: locate.place(name) for name in results if name not in draft.on_host}
    outputs = {name: locate.place(name) for name in graph.outputs}
    return Plan(
        name=graph.name,
        steps=steps,
        inputs=inputs,
        outputs=outputs,
        tensors=computed if options.keep else outputs,
        taps={name: locate.place(tensor) for name, tensor in graph.taps.items()},
        places={**inputs, **variables, **computed},
        weights=weights.shared.values,
        weights_bytes=weights.shared.nbytes,
        own=weights.own.values,
        own_bytes=weights.own.nbytes,
        memory=memory,
        updates=updates_of(draft, locate),
        options={"keep": options.keep, "guard": options.guard},
        reuse=_reuse(launches, locate) if options.retain else None,
        choices=tuple(draft.choices),
        parts={n: p for n, p in draft.parts.items() if p.count > 1 or n in decided},
        layouts=draft.layouts,
    )


def _reuse(launches: Sequence[Launch], locate: Locator) -> Reuse:
    sources = sources_of(locate.draft.graph)
    roots = {root: locate(root).nbytes for root in locate.draft.retained.values()}
    return Reuse(tuple(sources[node.outputs[0]] for node, *_ in launches), roots)
