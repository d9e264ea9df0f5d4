"""Lets convolutions store what a pixel shuffle would move.

A network that enlarges a map computes several channels for each new one, and a transpose between
two reshapes moves them beside each other. On hardware that is a dispatch of 3 µs and more, where
other addresses of the convolution's own stores cost 0.25 µs at most. A software driver copies for
less, and stores neighbours faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cml_engine.compiler.passes.bypass import full_order
from cml_engine.compiler.planning.arena import retained_tensors
from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import is_builtin

#: kernels of a convolution that store by ``conv_store.hlsli``
_KERNELS = frozenset(
    f"conv/{name}.hlsl"
    for name in ("conv", "conv_window", "conv_plain", "conv_row_tile", "conv_phases", "winograd")
)
#: a map [N, C, a, b, H, W] becomes [N, C, H, a, W, b]
_ORDER = [0, 1, 4, 2, 5, 3]


def store_shuffles(draft: Draft) -> Draft:
    """Returns the draft without the dispatches of pixel shuffles whose operands only they read, if
    convolutions compute these; on hardware alone."""
    options = draft.options
    if draft.limits.software or options.keep or not is_builtin("transpose", "reshape"):
        return draft
    launches, moved, fixed = draft.lowered.dispatches, set[str](), preserved_roots(draft)
    for node in draft.graph.nodes:
        factors = _factors(draft.graph, node)
        source = draft.root(node.inputs[0]) if factors else ""
        if factors is None or source in fixed or node.outputs[0] in options.decided("kernel"):
            continue
        if (changed := _without_copy(draft, launches, source, node, factors)) is not None:
            launches = changed
            moved.add(source)
    return without_tensors(draft, launches, moved)


def preserved_roots(draft: Draft) -> set[str]:
    """Returns the tensors with memory of their own that must be stored as they are."""
    preserved = {draft.root(name) for name in (*draft.graph.inputs, *draft.graph.roots)}
    return preserved | {*(retained_tensors(draft).values() if draft.options.retain else ())}


def without_tensors(draft: Draft, launches: Sequence[Launch], tensors: set[str]) -> Draft:
    """Returns the draft with these dispatches, which do not store ``tensors``."""
    if not tensors:
        return draft
    names = {name for name in draft.graph.facts if draft.root(name) in tensors}
    lowered = replace(
        draft.lowered, dispatches=list(launches), unstored=draft.lowered.unstored | names
    )
    return replace(draft, lowered=lowered)


def _factors(graph: Graph, node: Node) -> tuple[int, int] | None:
    """Returns by how many rows and columns a node enlarges a map; None if it is no pixel
    shuffle."""
    if node.op != "transpose" or node.epilogues:
        return None
    shape = graph.facts[node.inputs[0]].shape
    if len(shape) != 6 or full_order(node, 6) != _ORDER:
        return None
    return shape[2], shape[3]


def _without_copy(
    draft: Draft, launches: Sequence[Launch], source: str, node: Node, factors: tuple[int, int]
) -> list[Launch] | None:
    """Returns the dispatches with those that write ``source`` storing the result of ``node`` at
    once; None if that is not possible."""
    target = node.outputs[0]
    shape, split = draft.graph.facts[source].shape, draft.graph.facts[node.inputs[0]].shape
    if shape != (split[0], split[1] * split[2] * split[3], *split[4:]):
        return None
    using = [launch for launch in launches if source in map(draft.root, launch.dispatch.tensors)]
    copies = [launch for launch in using if launch.node is node]
    writers = [launch for launch in using if launch.node is not node]
    if len(copies) != 1 or len(copies[0].dispatch.tensors) != 2 or not writers:
        return None
    if draft.is_split(copies[0].dispatch.tensors):
        return None
    changed: dict[int, Launch] = {}
    for launch in writers:
        dispatch = launch.dispatch
        *operands, result = dispatch.tensors
        is_store = launch.path in _KERNELS and dispatch.writes == 1
        if not is_store or result != source or source in map(draft.root, operands):
            return None
        if dispatch.defines.get("OUT_C4") != 0:
            return None
        shuffle = dict(zip(("SHUFFLE_Y", "SHUFFLE_X"), factors, strict=True))
        stored = replace(
            dispatch, tensors=(*operands, target), defines={**dispatch.defines, **shuffle}
        )
        changed[id(launch)] = launch._replace(dispatch=stored)
    return [changed.get(id(launch), launch) for launch in launches if launch is not copies[0]]
