"""All operators: ``declaration/`` defines how one is declared, and each family has a package."""

from cml_engine.ops.declaration.registry import (
    is_registered,
    load_families,
    lookup,
    registered,
    unregister,
)
from cml_engine.ops.declaration.spec import (
    EXACT,
    ROUNDING,
    Case,
    Cost,
    Dispatch,
    Kernel,
    OpSpec,
    Random,
    Tolerance,
    elementwise_cost,
    same_as,
)
from cml_engine.ops.registration import register

__all__ = [
    "EXACT",
    "ROUNDING",
    "Case",
    "Cost",
    "Dispatch",
    "Kernel",
    "OpSpec",
    "Random",
    "Tolerance",
    "elementwise_cost",
    "is_registered",
    "load_families",
    "lookup",
    "register",
    "registered",
    "same_as",
    "unregister",
]
