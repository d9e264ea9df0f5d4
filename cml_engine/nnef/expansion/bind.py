"""Binds arguments to parameters by position and name, fills in defaults, checks types (A.2.3).

It accepts what existing files contain: an integer in place of a scalar (``alpha = 1``),
positional attributes and named tensors. Nothing else is converted.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cml_engine.nnef.expansion.signatures import Param, Signature
from cml_engine.nnef.expansion.values import TensorRef, Value, describe, kind_of
from cml_engine.nnef.text.syntax_tree import Type


class BindError(Exception):
    """The error that arguments do not fit a signature; the caller adds the source position."""


@dataclass(frozen=True, slots=True)
class BoundArguments:
    """A call's values by parameter name, in the order of declaration.

    ``dtype`` is the type that ``?`` stands for, or None.
    """

    values: Mapping[str, Value]
    dtype: str | None


def bind(
    sig: Signature,
    positional: list[Value],
    named: Mapping[str, Value],
    generic: str | None,
) -> BoundArguments:
    """Returns the values of the parameters of ``sig`` for a call, with defaults filled in.

    ``generic`` is the type in ``op<type>``. Raises :class:`BindError` if an argument does not fit.
    """
    given = _match_arguments(sig, positional, named)
    dtype = _dtype(sig, given, generic)
    values = {p.name: _value(sig, p, given, dtype) for p in sig.params}
    return BoundArguments(values, dtype)


def _match_arguments(
    sig: Signature, positional: list[Value], named: Mapping[str, Value]
) -> dict[str, Value]:
    if len(positional) > len(sig.params):
        raise BindError(
            f"{sig.name} takes at most {len(sig.params)} arguments, got {len(positional)}"
        )
    given = {param.name: v for param, v in zip(sig.params, positional, strict=False)}
    for name, value in named.items():
        if name not in sig.by_name:
            raise BindError(_unknown_parameter(sig, name))
        if name in given:
            raise BindError(f"{sig.name}: parameter '{name}' is given twice")
        given[name] = value
    return given


def _unknown_parameter(sig: Signature, name: str) -> str:
    near = difflib.get_close_matches(name, sig.by_name, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sig.by_name) or 'none'}"
    return f"{sig.name} has no parameter '{name}': {hint}"


def _dtype(sig: Signature, given: Mapping[str, Value], generic: str | None) -> str | None:
    """Returns the type that ``?`` stands for in a call; None if the operator is not generic.

    It is the generic argument, the type of a tensor argument, the default, or the type of a
    literal: the first of them that exists.
    """
    if not sig.generic:
        if generic is not None:
            raise BindError(f"{sig.name} takes no <{generic}>: remove it")
        return None
    if generic is not None and generic != "?":
        return generic
    generics = [given[p.name] for p in sig.params if p.type.is_generic and p.name in given]
    leaves = [leaf for value in generics for leaf in _leaves(value)]
    for leaf in leaves:
        if isinstance(leaf, TensorRef):
            return leaf.dtype
    if sig.default_dtype is not None:
        return sig.default_dtype
    if leaves:
        return "scalar" if any(isinstance(leaf, float) for leaf in leaves) else kind_of(leaves[0])
    if sig.needs_dtype:
        raise BindError(f"{sig.name} needs a type: write {sig.name}<integer>(...)")
    return None


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _value(sig: Signature, param: Param, given: Mapping[str, Value], dtype: str | None) -> Value:
    if param.name in given:
        value = given[param.name]
    elif param.required:
        raise BindError(f"{sig.name} wants parameter '{param.name}' ({param.type}): give it")
    else:
        value = param.default
    try:
        return coerce(param.type, value, dtype)
    except BindError as problem:
        wanted = _describe_type(param.type, dtype)
        message = f"{sig.name}: parameter '{param.name}' wants {wanted}, got {describe(value)}"
        detail = f" ({problem})" if problem.args else ""
        raise BindError(message + detail) from None


def _describe_type(kind: Type, dtype: str | None) -> str:
    return str(kind) if dtype is None else str(kind).replace("?", dtype)


def coerce(kind: Type, value: Value, dtype: str | None) -> Value:
    """Returns a value converted to a parameter's type, such as an integer to a scalar.

    ``dtype`` is the type of ``?``. Raises :class:`BindError` if the value does not fit.
    """
    return _COERCE[kind.kind](kind, value, dtype)


def _primitive(kind: Type, value: Value, dtype: str | None) -> Value:
    wanted = dtype if kind.name == "?" else kind.name
    got = kind_of(value)
    if got == wanted:
        return value
    if got == "integer" and wanted == "scalar":
        return float(value)
    raise BindError(_conversion_hint(wanted, value))


def _conversion_hint(wanted: str | None, value: Value) -> str:
    if isinstance(value, TensorRef):
        return "a tensor cannot be an attribute"
    if wanted == "integer" and isinstance(value, float):
        return "write it without a decimal point"
    return f"wanted {wanted}, got {describe(value)}"


def _tensor(kind: Type, value: Value, dtype: str | None) -> Value:
    wanted = dtype if kind.name == "?" else kind.name
    if not isinstance(value, TensorRef):
        return _literal(wanted, value)
    if wanted and value.dtype != wanted:
        raise BindError(f"cast it: cast<{wanted}>({value.name})")
    return value


def _literal(wanted: str | None, value: Value) -> Value:
    """Returns a number given for a tensor, converted to the tensor's type; arrays item by item."""
    got = kind_of(value)
    if got == "tuple":
        raise BindError("declare it as a variable or a constant")
    if got == "array":  # tract writes small constants this way
        return [_literal(wanted, item) for item in value]
    if got == "string":
        raise BindError
    if not wanted or got == wanted:
        return value
    if got == "integer" and wanted == "scalar":
        return float(value)
    raise BindError


def _array(kind: Type, value: Value, dtype: str | None) -> list[Value]:
    if not isinstance(value, list):
        raise BindError("write it in brackets")
    item = kind.items[0]
    convert = _COERCE[item.kind]
    return [convert(item, element, dtype) for element in value]


def _tuple(kind: Type, value: Value, dtype: str | None) -> tuple[Value, ...]:
    if not isinstance(value, tuple) or len(value) != len(kind.items):
        raise BindError(f"write {len(kind.items)} values in parentheses")
    pairs = zip(kind.items, value, strict=True)
    return tuple(coerce(item, element, dtype) for item, element in pairs)


_COERCE: dict[str, Callable[[Type, Any, str | None], object]] = {
    "primitive": _primitive,
    "tensor": _tensor,
    "array": _array,
    "tuple": _tuple,
}
