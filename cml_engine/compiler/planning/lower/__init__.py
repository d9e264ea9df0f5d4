"""Lowers a graph to a :class:`Plan`."""

from cml_engine.compiler.planning.lower.dispatches import lower_node, node_cost
from cml_engine.compiler.planning.lower.draft import CompleteDraft, Draft
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.lower.stages import draft_plan, lower, place_draft
from cml_engine.compiler.planning.lower.steps import step_of
from cml_engine.compiler.planning.lower.tensors import views_of
from cml_engine.compiler.planning.lower.weights import aligned_bytes

__all__ = [
    "Draft",
    "CompleteDraft",
    "PlanOptions",
    "aligned_bytes",
    "draft_plan",
    "lower",
    "lower_node",
    "node_cost",
    "place_draft",
    "step_of",
    "views_of",
]
