"""Every operator, declared once: ``spec.py`` says what a declaration is, the families hold them."""

from cml_engine.ops.spec import (
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

#: the families; importing one registers its operators
FAMILIES = (
    "elementwise",
    "integers",
    "conv",
    "matmul",
    "pool",
    "reduce",
    "resample",
    "movement",
    "slicing",
    "padding",
    "gather",
    "roi",
    "erf",
    "resize",
    "ordering",
    "scatter",
    "grid_sample",
    "roi_align",
    "selection",
    "products",
    "columns",
)


def load_families() -> None:
    """Register every built-in operator (once)."""
    from importlib import import_module

    for family in FAMILIES:
        import_module(f"cml_engine.ops.{family}")


__all__ = [
    "EXACT",
    "FAMILIES",
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
