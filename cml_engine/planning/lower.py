"""Graph -> :class:`Plan`: operators become dispatches, tensors get places, weights are gathered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from cml_engine.errors import CmlError, DeviceError, InputError, InternalError, UnsupportedOp
from cml_engine.graph import Epilogue, Fact, Graph, Node, unused_name
from cml_engine.layout import PLAIN, block_words, stored_bytes, words
from cml_engine.limits import Limits
from cml_engine.ops.declaration import accessors
from cml_engine.ops.declaration.checks import fault, text_of
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
from cml_engine.ops.declaration.in_parts import COUNTS, InParts, check_atomics, in_parts
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel, OpSpec
from cml_engine.plan import Binding, Memory, Plan, Reuse, Step, TensorPlace
from cml_engine.planning.bands.order import joined_early
from cml_engine.planning.check_dispatches import check_dispatches
from cml_engine.planning.choose_storage import rounded_weights
from cml_engine.planning.entries import Entering, entering
from cml_engine.planning.plan_memory import Lifetime, place_within
from cml_engine.planning.reuse import boundaries, sources_of
from cml_engine.planning.sibling import Sibling
from cml_engine.planning.views import Views, find_views, is_view_copy, merged, whole
from cml_engine.ranges import ARENA_BYTES, GUARD_BYTES, an_object, flag, one_of, texts

Array = np.ndarray[Any, Any]
#: a binding takes a multiple of it, so that a vector load at its start or end stays inside, and
#: copies of several, one behind the other, begin where a device can map them
_MIN_BYTES = 16


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """``keep``: no tensor's memory is reused, so that all can be read after a run.
    ``guard``: unused bytes before and after every tensor (tests fill them with a pattern).
    ``stub``: an operator that does nothing; its results are whatever the memory holds.
    ``views``: parts of a tensor may lie in it (``passes/views.py``); not where all are kept.
    ``variants``: the kernels that are faster on the device than those of the engine's rules.
    ``retain``: what a run may leave as it was outlives it (``planning/reuse.py``).
    ``kernels``: those that the caller decides, by the first result of their operators.
    ``parts``: in how many the caller wants tensors bound, by name.
    ``packed_inputs``: who gives an input of an integer network makes words of it where these lie
    packed (``planning/entries.py``); else, and where all are kept, a step does.
    ``arena_limit``: bytes that the arena may take; 0 is any number (``planning/bands/``).
    ``bands``: in how many of them what ends with a tensor is computed, by its name."""

    keep: bool = False
    guard: int = 0
    stub: str = ""
    views: bool = True
    variants: VariantTable = NO_VARIANTS
    retain: bool = False
    kernels: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    packed_inputs: bool = True
    arena_limit: int = 0
    bands: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        flag(self.keep, "keep")
        flag(self.views, "views")
        flag(self.retain, "retain")
        flag(self.packed_inputs, "packed_inputs")
        GUARD_BYTES.check(self.guard, "guard")
        an_object(str, self.stub, "stub")
        an_object(VariantTable, self.variants, "variants")
        texts(self.kernels, "kernels")
        for count in texts(self.parts, "parts").values():
            one_of(COUNTS, count, "parts")
        ARENA_BYTES.check(self.arena_limit, "arena_limit")
        texts(self.bands, "bands")
        if self.keep and (self.arena_limit or self.bands):
            raise InputError("arena_limit: all tensors are kept whole: leave keep or that out")


#: a dispatch, and its node, kernel and cost
Launch = tuple[Node, Kernel, Dispatch, Cost]


@dataclass
class Draft:
    """A plan in the making: dispatches still name tensors, nothing has a place."""

    dispatches: list[Launch] = field(default_factory=list)
    packed: dict[str, Array] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    #: by variable: where a new value that lies in the weights waits until all were read
    passed_on: dict[str, str] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    #: how every tensor that is bound is
    parts: dict[str, InParts] = field(default_factory=dict)
    #: by title of an operator: its kernels, by name and themselves; those that it must have
    chosen: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    pinned: Mapping[str, list[tuple[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Drafted:
    """A plan but for the places of its tensors: its draft, and what is to have a place in the
    arena, with the steps that need it."""

    graph: Graph
    limits: Limits
    layouts: dict[str, str]
    options: PlanOptions
    draft: Draft
    alias: Mapping[str, str]
    entries: Mapping[str, Entering]
    held: Mapping[str, str]
    items: list[Lifetime]


def lower(
    graph: Graph,
    limits: Limits,
    layouts: Mapping[str, str] | None = None,
    options: PlanOptions = PlanOptions(),
    sibling: Sibling | None = None,
) -> Plan:
    """The plan of a graph whose facts are known. Pure: the same arguments give the same plan. With
    a ``sibling`` it has the same kernels and weights as that where they are right."""
    return placed(drafted(graph, limits, layouts, options, sibling), sibling)


def drafted(
    graph: Graph,
    limits: Limits,
    layouts: Mapping[str, str] | None = None,
    options: PlanOptions = PlanOptions(),
    sibling: Sibling | None = None,
    begun: Draft | None = None,
    joins: Collection[str] = (),
) -> Drafted:
    """The graph's dispatches, added to a draft that is ``begun`` or to none. What makes one of
    ``joins`` of its parts copies each as soon as it is there."""
    if options.guard % limits.storage_offset_alignment:
        raise InputError(
            f"guard: wanted a multiple of {limits.storage_offset_alignment}, at which tensors lie "
            f"on this device, got {options.guard}"
        )
    chosen = dict(layouts or {})
    alias = _aliases(graph)
    entries = entering(graph, chosen, limits) if options.packed_inputs and not options.keep else {}
    alias |= {name: found.words for name, found in entries.items()}
    draft = begun or Draft()
    _add_dispatches(draft, graph, limits, chosen, options, sibling, set(alias.values()))
    draft.dispatches = joined_early(draft.dispatches, joins, alias)
    draft.passed_on = _passed_on(graph, alias)
    draft.scratch |= {name: graph.facts[v].size for v, name in draft.passed_on.items()}
    held = _held(graph, alias) if options.retain else {}
    items = _items(graph, draft, alias, chosen, options, held.values())
    return Drafted(graph, limits, chosen, options, draft, alias, entries, held, items)


def placed(drafted: Drafted, sibling: Sibling | None = None) -> Plan:
    """The plan of a draft: everything has a place."""
    graph, limits, options, draft = drafted.graph, drafted.limits, drafted.options, drafted.draft
    alias, chosen, entries, held = drafted.alias, drafted.layouts, drafted.entries, drafted.held
    places, memory, kept = _place_arena(drafted)
    weights = _place_weights(graph, draft, alias, limits, sibling)
    locate = _Locator(graph, chosen, alias, places, weights, draft)
    steps = tuple(
        step_of(i, node, kernel, dispatch, cost, locate, draft.parts)
        for i, (node, kernel, dispatch, cost) in enumerate(kept)
    )
    _check_limits(steps, weights, limits)
    return Plan(
        name=graph.name,
        steps=steps,
        inputs={name: _given(locate, name, entries.get(name)) for name in graph.inputs},
        outputs={name: locate.place(name) for name in graph.outputs},
        tensors=_readable(graph, locate, options),
        taps={name: locate.place(name) for name in graph.kept},
        places={name: locate.place(name) for node in graph.nodes for name in node.outputs},
        weights=weights.shared.values,
        weights_bytes=weights.shared.nbytes,
        own=weights.own.values,
        own_bytes=weights.own.nbytes,
        memory=memory,
        updates=_updates(graph, alias, draft, locate),
        options={"keep": options.keep, "guard": options.guard},
        reuse=_reuse(graph, kept, locate, held) if options.retain else None,
        choices=tuple(draft.choices),
        parts={n: p for n, p in draft.parts.items() if p.count > 1 or n in options.parts},
        layouts=chosen,
    )


def _add_dispatches(
    draft: Draft,
    graph: Graph,
    limits: Limits,
    layouts: dict[str, str],
    options: PlanOptions,
    sibling: Sibling | None,
    entered: Collection[str],
) -> None:
    stub = options.stub
    if stub and stub not in {
        op for n in graph.nodes for op in (n.op, *(e.op for e in n.epilogues))
    }:
        raise InputError(f"stub: model '{graph.name}' has no operator '{stub}'")
    for node in graph.nodes:
        if not (lookup(node.op).traits.enters and node.outputs[0] in entered):
            lower_node(draft, graph, node, limits, layouts, options, sibling)
    if unbound := [name for name in options.parts if name not in draft.parts]:
        raise InputError(
            f"decide: '{unbound[0]}' cannot be bound in parts: no kernel of '{graph.name}' binds it"
        )


def lower_node(
    draft: Draft,
    graph: Graph,
    node: Node,
    limits: Limits,
    layouts: dict[str, str],
    options: PlanOptions,
    sibling: Sibling | None,
) -> None:
    """Add what one node does to the draft."""
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
    op.asked, op.asked_parts = options.kernels.get(node.outputs[0], ""), options.parts
    if sibling is not None:
        op.kept, op.known = sibling.chosen(node), sibling.packed(node, graph)
    dispatches = [d for d in _dispatches_of(spec, spec.kernel, op) if d.groups > 0]
    _check_asked(op, dispatches, spec.kernel)
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
    """The dispatch of a kernel that finds its tensors in the parts in which they are bound."""
    defines: dict[str, int | str] = {}
    for i, name in enumerate(dispatch.tensors):
        parts = draft.parts[name] = in_parts(op, name)
        if parts.count > 1:
            defines |= {f"T{i}_PARTS": parts.count, f"T{i}_PART_BYTES": parts.nbytes}
            if not kernel.interface:
                check_atomics(op, text_of(kernel, spec), f"T{i}", name)
    if not defines or kernel.interface:  # an interface says it already
        return dispatch
    return replace(dispatch, defines={**dispatch.defines, **defines})


def _check_asked(op: Lowering, dispatches: Sequence[Dispatch], kernel: Kernel) -> None:
    """A kernel that is asked for where none could be chosen must be what is there."""
    there = {d.variant or str((d.kernel or kernel).path) for d in dispatches}
    if op.asked and not op.choices and op.asked not in there:
        raise InputError(
            f"decide: {op.node.title} cannot have the kernel '{op.asked}': there is nothing to "
            f"choose, it has {', '.join(sorted(there)) or 'none'}",
            op.node.source,
        )


def _without(epilogues: Sequence[Epilogue], op: str) -> tuple[Epilogue, ...]:
    """Those of other operators; what read a result of the one left out reads the one before."""
    kept: list[Epilogue] = []
    number = [0]  # by the operator's number before: that of the last one kept until there
    for epilogue in epilogues:
        if epilogue.op != op:
            own = tuple((place, number[link]) for place, link in epilogue.own)
            kept.append(replace(epilogue, own=own))
        number.append(len(kept))
    return tuple(kept)


def _dispatches_of(spec: OpSpec, kernel: Kernel, op: Lowering) -> list[Dispatch]:
    try:
        given = [accessors.whole(op, spec, kernel)] if kernel.lower is None else kernel.lower(op)
        dispatches = list(given)
    except CmlError:
        raise
    except Exception as error:
        if not spec.from_game:
            raise
        what = "threads" if kernel.lower is None else "lower"
        raise fault(
            spec, f"its {what} function failed: {type(error).__name__}: {error}", op.node.source
        ) from error
    check_dispatches(spec, op, dispatches)
    return dispatches


def _aliases(graph: Graph) -> dict[str, str]:
    """For every result that is another tensor's memory: that tensor."""
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


