"""Finds the tensors that need a place in the arena, and their lifetimes and places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cml_engine.compiler.plan import Memory
from cml_engine.compiler.planning.lower.draft import CompleteDraft, Draft, Launch
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.lower.weights import MIN_BYTES
from cml_engine.compiler.planning.plan_memory import Lifetime, place_within
from cml_engine.compiler.planning.views import (
    Views,
    find_views,
    is_view_copy,
    merge_lifetimes,
    resolve_view,
)
from cml_engine.errors import DeviceError
from cml_engine.ir.graph import Graph, unused_name
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ir.reuse import boundaries
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.registry import lookup


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


def passed_on_names(graph: Graph, alias: Mapping[str, str]) -> dict[str, str]:
    """Returns the name of an intermediate tensor for each variable that is updated from a constant
    or another variable.

    The new value is copied there first, because a buffer cannot be copied within itself, and two
    variables may be swapped.
    """
    return {
        variable: unused_name(f"{variable}.next", graph.facts)
        for variable, value in graph.updates
        if alias.get(value, value) in graph.constants
    }


def lifetimes_of(
    graph: Graph,
    draft: Draft,
    alias: Mapping[str, str],
    layouts: Mapping[str, str],
    options: PlanOptions,
    held: Collection[str],
) -> list[Lifetime]:
    """Returns the size in bytes and the lifetime of every tensor in the arena, if none is a view.

    Tensors in ``held`` stay in memory between runs, so they live throughout a run.
    """
    last_step = len(draft.dispatches)
    given = [alias.get(name, name) for name in graph.inputs]
    used: dict[str, tuple[int, int]] = dict.fromkeys(given, (-1, -1))
    for node in graph.nodes:  # a result that no dispatch writes (zero extents) also needs a place
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
        size = (
            4 * draft.scratch[name] if name in draft.scratch else tensor_bytes(graph, layouts, name)
        )
        size = max(size, MIN_BYTES) + 2 * options.guard
        throughout = options.keep or name in held
        lifetime = (-1, last_step) if throughout else (first, max(first, last))
        items.append(Lifetime(name, size, *lifetime))
    return items


def retained_tensors(graph: Graph, alias: Mapping[str, str]) -> dict[str, str]:
    """Maps the tensors that stay in memory between runs to the tensors whose memory they use.

    They are the inputs, and the tensors that a later run may reuse. Constants are left out.
    """
    names = [*graph.inputs, *boundaries(graph)]
    return {n: alias.get(n, n) for n in names if alias.get(n, n) not in graph.constants}


def tensor_bytes(graph: Graph, layouts: Mapping[str, str], name: str) -> int:
    return 4 * words(graph.facts[name], layouts.get(name, PLAIN))


def views_of(drafted: CompleteDraft) -> Views:
    """Maps the tensors that may lie in the memory of a whole tensor to their place in it; empty
    if views are off."""
    options, align = drafted.options, drafted.limits.storage_offset_alignment
    if not options.views or options.keep or options.guard:
        return {}
    return find_views(drafted.graph, drafted.layouts, drafted.alias, align, drafted.items)


def place_arena(drafted: CompleteDraft) -> tuple[dict[str, int], Memory, list[Launch]]:
    """Returns the byte offset of every tensor in the arena, the size of the arena, and the
    dispatches to run.

    Parts lie in the whole, and the dispatches that would copy them are left out, unless that
    makes the arena larger. Raises :class:`DeviceError` if a tensor is larger than a buffer.
    """
    graph, items, options = drafted.graph, drafted.items, drafted.options
    align, most = drafted.limits.storage_offset_alignment, drafted.limits.max_buffer_bytes
    _check_sizes(graph, items, align, most)
    offsets, memory = place_within(items, align, most)
    views = views_of(drafted)
    if views:
        with_views, smaller = place_within(merge_lifetimes(items, views), align, most)
        within = smaller.segment == memory.segment or smaller.peak <= most
        if within and smaller.peak <= memory.peak:
            offsets, memory = with_views, smaller
        else:
            views = {}
    places = {name: offset + options.guard for name, offset in offsets.items()}
    for name in views:
        root, words_before = resolve_view(views, name)
        places[name] = places[root] + 4 * words_before
    kept = [
        (node, kernel, dispatch, cost)
        for node, kernel, dispatch, cost in drafted.draft.dispatches
        if not is_view_copy(node, dispatch.tensors, views, drafted.alias)
    ]
    return places, memory, kept


def _check_sizes(graph: Graph, items: Iterable[Lifetime], align: int, most: int) -> None:
    """Raises :class:`DeviceError` if a tensor is larger than the largest buffer of ``most``
    bytes."""
    largest = max(items, key=lambda item: item.nbytes, default=None)
    if largest is not None and largest.nbytes > most // align * align:
        raise DeviceError(
            f"tensor '{largest.name}' of '{graph.name}' takes {largest.nbytes} bytes, this device "
            f"allows buffers of {most}. Run the network on tiles of its input (cml.run_tiled, "
            "cml run --tile), use a smaller input, or another device."
        )
