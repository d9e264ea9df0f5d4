"""The signatures of NNEF's operators, read from ``stdlib.nnef`` (NNEF 1.0.5, chapter 4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import takewhile

from cml_engine.errors import ShapeError, UnsupportedOp
from cml_engine.errors.arguments import check_text, suggestion
from cml_engine.ir.graph import NUMPY_DTYPE, Fact, can_be_shape
from cml_engine.nnef.expansion.values import TensorRef, Value, describe, kind_of, leaves
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.nnef.text.syntax_tree import (
    ArrayExpr,
    Expr,
    Fragment,
    FragmentResult,
    Literal,
    TupleExpr,
    Type,
)

#: The :attr:`Param.default` of a required parameter.
REQUIRED: object = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an operator.

    ``default`` is a plain value (a list for an array), or ``REQUIRED``.

    Examples
    --------
    >>> [param.name for param in signature("relu").params if param.is_tensor]
    ['x']
    """

    name: str
    type: Type
    default: Value = REQUIRED

    @property
    def is_tensor(self) -> bool:
        """True for a tensor or an array of tensors, which become inputs of the node.

        Other parameters become attributes.
        """
        return self.type.has_tensor

    @property
    def is_array(self) -> bool:
        return self.type.kind == "array"

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    """An operator's declaration: its name, parameters and results.

    ``default_dtype`` is the type of ``?`` if neither a generic argument nor an input determines it.

    Examples
    --------
    >>> [param.name for param in signature("leaky_relu").attrs]
    ['alpha']
    """

    name: str
    params: tuple[Param, ...]
    results: tuple[FragmentResult, ...]
    generic: bool = False
    default_dtype: str | None = None

    @cached_property
    def by_name(self) -> Mapping[str, Param]:
        return {param.name: param for param in self.params}

    @property
    def tensors(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if param.is_tensor)

    @property
    def attrs(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if not param.is_tensor)

    @cached_property
    def needs_dtype(self) -> bool:
        """True if only ``op<type>(...)`` determines the result's type, as for ``cast``."""
        return self.generic and not any(param.type.is_generic for param in self.params)

    def fits(self, other: Signature) -> bool:
        """Returns True if both signatures have equal parameters in order, and equal result types.

        Defaults may differ.
        """
        mine = [(param.name, param.type) for param in self.params]
        theirs = [(param.name, param.type) for param in other.params]
        results = [result.type for result in self.results]
        return mine == theirs and results == [result.type for result in other.results]

    def __str__(self) -> str:
        params = ", ".join(f"{param.name}: {param.type}" for param in self.params)
        results = ", ".join(f"{result.name}: {result.type}" for result in self.results)
        return f"{self.name}({params}) -> ({results})"


def signature(name: str) -> Signature:
    """Returns the signature of an operator of NNEF's standard; raises UnsupportedOp for others.

    Examples
    --------
    >>> signature("relu").name
    'relu'
    """
    known_signature = standard_signatures().get(check_text(name, "the name of an operator"))
    if known_signature is None:
        raise UnsupportedOp(unknown_operator(name, standard_signatures()))
    return known_signature


class FragmentFile:
    """A text of fragment declarations, parsed on first use.

    Operators that NNEF can express have a body.
    """

    def __init__(self, file: str, text: str | None = None) -> None:
        self.file = file
        self._text = text

    @cached_property
    def source(self) -> SourceText:
        if self._text is None:
            path = resources.files("cml_engine.nnef").joinpath(self.file)
            self._text = path.read_text(encoding="ascii")
        return SourceText(self._text, self.file)

    @cached_property
    def fragments(self) -> Mapping[str, Fragment]:
        parsed = parse_fragments(self.source.text, self.file)
        return {fragment.name: fragment for fragment in parsed}

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        return {name: signature_of(f, self.source) for name, f in self.fragments.items()}

    def comment_above(self, name: str) -> str:
        """Returns the comment lines above a declaration as one text, or "".

        They say what the operator does.
        """
        lines_above = self.source.text[: self.fragments[name].pos].splitlines()[:-1]
        lines = takewhile(lambda line: re.match("# (?!----)", line), reversed(lines_above))
        return " ".join(line[2:] for line in reversed([*lines]))


#: NNEF's standard library, the engine's extensions, and tract's operators
STDLIB, EXTENSIONS, TRACT = map(FragmentFile, ("stdlib.nnef", "extensions.nnef", "tract.nnef"))