def _passed_on(graph: Graph, alias: Mapping[str, str]) -> dict[str, str]:
    """For every variable whose new value is a constant's or a variable's: a tensor to hold it. One
    buffer cannot be copied within itself, and two variables may change places."""
    return {
        variable: unused_name(f"{variable}.next", graph.facts)
        for variable, value in graph.updates
        if alias.get(value, value) in graph.constants
    }


def _updates(
    graph: Graph, alias: Mapping[str, str], draft: Draft, locate: _Locator
) -> tuple[tuple[Binding, Binding], ...]:
    """The copies after a run: first into what is passed on, then into the variables."""
    first, then = [], []
    for variable, value in graph.updates:
        source = locate(value)
        if variable in draft.passed_on:
            waiting = locate(draft.passed_on[variable])
            first.append((source, waiting))
            source = waiting
        then.append((source, locate(variable)))
    return (*first, *then)


def _items(
    graph: Graph,
    draft: Draft,
    alias: Mapping[str, str],
    layouts: Mapping[str, str],
    options: PlanOptions,
    held: Collection[str],
) -> list[Lifetime]:
    """Every tensor in the arena, and the steps that need it where each has memory of its own; what
    is ``held`` from one run to the next is needed by all."""
    last_step = len(draft.dispatches)
    given = [alias.get(name, name) for name in graph.inputs]
    used: dict[str, tuple[int, int]] = dict.fromkeys(given, (-1, -1))
    for node in graph.nodes:  # a result that no dispatch writes (zero extents) has a place too
        for name in node.outputs:
            if name not in alias:
                used.setdefault(name, (last_step, -1))
    for step, (_, _, dispatch, _) in enumerate(draft.dispatches):
        for name in dispatch.tensors:
            root = alias.get(name, name)
            if root not in graph.constants and root not in draft.packed:
                first, last = used.get(root, (step, step))
                used[root] = (min(first, step), max(last, step))
    for name in graph.roots:
        root = alias.get(name, name)
        if root in used:
            used[root] = (used[root][0], last_step)
    used |= dict.fromkeys(draft.passed_on.values(), (last_step, last_step))
    items = []
    for name, (first, last) in used.items():
        size = 4 * draft.scratch[name] if name in draft.scratch else _nbytes(graph, layouts, name)
        size = max(size, _MIN_BYTES) + 2 * options.guard
        throughout = options.keep or name in held
        lifetime = (-1, last_step) if throughout else (first, max(first, last))
        items.append(Lifetime(name, size, *lifetime))
    return items


