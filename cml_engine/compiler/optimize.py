"""Graph -> Graph, one file each, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cml_engine.compiler.integer.lowering.network import lowered
from cml_engine.compiler.passes.bypass import bypass
from cml_engine.compiler.passes.common_subexpressions import merge_common_subexpressions
from cml_engine.compiler.passes.dead_code import eliminate_dead_code
from cml_engine.compiler.passes.expand_normalization import expand_normalization
from cml_engine.compiler.passes.fold_affine import fold_affine
from cml_engine.compiler.passes.fold_constants import fold_constants
from cml_engine.compiler.passes.fold_padding import fold_padding
from cml_engine.compiler.passes.fuse_elementwise import fuse_elementwise
from cml_engine.compiler.passes.fuse_epilogues import fuse_epilogues
from cml_engine.compiler.passes.group_normalization import normalize_groups
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.passes.rules import apply_registered
from cml_engine.compiler.passes.sink_transposes import sink_transposes
from cml_engine.errors import InputError
from cml_engine.errors.arguments import some_of
from cml_engine.ir.graph import Graph
from cml_engine.ir.reuse import boundaries

#: what happens to a graph before any backend sees it, and why there
STAGES: tuple[tuple[str, Callable[[Graph], Graph], str], ...] = (
    ("infer", infer_facts, "every later pass reads shapes"),
    ("dead_code", eliminate_dead_code, "what is not needed is neither folded nor fused"),
    ("fold", fold_constants, "a slope or bias that is computed becomes a constant for fusing"),
    ("rules", apply_registered, "a game's own rules see its operators as it wrote them"),
    ("common", merge_common_subexpressions, "one result with two readers is computed once"),
    ("transposes", sink_transposes, "before bypass, which makes one or none of two that meet"),
    ("bypass", bypass, "what changes nothing stands between operators that belong together"),
    ("groups", normalize_groups, "before others: a map that is not reshaped may lie in blocks"),
    ("padding", fold_padding, "a pad before a conv is a tensor less to write and read"),
    ("affine", fold_affine, "before fusing: what is in the weights costs nothing at all"),
    ("normalization", expand_normalization, "what the weights could not take, an epilogue can"),
    ("fuse", fuse_epilogues, "it hides nodes that the passes before look for"),
    ("chains", fuse_elementwise, "of the elementwise operators that no producer took"),
    ("sweep", eliminate_dead_code, "the constants and nodes that the passes before used up"),
)

#: what may be left out by its name: the stages, and views in a GPU's plan
NAMES = (*(name for name, _, _ in STAGES), "views")

#: what to leave out so that every tensor of the graph as it is written is computed by itself
AS_WRITTEN = frozenset(NAMES) - {"infer", "fold"}


#: what integer networks are left alone by: these would move a rounding, or put floats in weights
_OF_FLOATS = frozenset({"rules", "groups", "affine", "normalization"})


def optimize(graph: Graph, without: frozenset[str] = frozenset(), *, retain: bool = False) -> Graph:
    """The graph after all stages but those named in ``without``; :class:`InputError` where that
    has a name that no pass has. One that was cooked has been through them already. An integer
    network becomes a graph of whole numbers first. With ``retain`` no pass joins what one input
    changes to what hangs on others too: a run that is given the others does not compute it anew."""
    some_of(NAMES, without, "passes to leave out")
    if graph.ready is not None:
        if undone := without - {"views"}:
            raise InputError(
                f"'{graph.name}' is cooked, and its passes have run: {', '.join(sorted(undone))} "
                "can be left out of the model that it was made of"
            )
        if retain:
            raise InputError(
                f"'{graph.name}' is cooked, for memory that retains nothing: leave retain out, or "
                "take the model that it was made of"
            )
        return graph
    for _, _, left in _stages(graph, without, retain):
        graph = left
    return graph


def stages_of(graph: Graph) -> Iterator[tuple[str, str, Graph]]:
    """Yields the steps of :func:`optimize`: name, reason and graph, beginning with the graph as
    written."""
    yield "written", "the model as it was read", graph
    yield from _stages(graph, frozenset(), False)


def _stages(
    graph: Graph, without: frozenset[str], retain: bool
) -> Iterator[tuple[str, str, Graph]]:
    if graph.integer:
        graph, without = lowered(graph).graph, without | _OF_FLOATS
        yield "integer", "the rule of integer networks, in whole numbers", graph
    if retain:
        graph = graph.with_(apart=boundaries(eliminate_dead_code(graph)))
        yield "retain", "what hangs on different inputs stays apart", graph
    for name, stage, why in STAGES:
        if name not in without:
            graph = stage(graph)
            yield name, why, graph
