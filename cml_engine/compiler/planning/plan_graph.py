"""Plans an optimized graph with the caller's decisions, for sessions, tools and cooked files."""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.bands.plan_in_bands import plan_in_bands
from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions, resolve_overrides
from cml_engine.compiler.planning.dispatches import Draft, PlanOptions, Sibling
from cml_engine.compiler.planning.layouts import Storage, layouts_for
from cml_engine.compiler.planning.lower import complete_draft
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits

DEFAULT = PlanOptions()


def plan_graph(
    graph: Graph,
    limits: Limits,
    storage: Storage = "float",
    options: PlanOptions = DEFAULT,
    decide: Decisions = NO_DECISIONS,
    *,
    written: Graph | None = None,
    sibling: Sibling | None = None,
    blocked_layout: bool = True,
) -> Plan:
    """Returns the plan of an optimized graph for a device with these limits.

    ``storage`` is the storage of feature maps by default. The decisions ``decide`` may use the
    names of the original graph ``written``. Without ``blocked_layout`` all tensors are plain.
    See :func:`lower` for the rest.
    """
    overrides = resolve_overrides(decide, written or graph, graph)
    layouts = {}
    if blocked_layout:
        layouts = layouts_for(graph, storage, overrides["storage"], overrides["layout"])
    options = replace(options, overrides=overrides)
    return plan_in_bands(complete_draft(Draft(graph, limits, layouts, options, sibling)))
