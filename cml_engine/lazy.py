"""Public names that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Type checkers read the same names from imports under ``TYPE_CHECKING``, where ``as`` makes
    them public.

    Parameters
    ----------
    package : the package's ``__name__``.
    modules : for each module, its names that are also the package's, separated by spaces; "" makes
        the module itself a name of the package.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    places |= {module.rpartition(".")[2]: module for module, names in modules.items() if not names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = import_module(places[name])
        value = getattr(module, name) if modules[places[name]] else module
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names, sorted(places)
