"""The export rules of all operators; importing a module of this package registers its rules."""

from collections.abc import Mapping

from cml_engine.formats.onnx.export.export_rules import ExportRule, registered_rules
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


def load_export_rules() -> Mapping[str, ExportRule]:
    """Returns the export rules of all operators, by the operator's name."""
    return registered_rules()
