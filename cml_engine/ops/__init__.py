"""Every operator, declared once: ``declaration/`` says what that is, a package
for each family holds them."""

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

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
    is_registered,
    lookup,
    register,
    registered,
    same_as,
    unregister,
)


@cache
def load_families() -> None:
    """Import every module of this package (once): operators and kernel variants register
    themselves."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)


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
