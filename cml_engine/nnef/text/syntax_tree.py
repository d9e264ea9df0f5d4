"""The syntax tree of NNEF text (NNEF 1.0.5, A.2).

Its nodes are frozen dataclasses. ``pos`` is an offset into the text and is ignored in
comparisons, so that parse -> print -> parse gives equal trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TypeAlias


def _position() -> int:
    """Returns the declaration of a node's offset, which comparisons ignore."""
    return field(default=0, compare=False)


PRIMITIVES = ("integer", "scalar", "logical", "string")


@dataclass(frozen=True, slots=True)
class Type:
    """A parameter's type (A.2, type-spec).

    ``kind`` is ``primitive``, ``tensor``, ``array`` or ``tuple``. ``name`` is the element type of
    the first two: ``integer``, ``scalar``, ``logical``, ``string``, ``?`` (generic), or nothing
    for ``tensor<>``. ``items`` holds the item type of an array, or those of a tuple.
    """

    kind: str
    name: str = ""
    items: tuple[Type, ...] = ()

    @property
    def has_tensor(self) -> bool:
        return self.kind == "tensor" or any(item.has_tensor for item in self.items)

    @property
    def is_generic(self) -> bool:
        return self.name == "?" or any(item.is_generic for item in self.items)

    def __str__(self) -> str:
        if self.kind == "tensor":
            return f"tensor<{self.name}>"
        if self.kind == "array":
            return f"{self.items[0]}[]"
        if self.kind == "tuple":
            return f"({', '.join(map(str, self.items))})"
        return self.name


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a logical or a string; ``type`` distinguishes ``1``, ``1.0`` and ``true``."""

    value: int | float | bool | str
    type: str
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Name:
    id: str
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class ArrayExpr:
    items: tuple[Expr, ...]
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class TupleExpr:
    items: tuple[Expr, ...]
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Subscript:
    """An element of an array or tuple: ``value[index]``."""

    value: Expr
    index: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Slicing:
    """A part of an array: ``value[begin:end]``; either end may be missing."""

    value: Expr
    begin: Expr | None
    end: Expr | None
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Unary:
    op: str
    operand: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Expr
    right: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class IfElse:
    """A conditional, ``yes if condition else no``; only the chosen side is evaluated."""

    condition: Expr
    yes: Expr
    no: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a comprehension: ``name in values``."""

    name: str
    values: Expr


@dataclass(frozen=True, slots=True)
class Comprehension:
    """A comprehension, ``[for i in a, j in b if condition yield item]``; loops advance together."""

    loops: tuple[Loop, ...]
    condition: Expr | None
    item: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call; ``name`` is None for a positional one."""

    name: str | None
    value: Expr


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator, a fragment or a built-in function: ``op<generic>(arguments)``."""

    op: str
    arguments: tuple[Argument, ...]
    generic: str | None = None
    pos: int = _position()


Expr: TypeAlias = (
    Literal
    | Name
    | ArrayExpr
    | TupleExpr
    | Subscript
    | Slicing
    | Unary
    | Binary
    | IfElse
    | Comprehension
    | Call
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment ``target = value;``.

    The target is a :class:`Name`, or arrays and tuples of names.
    """

    target: Expr
    value: Expr
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class FragmentParam:
    name: str
    type: Type
    default: Expr | None = None
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class FragmentResult:
    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment: the definition of an operator, or its declaration if ``body`` is None.

    ``default_dtype`` is the type in ``<? = scalar>``.
    """

    name: str
    params: tuple[FragmentParam, ...]
    results: tuple[FragmentResult, ...]
    body: tuple[Assignment, ...] | None = None
    generic: bool = False
    default_dtype: str | None = None
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class GraphDef:
    name: str
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    body: tuple[Assignment, ...]
    pos: int = _position()


@dataclass(frozen=True, slots=True)
class Document:
    """The syntax tree of a ``graph.nnef`` file; ``version`` is None if the line is missing."""

    version: str | None
    extensions: tuple[Name, ...]
    fragments: tuple[Fragment, ...]
    graph: GraphDef
    #: the symbols of extents (``extension tract_symbol S;``)
    symbols: tuple[str, ...] = ()


def expressions(root: object) -> Iterator[object]:
    """Yields every dataclass node of a syntax tree, the root first."""
    pending = [root]
    while pending:
        item = pending.pop()
        if isinstance(item, tuple):
            pending += item
        elif is_dataclass(item):
            yield item
            pending += [getattr(item, f.name) for f in fields(item)]


def called_operators(fragment: Fragment) -> list[str]:
    """Returns the names of the operators and fragments that a fragment's body calls.

    A name that is called twice is listed twice.
    """
    return [item.op for item in expressions(fragment.body) if isinstance(item, Call)]


def assigned_names(body: tuple[Assignment, ...]) -> list[str]:
    """Returns every name that the left sides of a body's assignments contain."""
    return [item.id for a in body for item in expressions(a.target) if isinstance(item, Name)]


def is_flat(value: Expr) -> bool:
    """Returns True if a right-hand side is a literal, a name, or one call of names and literals.

    Text of such assignments does not need the extension for operator expressions.
    """
    if isinstance(value, (Literal, Name)):
        return True
    return isinstance(value, Call) and all(map(_is_flat_argument, value.arguments))


def _is_flat_argument(argument: Argument) -> bool:
    value = argument.value
    if isinstance(value, (Literal, Name)):
        return True
    items = getattr(value, "items", None)
    return items is not None and all(_is_flat_argument(Argument(None, item)) for item in items)