def _held(graph: Graph, alias: Mapping[str, str]) -> dict[str, str]:
    """The tensors that stay from one run to the next, each with the one whose memory it is."""
    names = [*graph.inputs, *boundaries(graph)]
    return {n: alias.get(n, n) for n in names if alias.get(n, n) not in graph.constants}


def _reuse(
    graph: Graph, dispatches: Sequence[Launch], locate: _Locator, held: Mapping[str, str]
) -> Reuse:
    sources = sources_of(graph)
    roots = {root: locate(root).nbytes for root in held.values()}
    return Reuse(tuple(sources[node.outputs[0]] for node, *_ in dispatches), roots)


def views_of(drafted: Drafted) -> Views:
    """The parts of tensors that may lie in the whole."""
    options, align = drafted.options, drafted.limits.storage_offset_alignment
    if not options.views or options.keep or options.guard:
        return {}
    return find_views(drafted.graph, drafted.layouts, drafted.alias, align, drafted.items)


def _place_arena(drafted: Drafted) -> tuple[dict[str, int], Memory, list[Launch]]:
    """Every tensor's place, and the dispatches. Parts lie in the whole, and what would copy them
    is left out, unless that makes the arena larger."""
    graph, items, options = drafted.graph, drafted.items, drafted.options
    align, most = drafted.limits.storage_offset_alignment, drafted.limits.max_buffer_bytes
    _check_sizes(graph, items, align, most)
    offsets, memory = place_within(items, align, most)
    views = views_of(drafted)
    if views:
        with_views, smaller = place_within(merged(items, views), align, most)
        within = smaller.segment == memory.segment or smaller.peak <= most
        if within and smaller.peak <= memory.peak:
            offsets, memory = with_views, smaller
        else:
            views = {}
    places = {name: offset + options.guard for name, offset in offsets.items()}
    for name in views:
        root, words_before = whole(views, name)
        places[name] = places[root] + 4 * words_before
    kept = [
        (node, kernel, dispatch, cost)
        for node, kernel, dispatch, cost in drafted.draft.dispatches
        if not is_view_copy(node, dispatch.tensors, views, drafted.alias)
    ]
    return places, memory, kept


