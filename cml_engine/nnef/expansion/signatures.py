"""The signatures of NNEF's operators, read from ``stdlib.nnef`` (NNEF 1.0.5, chapter 4)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import takewhile
from typing import Any

from cml_engine.errors import UnsupportedOp
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

STDLIB_FILE = "stdlib.nnef"

#: The :attr:`Param.default` of a required parameter.
REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


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
    default: Any = REQUIRED

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
    found = standard_signatures().get(name)
    if found is None:
        raise UnsupportedOp(unknown_operator(name, standard_signatures()))
    return found


@cache
def standard_source() -> SourceText:
    """Returns the text of NNEF's standard library, ``stdlib.nnef``."""
    text = resources.files("cml_engine.nnef").joinpath(STDLIB_FILE).read_text(encoding="ascii")
    return SourceText(text, STDLIB_FILE)


@cache
def standard_fragments() -> Mapping[str, Fragment]:
    """Returns the fragments of the standard library by name; compound operators have bodies."""
    found = parse_fragments(standard_source().text, STDLIB_FILE)
    return {fragment.name: fragment for fragment in found}


@cache
def standard_signatures() -> Mapping[str, Signature]:
    source = standard_source()
    return {name: signature_of(f, source) for name, f in standard_fragments().items()}


def signature_of(fragment: Fragment, source: SourceText) -> Signature:
    """Returns the signature of a fragment, with its defaults evaluated.

    ``source`` is the fragment's text, for errors.
    """
    seen: set[str] = set()
    for name, pos in _declared_names(fragment):
        if name in seen:
            raise source.error(f"fragment '{fragment.name}' declares '{name}' twice", pos)
        seen.add(name)
    params = tuple(
        Param(p.name, p.type, REQUIRED if p.default is None else _default(p.default, source))
        for p in fragment.params
    )
    return Signature(
        fragment.name, params, fragment.results, fragment.generic, fragment.default_dtype
    )


def comment_above(fragment: Fragment, source: SourceText) -> str:
    """Returns the comment lines above a declaration as one text, or "".

    They say what the operator does.
    """
    before = source.text[: fragment.pos].splitlines()[:-1]
    lines = takewhile(lambda line: re.match("# (?!----)", line), reversed(before))
    return " ".join(line[2:] for line in reversed([*lines]))


def declared_signature(text: str, file: str) -> tuple[Signature, Fragment]:
    """Parses the declaration of a custom operator and returns its signature and its fragment.

    The operator is the text's first fragment. ``file`` is the text's name in errors.
    """
    source = SourceText(text, file)
    fragments = parse_fragments(text, file)
    if not fragments:
        raise source.error("wanted a fragment declaration, got none", 0)
    return signature_of(fragments[0], source), fragments[0]


def unknown_operator(name: str, known: Iterable[str]) -> str:
    """Returns the error message for an operator without a declaration; suggests a similar name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean '{near[0]}'? Otherwise " if near else ": "
    return (
        f"unknown operator '{name}'{hint}register it (--ops FILE.py, cml.register), or declare it "
        "as a fragment"
    )


def _declared_names(fragment: Fragment) -> list[tuple[str, int]]:
    params = [(param.name, param.pos) for param in fragment.params]
    return params + [(result.name, fragment.pos) for result in fragment.results]


def _default(expr: Expr, source: SourceText) -> Any:
    if isinstance(expr, Literal):
        return expr.value
    if isinstance(expr, ArrayExpr):
        return [_default(item, source) for item in expr.items]
    if isinstance(expr, TupleExpr):
        return tuple(_default(item, source) for item in expr.items)
    raise source.error("a default value must be a literal, or an array or tuple of them", expr.pos)
