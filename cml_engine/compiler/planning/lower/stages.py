"""Lowers a graph to a :class:`Plan`: dispatches, places of tensors, and weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cml_engine.compiler.plan import Plan, Reuse
from cml_engine.compiler.planning.bands.join_order import move_joins_early
from cml_engine.compiler.planning.lower.dispatches import add_dispatches
from cml_engine.compiler.planning.lower.draft import CompleteDraft, Draft, Launch
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.lower.steps import (
    Locator,
    check_limits,
    input_place,
    readable_places,
    step_of,
    updates_of,
)
from cml_engine.compiler.planning.lower.tensors import (
    aliases_of,
    lifetimes_of,
    passed_on_names,
    place_arena,
    retained_tensors,
)
from cml_engine.compiler.planning.lower.weights import place_weights
from cml_engine.compiler.planning.packed_inputs import find_packed_inputs
from cml_engine.compiler.planning.sibling import Sibling
from cml_engine.errors import InputError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ir.reuse import sources_of


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
    return place_draft(draft_plan(graph, limits, layouts, options, sibling), sibling)


def draft_plan(
    graph: Graph,
    limits: Limits,
    layouts: Mapping[str, str] | None = None,
    options: PlanOptions = PlanOptions(),
    sibling: Sibling | None = None,
    begun: Draft | None = None,
    joins: Collection[str] = (),
) -> CompleteDraft:
    """Returns the draft of a graph: its dispatches and the lifetimes of its tensors, without places
    in memory.

    The draft is built on ``begun`` if that is given. The parts of each tensor in ``joins`` are
    copied into it as soon as they are computed.
    """
    if options.guard % limits.storage_offset_alignment:
        raise InputError(
            f"guard: wanted a multiple of {limits.storage_offset_alignment}, at which tensors lie "
            f"on this device, got {options.guard}"
        )
    chosen = dict(layouts or {})
    alias = aliases_of(graph)
    entries = (
        find_packed_inputs(graph, chosen, limits)
        if options.packed_inputs and not options.keep
        else {}
    )
    alias |= {name: found.words for name, found in entries.items()}
    draft = begun or Draft()
    uploaded = {found.words for found in entries.values()}
    add_dispatches(draft, graph, limits, chosen, options, sibling, uploaded)
    yield_to_frame()
    draft.dispatches = move_joins_early(draft.dispatches, joins, alias)
    draft.passed_on = passed_on_names(graph, alias)
    draft.scratch |= {name: graph.facts[v].size for v, name in draft.passed_on.items()}
    held = retained_tensors(graph, alias) if options.retain else {}
    items = lifetimes_of(graph, draft, alias, chosen, options, held.values())
    return CompleteDraft(graph, limits, chosen, options, draft, alias, entries, held, items)


def place_draft(drafted: CompleteDraft, sibling: Sibling | None = None) -> Plan:
    """Returns the plan of a draft: gives every tensor a place in memory, and makes the dispatches
    steps.

    Raises :class:`DeviceError` if the plan exceeds the device's limits.
    """
    graph, limits, options, draft = drafted.graph, drafted.limits, drafted.options, drafted.draft
    alias, chosen, entries, held = drafted.alias, drafted.layouts, drafted.entries, drafted.retained
    places, memory, kept = place_arena(drafted)
    yield_to_frame()
    weights = place_weights(graph, draft, alias, limits, sibling)
    locate = Locator(graph, chosen, alias, places, weights, draft)
    steps = tuple(
        step_of(i, node, kernel, dispatch, cost, locate, draft.parts)
        for i, (node, kernel, dispatch, cost) in enumerate(kept)
    )
    check_limits(steps, weights, limits)
    return Plan(
        name=graph.name,
        steps=steps,
        inputs={name: input_place(locate, name, entries.get(name)) for name in graph.inputs},
        outputs={name: locate.place(name) for name in graph.outputs},
        tensors=readable_places(graph, locate, options),
        taps={name: locate.place(name) for name in graph.kept},
        places={name: locate.place(name) for node in graph.nodes for name in node.outputs},
        weights=weights.shared.values,
        weights_bytes=weights.shared.nbytes,
        own=weights.own.values,
        own_bytes=weights.own.nbytes,
        memory=memory,
        updates=updates_of(graph, alias, draft, locate),
        options={"keep": options.keep, "guard": options.guard},
        reuse=_reuse(graph, kept, locate, held) if options.retain else None,
        choices=tuple(draft.choices),
        parts={n: p for n, p in draft.parts.items() if p.count > 1 or n in options.parts},
        layouts=chosen,
    )


def _reuse(
    graph: Graph, dispatches: Sequence[Launch], locate: Locator, held: Mapping[str, str]
) -> Reuse:
    sources = sources_of(graph)
    roots = {root: locate(root).nbytes for root in held.values()}
    return Reuse(tuple(sources[node.outputs[0]] for node, *_ in dispatches), roots)
