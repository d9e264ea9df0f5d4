"""The export forms of all operators; importing a module of this package registers its rows."""

from collections.abc import Mapping

from cml_engine.formats.onnx.export.export_rules import FormRow, declared
from cml_engine.formats.onnx.export.operators import (  # noqa: F401
    elementwise,
    indexing,
    integers,
    movement,
    pooling,
    products,
    reductions,
    regions,
    resampling,
)


def export_rows() -> Mapping[str, FormRow]:
    """Returns every row by the operator's name."""
    return declared()