def standard_signatures() -> Mapping[str, Signature]:
    """Returns the signatures of NNEF's standard operators by name.

    Examples
    --------
    >>> standard_signatures()["relu"].results[0].name
    'y'
    """
    return STDLIB.signatures


@cache
def operator_signatures() -> Mapping[str, Signature]:
    """Returns the signatures of NNEF's and the engine's own operators by name."""
    return {**STDLIB.signatures, **EXTENSIONS.signatures}


def signature_of(fragment: Fragment, source: SourceText) -> Signature:
    """Returns the signature of a fragment, with its defaults evaluated.

    ``source`` is the fragment's text, for errors.
    """
    names: set[str] = set()
    for name, pos in _declared_names(fragment):
        if name in names:
            raise source.error(f"fragment '{fragment.name}' declares '{name}' twice", pos)
        names.add(name)
    params = tuple(
        Param(p.name, p.type, REQUIRED if p.default is None else _default(p.default, source))
        for p in fragment.params
    )
    return Signature(
        fragment.name, params, fragment.results, fragment.generic, fragment.default_dtype
    )


def declared_signature(text: str, file: str) -> Signature:
    """Returns the signature of a custom operator from its declaration, the text's first fragment.

    ``file`` is the text's name in errors.
    """
    signatures = FragmentFile(file, text).signatures
    if not signatures:
        raise SourceText(text, file).error("wanted a fragment declaration, got none", 0)
    return next(iter(signatures.values()))


def unknown_operator(name: str, known_names: Iterable[str]) -> str:
    """Returns the error message for an operator without a declaration; suggests a similar name."""
    hint = suggestion(name, known_names)
    hint = f"; {hint} Otherwise " if hint else ": "
    return (
        f"unknown operator '{name}'{hint}register it (--ops FILE.py, cml.register), or declare it "
        "as a fragment"
    )


def _declared_names(fragment: Fragment) -> list[tuple[str, int]]:
    params = [(param.name, param.pos) for param in fragment.params]
    return params + [(result.name, fragment.pos) for result in fragment.results]


def _default(expr: Expr, source: SourceText) -> object:
    if isinstance(expr, Literal):
        return expr.value
    if isinstance(expr, ArrayExpr):
        return [_default(item, source) for item in expr.items]
    if isinstance(expr, TupleExpr):
        return tuple(_default(item, source) for item in expr.items)
    raise source.error("a default value must be a literal, or an array or tuple of them", expr.pos)


class BindError(Exception):
    """The error that arguments do not fit a signature; the caller adds the source position."""


@dataclass(frozen=True, slots=True)
class BoundArguments:
    """A call's values by parameter name, in the order of declaration.

    ``dtype`` is the type that ``?`` stands for, or None.
    """

    values: Mapping[str, Value]
    dtype: str | None

    @property
    def fact(self) -> Fact:
        """The type and shape that a call such as ``external<scalar>(shape = [2])`` states."""
        shape, dtype = self.values["shape"], self.dtype or "scalar"
        if not can_be_shape(shape):
            raise ShapeError(f"shape {shape[:8]} wants at most 32 extents from 0 to 2147483647")
        if dtype not in NUMPY_DTYPE:
            raise ShapeError(f"a tensor wants scalar, integer or logical, got {dtype}")
        return Fact(dtype, tuple(shape))


def bind(
    sig: Signature,
    positional: Sequence[Value],
    keyword_values: Mapping[str, Value],
    generic: str | None,
) -> BoundArguments:
    """Returns the values of the parameters of ``sig`` for a call, with defaults filled in.

    ``generic`` is the type in ``op<type>``. Raises :class:`BindError` if an argument does not fit.
    """
    arguments = _match_arguments(sig, positional, keyword_values)
    dtype = _dtype(sig, arguments, generic)
    values = {p.name: _value(sig, p, arguments, dtype) for p in sig.params}
    return BoundArguments(values, dtype)


def _match_arguments(
    sig: Signature, positional: Sequence[Value], keyword_values: Mapping[str, Value]
) -> dict[str, Value]:
    if len(positional) > len(sig.params):
        raise ShapeError(
            f"{sig.name} takes at most {len(sig.params)} arguments, got {len(positional)}"
        )
    arguments = {param.name: v for param, v in zip(sig.params, positional, strict=False)}
    for name, value in keyword_values.items():
        if name not in sig.by_name:
            raise ShapeError(_unknown_parameter(sig, name))
        if name in arguments:
            raise ShapeError(f"{sig.name}: parameter '{name}' is given twice")
        arguments[name] = value
    return arguments


