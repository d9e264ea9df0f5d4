"""The passes that optimize a graph, in the order in which they run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.passes.attention_heads import store_heads
from cml_engine.compiler.passes.bypass import bypass
from cml_engine.compiler.passes.cleanup import (
    eliminate_dead_code,
    fold_constants,
    merge_common_subexpressions,
)
from cml_engine.compiler.passes.expand_normalization import expand_normalization
from cml_engine.compiler.passes.fold_affine import fold_affine
from cml_engine.compiler.passes.fold_padding import fold_padding
from cml_engine.compiler.passes.fold_slices import fold_slices
from cml_engine.compiler.passes.fuse_elementwise import fuse_elementwise
from cml_engine.compiler.passes.fuse_epilogues import fuse_epilogues
from cml_engine.compiler.passes.group_normalization import normalize_groups
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.passes.join_products import join_products
from cml_engine.compiler.passes.join_slices import join_slices
from cml_engine.compiler.passes.kept_tensors import add_kept_tensors
from cml_engine.compiler.passes.partition import group_cpu_operators
from cml_engine.compiler.passes.raise_elementwise import raise_elementwise
from cml_engine.compiler.passes.rules import apply_registered
from cml_engine.compiler.passes.single_factors import move_single_factors
from cml_engine.compiler.passes.single_values import use_single_values
from cml_engine.compiler.passes.sink_transposes import sink_transposes
from cml_engine.compiler.passes.standardize_rows import standardize_rows
from cml_engine.compiler.passes.transposed_operands import read_transposed
from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_choices
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph
from cml_engine.ir.reuse import boundaries

_log = logging.getLogger(__name__)

#: the passes before any backend sees a graph: name, function, reason for the position
STAGES: tuple[tuple[str, Callable[[Graph], Graph], str], ...] = (
    ("infer", infer_facts, "every later pass reads shapes"),
    ("dead_code", eliminate_dead_code, "what is not needed is neither folded nor fused"),
    ("fold", fold_constants, "a slope or bias that is computed becomes a constant for fusing"),
    ("single_values", use_single_values, "after folding, which makes others; less to store"),
    ("rules", apply_registered, "a game's own rules see its operators as it wrote them"),
    ("common", merge_common_subexpressions, "one result with two readers is computed once"),
    ("transposes", sink_transposes, "before bypass, which makes one or none of two that meet"),
    ("bypass", bypass, "what changes nothing stands between operators that belong together"),
    ("operands", read_transposed, "after bypass, which merges transposes; before heads"),
    ("groups", normalize_groups, "before others: a map that is not reshaped may lie in blocks"),
    ("slices", fold_slices, "before padding, which takes what is left of a border"),
    ("joins", join_slices, "after slices, which convolutions alone may take"),
    ("padding", fold_padding, "a pad before a conv is a tensor less to write and read"),
    ("factors", move_single_factors, "before affine, which takes what is constant of a factor"),
    ("affine", fold_affine, "before fusing: what is in the weights costs nothing at all"),
    ("normalization", expand_normalization, "what the weights could not take, an epilogue can"),
    ("rows", standardize_rows, "before fusing: scale and offset become epilogues"),
    ("raise", raise_elementwise, "before fusing, which looks at a producer's own readers"),
    ("fuse", fuse_epilogues, "it hides nodes that the passes before look for"),
    ("heads", store_heads, "after fusing, whose operands have the product's own columns"),
    ("products", join_products, "after heads, which several results have alike"),
    ("chains", fuse_elementwise, "of the elementwise operators that no producer took"),
    ("sweep", eliminate_dead_code, "the constants and nodes that the passes before used up"),
    ("partition", group_cpu_operators, "the last that changes the order of the nodes"),
)

#: names that ``without`` may contain: the stages, and views in a GPU's plan
NAMES = (*(name for name, _, _ in STAGES), "views")

#: leave these out to compute every tensor of the original graph by itself
AS_WRITTEN = frozenset(NAMES) - {"infer", "fold"}


#: stages that integer networks skip: they would move a rounding, or put floats in weights
_FLOAT_STAGES = frozenset(
    {"rules", "groups", "factors", "affine", "normalization", "rows", "products"}
)


def optimize(graph: Graph, without: frozenset[str] = frozenset(), *, retain: bool = False) -> Graph:
    """Returns the graph after all stages except those named in ``without``.

    An integer network is lowered to a graph of whole numbers first. A cooked graph is returned
    unchanged, because it was optimized before cooking. With ``retain`` no pass joins results of
    one input with results of others, so that a run can skip the part whose inputs did not
    change. Tensors to be kept (``graph.taps``) do not change what the passes do; they are added
    at the end. Raises :class:`InputError` if ``without`` names an unknown pass.
    """
    check_choices(NAMES, without, "passes to leave out")
    if graph.cooked_form is not None:
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
    for _, _, rewritten in _stages(graph, without, retain):
        graph = rewritten
    return graph


def stages_of(graph: Graph) -> Iterator[tuple[str, str, Graph]]:
    """Yields the name, the reason and the resulting graph of each step of :func:`optimize`.

    The first step is the original graph itself, named ``"written"``.
    """
    yield "written", "the model as it was read", graph
    yield from _stages(graph, frozenset(), False)


def _stages(
    graph: Graph, without: frozenset[str], retain: bool
) -> Iterator[tuple[str, str, Graph]]:
    if graph.integer:
        graph, without = lower_to_integers(graph).graph, without | _FLOAT_STAGES
        yield "integer", "the rule of integer networks, in whole numbers", graph
    written, graph = graph, graph.with_(taps={})
    if retain:
        apart = boundaries(eliminate_dead_code(graph))
        graph = graph.with_(unfused=(*graph.unfused, *apart))
        yield "retain", "what hangs on different inputs stays apart", graph
    for name, stage, why in STAGES:
        if name not in without:
            yield_to_frame()
            graph, before = stage(graph), len(graph.nodes)
            if len(graph.nodes) != before:
                _log.debug("'%s': %s, %d to %d nodes", graph.name, name, before, len(graph.nodes))
            yield name, why, graph
    if written.taps:
        folded = fold_constants(eliminate_dead_code(infer_facts(written)))
        yield (
            "kept",
            "apart from the other nodes, which stay as they are",
            group_cpu_operators(add_kept_tensors(graph, folded)),
        )
