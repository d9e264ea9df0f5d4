"""Loads the families of operators: every module of this package, found by walking it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages


@cache
def load_families() -> None:
    """Imports every module of this package, which registers operators and kernel variants."""
    for module in walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        import_module(module.name)
