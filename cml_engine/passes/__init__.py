"""Graph -> Graph, one file each, in this order."""

from __future__ import annotations

from collections.abc import Callable

from cml_engine.graph import Graph
from cml_engine.passes.dead_code import eliminate_dead_code
from cml_engine.passes.fold_constants import fold_constants
from cml_engine.passes.fuse_epilogues import fuse_epilogues
from cml_engine.passes.infer import infer_facts

#: what happens to a graph before any backend sees it, and why there
STAGES: tuple[tuple[str, Callable[[Graph], Graph], str], ...] = (
    ("infer", infer_facts, "every later pass reads shapes"),
    ("dead_code", eliminate_dead_code, "what is not needed is neither folded nor fused"),
    ("fold", fold_constants, "a slope or bias that is computed becomes a constant for fusing"),
    ("fuse", fuse_epilogues, "last: it hides nodes that the passes before look for"),
    ("sweep", eliminate_dead_code, "the constants that folding used up"),
)


def optimize(graph: Graph, without: frozenset[str] = frozenset()) -> Graph:
    """The graph after all stages but those named in ``without``."""
    for name, stage, _ in STAGES:
        if name not in without:
            graph = stage(graph)
    return graph
