"""The export rules of all operators, a module per family; importing this registers them."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from cml_engine.formats.onnx.export.export_rules import ExportRule, registered_rules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")


def load_export_rules() -> Mapping[str, ExportRule]:
    """Returns the export rules of all operators, by the operator's name."""
    return registered_rules()
