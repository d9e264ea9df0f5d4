"""Every operator, declared once: ``declaration/`` says what that is, a package
for each family holds them."""

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

#: the modules of the families; importing one registers its operators
FAMILIES = (
    "elementwise.operators",
    "elementwise.integers",
    "conv.operators",
    "matmul.operators",
    "pooling.operators",
    "reduction.operators",
    "resampling.operators",
    "movement.operators",
    "movement.slicing",
    "movement.padding",
    "indexing.gather",
    "resampling.roi",
    "elementwise.erf",
    "resampling.resize",
    "reduction.ordering",
    "indexing.scatter",
    "resampling.grid_sample",
    "resampling.roi_align",
    "reduction.selection",
    "matmul.integers",
    "pooling.columns",
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
