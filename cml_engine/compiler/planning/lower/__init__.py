"""Lowers a graph to a :class:`Plan`."""

from cml_engine.compiler.planning.lower.dispatches import lower_node, node_cost
from cml_engine.compiler.planning.lower.draft import CompleteDraft, Draft
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.lower.stages import drafted, lower, placed
from cml_engine.compiler.planning.lower.steps import step_of
from cml_engine.compiler.planning.lower.tensors import views_of
from cml_engine.compiler.planning.lower.weights import bound

__all__ = [
    "Draft",
    "CompleteDraft",
    "PlanOptions",
    "bound",
    "drafted",
    "lower",
    "lower_node",
    "node_cost",
    "placed",
    "step_of",
    "views_of",
]