def _unknown_parameter(sig: Signature, name: str) -> str:
    listed = f"it has {', '.join(sig.by_name) or 'none'}"
    hint = suggestion(name, sig.by_name, listed)
    return f"{sig.name} has no parameter '{name}': {hint}"


def _dtype(sig: Signature, arguments: Mapping[str, Value], generic: str | None) -> str | None:
    """Returns the type that ``?`` stands for in a call; None if the operator is not generic.

    It is the generic argument, the type of a tensor argument, the default, or the type of a
    literal: the first of them that exists.
    """
    if not sig.generic:
        if generic is not None:
            raise ShapeError(f"{sig.name} takes no <{generic}>: remove it")
        return None
    if generic is not None and generic != "?":
        return generic
    generics = [arguments[p.name] for p in sig.params if p.type.is_generic and p.name in arguments]
    literals = leaves(generics)
    for leaf in literals:
        if isinstance(leaf, TensorRef):
            return leaf.dtype
    if sig.default_dtype is not None:
        return sig.default_dtype
    if literals:
        return (
            "scalar" if any(isinstance(leaf, float) for leaf in literals) else kind_of(literals[0])
        )
    if sig.needs_dtype:
        raise ShapeError(f"{sig.name} needs a type: write {sig.name}<integer>(...)")
    return None


def _value(
    sig: Signature, param: Param, arguments: Mapping[str, Value], dtype: str | None
) -> Value:
    if param.name in arguments:
        value = arguments[param.name]
    elif param.required:
        raise ShapeError(f"{sig.name} wants parameter '{param.name}' ({param.type}): give it")
    else:
        value = param.default
    try:
        return coerce(param.type, value, dtype)
    except BindError as problem:
        expected = str(param.type).replace("?", dtype or "?")
        message = f"{sig.name}: parameter '{param.name}' wants {expected}, got {describe(value)}"
        detail = f" ({problem})" if problem.args else ""
        raise ShapeError(message + detail) from None


def coerce(type: Type, value: Value, dtype: str | None) -> Value:
    """Returns a value converted to a parameter's type, such as an integer to a scalar.

    ``dtype`` is the type of ``?``. Raises :class:`BindError` if the value does not fit.
    """
    return _COERCE[type.kind](type, value, dtype)


def _primitive(type: Type, value: Value, dtype: str | None) -> Value:
    expected = dtype if type.name == "?" else type.name
    actual = kind_of(value)
    if actual == expected:
        return value
    if actual == "integer" and expected == "scalar":
        return float(value)
    raise BindError(_conversion_hint(expected, value))


def _conversion_hint(expected: str | None, value: Value) -> str:
    if isinstance(value, TensorRef):
        return "a tensor cannot be an attribute"
    if expected == "integer" and isinstance(value, float):
        return "write it without a decimal point"
    return f"wanted {expected}, got {describe(value)}"


def _tensor(type: Type, value: Value, dtype: str | None) -> Value:
    expected = dtype if type.name == "?" else type.name
    if not isinstance(value, TensorRef):
        return _literal(expected, value)
    if expected and value.dtype != expected:
        raise BindError(f"cast it: cast<{expected}>({value.name})")
    return value


def _literal(expected: str | None, value: Value) -> Value:
    """Returns a number given for a tensor, converted to the tensor's type; arrays item by item."""
    actual = kind_of(value)
    if actual == "tuple":
        raise BindError("declare it as a variable or a constant")
    if actual == "array":  # tract writes small constants this way
        return [_literal(expected, item) for item in value]
    if actual == "string":
        raise BindError
    if not expected or actual == expected:
        return value
    if actual == "integer" and expected == "scalar":
        with suppress(OverflowError):
            return float(value)
    raise BindError


def _array(type: Type, value: Value, dtype: str | None) -> list[Value]:
    if not isinstance(value, list):
        raise BindError("write it in brackets")
    item = type.items[0]
    convert = _COERCE[item.kind]
    return [convert(item, element, dtype) for element in value]


def _tuple(type: Type, value: Value, dtype: str | None) -> tuple[Value, ...]:
    if not isinstance(value, tuple) or len(value) != len(type.items):
        raise BindError(f"write {len(type.items)} values in parentheses")
    pairs = zip(type.items, value, strict=True)
    return tuple(coerce(item, element, dtype) for item, element in pairs)


_COERCE: dict[str, Callable[[Type, Value, str | None], Value]] = {
    "primitive": _primitive,
    "tensor": _tensor,
    "array": _array,
    "tuple": _tuple,
}
