"""Places in the arena."""

from __future__ import annotations

from collections.abc import Iterable

from cml_engine.errors import DeviceError
from cml_engine.graph import Graph
from cml_engine.plan import Memory
from cml_engine.planning.lower.draft import Drafted, Launch
from cml_engine.planning.plan_memory import Lifetime, place_within
from cml_engine.planning.views import Views, find_views, is_view_copy, merged, whole


def views_of(drafted: Drafted) -> Views:
    """The parts of tensors that may lie in the whole."""
    options, align = drafted.options, drafted.limits.storage_offset_alignment
    if not options.views or options.keep or options.guard:
        return {}
    return find_views(drafted.graph, drafted.layouts, drafted.alias, align, drafted.items)


def place_arena(drafted: Drafted) -> tuple[dict[str, int], Memory, list[Launch]]:
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