def _check_sizes(graph: Graph, items: Iterable[Lifetime], align: int, most: int) -> None:
    """:class:`DeviceError` where a tensor alone is more than a buffer."""
    largest = max(items, key=lambda item: item.nbytes, default=None)
    if largest is not None and largest.nbytes > most // align * align:
        raise DeviceError(
            f"tensor '{largest.name}' of '{graph.name}' takes {largest.nbytes} bytes, this device "
            f"allows buffers of {most}. Run the network on tiles of its input (cml.run_tiled, "
            "cml run --tile), use a smaller input, or another device."
        )


def _nbytes(graph: Graph, layouts: Mapping[str, str], name: str) -> int:
    return 4 * words(graph.facts[name], layouts.get(name, PLAIN))


@dataclass(slots=True)
class _Block:
    """Constants one after the other in a buffer."""

    values: dict[str, tuple[int, Array]] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, name: str, array: Array, align: int) -> None:
        self.values[name] = self.nbytes, array
        self.nbytes += -(-max(stored_bytes(array), _MIN_BYTES) // align) * align


@dataclass(frozen=True, slots=True)
class _Weights:
    """What is shared with plans at other shapes, and what is this plan's alone."""

    shared: _Block
    own: _Block
    used: frozenset[str]

    def find(self, name: str) -> tuple[str, int, Array] | None:
        """Space, offset and value of a constant that lies in the weights."""
        if name in self.own.values:
            return ("own", *self.own.values[name])
        return ("weights", *self.shared.values[name]) if name in self.used else None


def _place_weights(
    graph: Graph,
    draft: Draft,
    alias: Mapping[str, str],
    limits: Limits,
    sibling: Sibling | None,
) -> _Weights:
    """Constants that a dispatch binds, an update writes or an output is, one after the other. What
    an update writes is never shared, nor what a sibling does not have."""
    names = [alias.get(n, n) for _, _, d, _ in draft.dispatches for n in d.tensors]
    names += [alias.get(n, n) for n in graph.roots]
    variables = {variable: None for variable, _ in graph.updates}
    shared, own, used = _Block(), _Block(), set[str]()
    if sibling is not None:
        shared = _Block(dict(sibling.plan.weights), sibling.plan.weights_bytes)
    for name in dict.fromkeys([*names, *variables]):
        array = draft.packed.get(name, graph.constants.get(name))
        if array is None:
            continue
        if name in variables or not (sibling is None or sibling.has(name, array)):
            own.add(name, array, limits.storage_offset_alignment)
            continue
        used.add(name)
        if sibling is None:
            shared.add(name, array, limits.storage_offset_alignment)
    return _Weights(shared, own, frozenset(used))


def bound(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _MIN_BYTES) * _MIN_BYTES


@dataclass(frozen=True)
class _Locator:
    """Where a tensor lies, by name."""

    graph: Graph
    layouts: Mapping[str, str]
    alias: Mapping[str, str]
    arena: Mapping[str, int]
    weights: _Weights
    draft: Draft

    def __call__(self, name: str) -> Binding:
        root = self.alias.get(name, name)
        found = self.weights.find(root)
        if found is not None:
            space, offset, array = found
            return Binding(name, space, offset, bound(stored_bytes(array)))
        if root not in self.arena:
            raise InternalError(f"tensor '{name}' has no place in memory")
        if root in self.draft.scratch:
            size = 4 * self.draft.scratch[root]
        else:
            size = _nbytes(self.graph, self.layouts, root)
        return Binding(name, "arena", self.arena[root], bound(size))

    def place(self, name: str) -> TensorPlace:
        layout = self.layouts.get(name, PLAIN)
        return TensorPlace(self(name), self.graph.facts[name], layout)


def step_of(
    index: int,
    node: Node,
    kernel: Kernel,
    dispatch: Dispatch,
    cost: Cost,
    locate: Callable[[str], Binding],
    parts: Mapping[str, InParts],
) -> Step:
    bindings = [_cut(locate(name), parts[name]) for name in dispatch.tensors]
    return Step(
        index=index,
        op=node.op,
        title=node.title,
        path=kernel.path,
        params_layout=kernel.params,
        params=dispatch.params,
        defines={"GROUP": kernel.group, **dispatch.defines},
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
    )


def _cut(binding: Binding, parts: InParts) -> list[Binding]:
    if parts.count == 1:
        return [binding]
    return [
        replace(binding, offset=binding.offset + start, nbytes=nbytes)
        for start, nbytes in parts.ranges(binding.nbytes)
    ]


def node_cost(
    spec: OpSpec, node: Node, graph: Graph, layouts: Mapping[str, str] = MappingProxyType({})
) -> Cost:
    """The operator's cost with its epilogues': their FLOPs, and the operands they read. What is
    stored in fewer bits is fewer bytes."""
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
    """What the tensors take in memory over what they take in 32 bits."""
    full = sum(graph.facts[n].nbytes for n in names)
    stored = sum(graph.facts[n].nbytes * shares[n] for n in names)
    return stored / full if full else 1.0


def _own_cost(spec: OpSpec, node: Node, inputs: list[Fact], outputs: list[Fact]) -> Cost:
    try:
        cost: Any = spec.cost(node.attrs, inputs, outputs)
    except Exception as error:
        if not spec.from_game:
            raise
        said = f"its cost function failed: {type(error).__name__}: {error}"
        raise fault(spec, said, node.source) from error
    if not isinstance(cost, Cost) or not all(0 <= n < inf for n in (cost.flops, cost.bytes)):
        raise fault(spec, f"its cost function gave {cost!r}; wanted a cml.Cost", node.source)
    return cost


def _given(locate: _Locator, name: str, found: Entering | None) -> TensorPlace:
    """Where an input lies, or the words that are made of it."""
    place = locate.place(name)
    if found is None:
        return place
    return replace(place, layout=locate.layouts[found.words], entry=found.entry)


def _readable(graph: Graph, locate: _Locator, options: PlanOptions) -> dict[str, TensorPlace]:
    if not options.keep:
        return {name: locate.place(name) for name in graph.outputs}
    return {name: locate.place(name) for node in graph.nodes for name in node.outputs}


def _check_limits(steps: Iterable[Step], weights: _Weights, limits: Limits) -> None:
    sizes = (("weights", weights.shared.nbytes), ("variables", weights.own.nbytes))
    for what, size in sizes:
        if size > limits.max_buffer_bytes:
            raise DeviceError(
                f"the model's {what} take {size} bytes, this device allows buffers of "
                f"{limits.max_buffer_bytes}. Use a smaller input or another device."
            )
    for step in steps:
        for binding in step.bindings:
            if binding.nbytes > limits.max_binding_bytes:
                raise DeviceError(
                    f"{step.title}: a part of tensor '{binding.tensor}' takes {binding.nbytes} "
                    f"bytes, this device binds at most {limits.max_binding_bytes}. Use another "
                    "device.",
                    step.source,
                )
        if len(step.bindings) > limits.max_storage_buffers:
            raise DeviceError(
                f"{step.title}: binds {_listed(step.bindings)}, together {len(step.bindings)}, "
                f"this device allows {limits.max_storage_buffers}. Use a smaller input or another "
                "device.",
                step.source,
            )


def _listed(bindings: Sequence[Binding]) -> str:
    """The tensors of a step, and in how many parts."""
    counts = Counter(binding.tensor for binding in bindings)
    return ", ".join(f"'{n}' in {c} parts" if c > 1 else f"'{n}'" for n, c in counts.items())
