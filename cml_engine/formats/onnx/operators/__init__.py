"""The conversions of all ONNX operators, a module per family; importing this registers them."""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")
