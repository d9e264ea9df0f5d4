"""Determines the inputs' shapes, from the ``external`` lines and from the caller's shapes.

The caller's shapes override the lines. tract writes symbols for extents that are not fixed:
``extension tract_symbol S;`` and then ``external(shape = [1, S, 2 * S])``. A given shape determines
their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cml_engine.errors import InputError, OpenShape, Source
from cml_engine.errors.arguments import resolve_shapes
from cml_engine.ir.graph import Shapes
from cml_engine.nnef.expansion.expression_evaluator import Site
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.printer import print_expression
from cml_engine.nnef.text.syntax_tree import (
    ArrayExpr,
    Call,
    Document,
    Expr,
    Literal,
    Name,
    expressions,
)

#: tract's symbol for the streaming extent.
STREAMING = "S"
_OPERATORS = ("external", "tract_core_external")


@dataclass(frozen=True, slots=True)
class _Line:
    """An ``external`` line of the text: the input's name and its extents as expressions."""

    name: str
    extents: tuple[Expr, ...]
    source: Source

    def symbols_of(self, extent: Expr, known: tuple[str, ...]) -> list[str]:
        return [e.id for e in expressions((extent,)) if isinstance(e, Name) and e.id in known]

    def __str__(self) -> str:
        return f"[{','.join(map(print_expression, self.extents))}]"


class Externals:
    """The shapes of a graph's inputs; ``symbols`` has the values of symbolic extents by name."""

    def __init__(self, document: Document, text: SourceText, shapes: Shapes) -> None:
        self._known = document.symbols
        if any(name.id.startswith("tract_") for name in document.extensions):
            self._known = (*self._known, STREAMING)  # older files do not declare it
        self._lines = {line.name: line for line in _lines(document, text)}
        shown = {n.id: str(self._lines.get(n.id, "?")) for n in document.graph.inputs}
        self._given = shapes = resolve_shapes(shapes, shown, text.file)
        self.symbols: dict[str, int] = {}
        for name, shape in shapes.items():
            self._solve(name, shape)
        for line in self._lines.values():
            self._check_known(line)

    def _solve(self, name: str, shape: tuple[int, ...]) -> None:
        """Records the values of the symbols that an input's given shape determines.

        Raises :class:`InputError` if two values conflict.
        """
        line = self._lines.get(name)
        if line is None:
            return
        _check_rank(name, shape, len(line.extents), str(line), line.source)
        for written, extent in zip(line.extents, shape, strict=True):
            if isinstance(written, Name) and written.id in self._known:
                found = self.symbols.setdefault(written.id, extent)
                if found != extent:
                    raise InputError(
                        f"the shapes give '{written.id}' as {found} and {extent}: wanted the same",
                        line.source,
                    )

    def _check_known(self, line: _Line) -> None:
        used = [s for extent in line.extents for s in line.symbols_of(extent, self._known)]
        if unknown := [symbol for symbol in dict.fromkeys(used) if symbol not in self.symbols]:
            named = ", ".join(f"'{symbol}'" for symbol in unknown)
            raise OpenShape(
                f"input '{line.name}' is {line}, which leaves {named} open: say "
                f"--shape {line.name}={str(line)[1:-1]} with numbers, or "
                f"cml.load(…, shapes={{'{line.name}': …}})",
                line.name,
                tuple(_number(extent) for extent in line.extents),
                line.source,
            )

    def shape(self, name: str, written: tuple[int, ...], site: Site) -> tuple[int, ...]:
        """Returns an input's shape: the caller's, or else ``written``, the value of its line.

        Raises :class:`InputError` if the caller's shape contradicts symbols in the line.
        """
        given = self._given.get(name)
        if given is None:
            return written
        _check_rank(name, given, len(written), str(list(written)), site.source)
        line = self._lines.get(name)
        for i, extent in enumerate(line.extents if line else ()):
            if written[i] != given[i] and line and line.symbols_of(extent, self._known):
                raise InputError(
                    f"the shape {list(given)} of '{name}' does not fit: the model wants {line}, "
                    f"which is {list(written)}",
                    site.source,
                )
        return given


def _number(extent: Expr) -> int | None:
    """Returns the value of an extent that is written as an integer, else None."""
    return extent.value if isinstance(extent, Literal) and isinstance(extent.value, int) else None


def _check_rank(name: str, given: tuple[int, ...], rank: int, written: str, source: Source) -> None:
    if len(given) != rank:
        raise InputError(
            f"the shape {list(given)} of '{name}' has {len(given)} extents, the model wants "
            f"{written}",
            source,
        )


def _lines(document: Document, text: SourceText) -> Iterator[_Line]:
    for assignment in document.graph.body:
        call, target = assignment.value, assignment.target
        if isinstance(call, Call) and isinstance(target, Name) and call.op in _OPERATORS:
            for i, argument in enumerate(call.arguments):
                shape = argument.value
                is_shape = argument.name == "shape" or (argument.name is None and i == 0)
                if is_shape and isinstance(shape, ArrayExpr):
                    yield _Line(target.id, shape.items, text.at(assignment.pos))
