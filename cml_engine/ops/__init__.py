"""Every operator, declared once: ``declaration/`` says what that is, a package for
each family holds them."""

from cml_engine.ops.declaration.registry import is_registered, lookup, registered, unregister
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
from cml_engine.ops.families import load_families
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
