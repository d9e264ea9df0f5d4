"""Every operator by its name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from cml_engine.errors import OperatorError, UnsupportedOp
from cml_engine.ops.declaration.formula import Formula
from cml_engine.ops.declaration.spec import OpSpec

_REGISTRY: dict[str, OpSpec] = {}
#: the operators of this package, whether or not a game has put its own in the place of some
_OWN: dict[str, OpSpec] = {}


def define(spec: OpSpec) -> OpSpec:
    """Make one of this package's own operators known."""
    _OWN[spec.name] = spec
    return put(spec)


def put(spec: OpSpec) -> OpSpec:
    """Know an operator by its name from now on; a name may be taken only once."""
    if _REGISTRY.get(spec.name, spec) is not spec:
        raise OperatorError(f"operator '{spec.name}' is registered already; unregister it first")
    _REGISTRY[spec.name] = spec
    return spec


def own(name: str) -> OpSpec | None:
    """This package's operator of that name, whether or not a game's stands in its place."""
    return _OWN.get(name)


def unregister(name: str) -> None:
    """Forget an operator (a hot reload, a test). Where it stood in the place of one of the
    engine's, that one is there again."""
    found = _REGISTRY.pop(name, None)
    if found is not None and found.from_game and name in _OWN:
        _REGISTRY[name] = _OWN[name]


def lookup(name: str) -> OpSpec:
    """The operator of that name; :class:`UnsupportedOp` with the nearest names otherwise."""
    try:
        return _REGISTRY[name]
    except KeyError:
        near = get_close_matches(name, _REGISTRY, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `cml ops` lists all"
        raise UnsupportedOp(f"unknown operator '{name}'{hint}") from None


def is_registered(name: str) -> bool:
    return name in _REGISTRY


def is_own(*names: str) -> bool:
    """Returns True if all of these are this package's own operators.

    Passes rely on properties of the engine's operators. An operator that a game has put in the
    place of one has none of them, so passes leave it alone.
    """
    return all(name in _REGISTRY and not _REGISTRY[name].from_game for name in names)


def formula_of(name: str) -> Formula | None:
    """Returns the operator's elementwise formula; None if it is not elementwise."""
    return lookup(name).formula


def registered() -> Mapping[str, OpSpec]:
    """All operators by name, in order of registration."""
    return dict(_REGISTRY)
