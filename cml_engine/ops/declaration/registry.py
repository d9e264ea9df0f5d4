"""The registry of operators by name, and the loading of the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from cml_engine.errors import OperatorError, UnsupportedOp
from cml_engine.errors.arguments import check_text, similar_names
from cml_engine.ops.declaration.checks import infer_typed
from cml_engine.ops.declaration.expression import Formula
from cml_engine.ops.declaration.spec import OpSpec

_REGISTRY: dict[str, OpSpec] = {}
#: the operators of this package, whether or not a game has put its own in the place of some
_BUILTIN: dict[str, OpSpec] = {}
#: functions from the name of an operator that is not registered to the operator, or None
_DERIVATIONS: list[Callable[[str], OpSpec | None]] = []


@cache
def load_families() -> None:
    """Imports every module of ``cml_engine.ops``, which registers operators and kernel variants."""
    package = __name__.removesuffix(".declaration.registry")
    for module in walk_packages([str(Path(__file__).parents[1])], f"{package}."):
        import_module(module.name)


def define(spec: OpSpec, any_type: bool = False) -> OpSpec:
    """Registers one of this package's own operators and returns it.

    :func:`find_builtin` finds it from then on. ``any_type`` is for an operator that takes more
    types than its signature states.
    """
    if not any_type:
        spec = replace(spec, infer=partial(infer_typed, spec, spec.infer))
    _BUILTIN[spec.name] = spec
    return add(spec)


def add(spec: OpSpec) -> OpSpec:
    """Registers an operator and returns it; raises :class:`OperatorError` if another has its name.

    The other operator must be unregistered first.
    """
    if _REGISTRY.get(spec.name, spec) is not spec:
        raise OperatorError(f"operator '{spec.name}' is registered already; unregister it first")
    _REGISTRY[spec.name] = spec
    return spec


def derive_by(derivation: Callable[[str], OpSpec | None]) -> None:
    """Adds a function that :func:`lookup` calls for names that are not registered."""
    _DERIVATIONS.append(derivation)


def find_builtin(name: str) -> OpSpec | None:
    """Returns this package's operator of that name, or None, even if a game's replaces it."""
    return _BUILTIN.get(name)


def unregister(name: str) -> None:
    """Removes an operator, for a hot reload or a test; an unknown name does nothing.

    If a game's operator had replaced one of the engine's, the engine's is restored.

    Examples
    --------
    >>> cml.ops.unregister("double")
    """
    spec = _REGISTRY.pop(check_text(name, "the name of an operator"), None)
    if spec is not None and spec.is_custom and name in _BUILTIN:
        _REGISTRY[name] = _BUILTIN[name]


def lookup(name: str) -> OpSpec:
    """Returns the operator registered under the name.

    Raises :class:`UnsupportedOp`, which suggests similar names, if there is none.
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        for derivation in _DERIVATIONS:
            if (derived := derivation(name)) is not None:
                return derived
        similar = similar_names(name, _REGISTRY, n=3)
        hint = f"did you mean {' or '.join(map(repr, similar))}? Otherwise " if similar else ""
        raise UnsupportedOp(
            f"unknown operator '{name}'; {hint}register it (--ops FILE.py, cml.register); "
            "`cml ops` lists all"
        ) from None


def is_registered(name: str) -> bool:
    return name in _REGISTRY


def is_builtin(*names: str) -> bool:
    """Returns True if all of the names are registered as this package's own operators.

    Passes rely on properties of the engine's operators. An operator that a game has put in the
    place of one has none of them, so passes leave it alone.
    """
    return all(name in _REGISTRY and not _REGISTRY[name].is_custom for name in names)


def formula_of(name: str) -> Formula | None:
    """Returns the operator's elementwise formula; None if it is not elementwise."""
    return lookup(name).formula


def registered() -> Mapping[str, OpSpec]:
    """Returns a copy of the registry: all operators by name, in order of registration."""
    return dict(_REGISTRY)
