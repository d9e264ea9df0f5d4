"""Evaluates expressions (NNEF 1.0.5, A.2.2); a subclass evaluates calls of operators.

``target`` is the name, or the tuple of names, that the surrounding assignment gives to the
tensors of the result.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cml_engine.errors import ModelError, NnefSyntaxError, ShapeError, Source
from cml_engine.io.load_limits import OverBudget, current_budget
from cml_engine.nnef.expansion import arithmetic
from cml_engine.nnef.expansion.values import (
    TensorRef,
    Value,
    ValueProblem,
    describe,
    element_count,
    has_tensor,
    kind_of,
)
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.syntax_tree import (
    PRIMITIVES,
    ArrayExpr,
    Binary,
    Call,
    Comprehension,
    Expr,
    IfElse,
    Literal,
    Name,
    Slicing,
    Subscript,
    TupleExpr,
    Unary,
)

#: The number of evaluated expressions per charge to the budget.
_CHARGED = 256
#: The elements of arrays that are copied or compared per microsecond.
ELEMENTS = 2

#: The NNEF operators that operator symbols stand for if an operand is a tensor.
TENSOR_OPS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
    "&&": "and", "||": "or",
}  # fmt: skip
TENSOR_UNARY = {"-": "neg", "!": "not"}


class Exact(str):
    """A tensor name that the graph's body assigns, which the tensor must get.

    A target that is a plain ``str`` is only a suggestion.
    """

    __slots__ = ()


Target: TypeAlias = "str | tuple[Target, ...] | None"


@dataclass
class Scope:
    """The names that expressions can read, with their values.

    It is the scope of the graph's body, or of one fragment's expansion.
    """

    text: SourceText
    names: dict[str, Value] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    #: The site of the call in the model; None in the graph's own body.
    caller: Source | None = None
    chain: tuple[str, ...] = ()
    prefix: str = ""
    #: True for the standard library's fragments, whose lines the user cannot change.
    standard: bool = False
    #: The type that ``?`` stands for in a generic fragment's body.
    dtype: str | None = None

    def source(self, pos: int) -> Source:
        """Returns the line of the model for an offset of the text.

        In a fragment's body it is the line of the call in the graph's body.
        """
        return self.text.at(pos) if self.caller is None else self.caller

    def error(self, kind: type[ModelError], message: str, pos: int) -> ModelError:
        """Returns an error of type ``kind`` at an offset.

        In a fragment's body it names the fragment.
        """
        if self.caller is None:
            return kind(message, self.text.at(pos))
        if self.standard:
            return kind(f"in the body of '{self.chain[-1]}': {message}", self.caller)
        called = f"{message} (in fragment '{self.chain[-1]}', called at {self.caller})"
        return kind(called, self.text.at(pos))


@dataclass(frozen=True, slots=True)
class Site:
    """The place of an operator's call: its scope, offset in the text, and the results' names."""

    scope: Scope
    pos: int
    target: Target = None

    @property
    def source(self) -> Source:
        return self.scope.source(self.pos)

    def error(self, kind: type[ModelError], message: str) -> ModelError:
        return self.scope.error(kind, message, self.pos)


class Evaluator(ABC):
    """An abstract evaluator of expressions; subclasses evaluate calls of operators."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self._steps, self._budget = 0, current_budget()
        #: the values of tract's symbols, which fragments can read too
        self._symbols = symbols
        self._dispatch: dict[type, Callable[[Any, Scope, Target], Value]] = {
            Literal: _literal,
            Name: self._name,
            Call: self._call,
            ArrayExpr: self._array,
            TupleExpr: self._tuple,
            Subscript: self._subscript,
            Slicing: self._range,
            Unary: self._unary,
            Binary: self._binary,
            IfElse: self._if_else,
            Comprehension: self._comprehension,
        }

    @abstractmethod
    def operator(self, op: str, values: list[Value], site: Site) -> Value:
        """Calls an operator with evaluated operands, for expressions such as ``x + y`` of tensors.

        Returns the result.
        """

    @abstractmethod
    def invoke(self, call: Call, site: Site) -> Value:
        """Evaluates a call of an operator or fragment and returns its result."""

    @abstractmethod
    def shape_of(self, value: Value, site: Site) -> list[int]:
        """Returns a value's extents: the built-in function ``shape_of`` (deprecated)."""

    def evaluate(self, expr: Expr, scope: Scope, target: Target = None) -> Value:
        """Returns the value of an expression; ``target`` names the tensors that it computes."""
        self._steps += 1
        if self._steps > _CHARGED:
            self._charge(scope, expr.pos)
        return self._dispatch[type(expr)](expr, scope, target)

    def _charge(self, scope: Scope, pos: int) -> None:
        """Charges the steps counted so far to the load budget and resets their count.

        Fragments can double the work at each level.
        """
        steps, self._steps = self._steps, 0
        try:
            self._budget.charge_steps(steps, "the evaluation of expressions")
        except OverBudget as error:
            raise scope.error(OverBudget, error.message, pos) from None

    # -- names ----------------------------------------------------------------------------------

    def _name(self, expr: Name, scope: Scope, target: Target) -> Value:
        try:
            return scope.names[expr.id]
        except KeyError:
            if expr.id in self._symbols:
                return self._symbols[expr.id]
            near = difflib.get_close_matches(expr.id, scope.names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "assign it above this line"
            message = f"'{expr.id}' is not defined: {hint}"
            raise scope.error(NnefSyntaxError, message, expr.pos) from None

    # -- arrays ---------------------------------------------------------------------------------

    def _array(self, expr: ArrayExpr, scope: Scope, target: Target) -> list[Value]:
        return self._sized(self._items(expr.items, scope, target), scope, expr.pos)

    def _tuple(self, expr: TupleExpr, scope: Scope, target: Target) -> tuple[Value, ...]:
        values = tuple(self._items(expr.items, scope, target))
        self._sized(list(values), scope, expr.pos)
        return values

    def _items(self, items: tuple[Expr, ...], scope: Scope, target: Target) -> list[Value]:
        targets = spread(target, len(items))
        return [self.evaluate(e, scope, t) for e, t in zip(items, targets, strict=True)]

    def _sized(self, items: list[Value], scope: Scope, pos: int) -> list[Value]:
        """Returns an array, after charging its elements to the load budget if it is nested.

        Nested arrays can double at every assignment.
        """
        if items and isinstance(items[0], (list, tuple)):
            _guard(lambda: arithmetic.checked_length(items), scope, pos)
        return items

    def _comprehension(self, expr: Comprehension, scope: Scope, target: Target) -> list[Value]:
        rows = self._rows(expr, scope)
        targets = spread(target, len(rows)) if expr.condition is None else [None] * len(rows)
        self._steps += len(scope.names) // ELEMENTS + len(rows)
        inner = Scope(**{**vars(scope), "names": dict(scope.names)})
        found = []
        for row, wanted in zip(rows, targets, strict=True):
            inner.names.update(row)
            if expr.condition is not None:
                condition = self.evaluate(expr.condition, inner)
                if not _truth(condition, inner, expr.condition.pos):
                    continue
            found.append(self.evaluate(expr.item, inner, wanted))
        return self._sized(found, scope, expr.pos)

    def _rows(self, expr: Comprehension, scope: Scope) -> list[dict[str, Value]]:
        """Returns the values of a comprehension's loop variables by name, a mapping per step.

        Raises an error if the loops' arrays differ in length.
        """
        arrays = []
        for loop in expr.loops:
            values = self.evaluate(loop.values, scope)
            if not isinstance(values, list):
                message = f"'{loop.name} in' wants an array, got {describe(values)}"
                raise scope.error(ShapeError, message, expr.pos)
            arrays.append(values)
        lengths = [len(values) for values in arrays]
        if len(set(lengths)) > 1:
            message = f"the loops of a comprehension want arrays of one length, got {lengths}"
            raise scope.error(ShapeError, message, expr.pos)
        names = [loop.name for loop in expr.loops]
        return [dict(zip(names, row, strict=True)) for row in zip(*arrays, strict=True)]

    def _subscript(self, expr: Subscript, scope: Scope, target: Target) -> Value:
        values = _sequence(self.evaluate(expr.value, scope), scope, expr.pos)
        index = self._index(expr.index, scope)
        if not -len(values) <= index < len(values):
            message = f"index {index} is outside an array of {len(values)} elements"
            raise scope.error(ShapeError, message, expr.pos)
        return values[index]

    def _range(self, expr: Slicing, scope: Scope, target: Target) -> Value:
        values = _sequence(self.evaluate(expr.value, scope), scope, expr.pos)
        begin = None if expr.begin is None else self._index(expr.begin, scope)
        end = None if expr.end is None else self._index(expr.end, scope)
        self._steps += len(values) // ELEMENTS
        return values[begin:end]

    def _index(self, expr: Expr, scope: Scope) -> int:
        value = self.evaluate(expr, scope)
        if kind_of(value) != "integer":
            message = f"an index must be an integer, got {describe(value)}"
            raise scope.error(ShapeError, message, expr.pos)
        return int(value)

    # -- operators ------------------------------------------------------------------------------

    def _unary(self, expr: Unary, scope: Scope, target: Target) -> Value:
        value = self.evaluate(expr.operand, scope)
        if isinstance(value, TensorRef):
            if expr.op == "+":
                return value
            return self.operator(TENSOR_UNARY[expr.op], [value], Site(scope, expr.pos, target))
        return _guard(lambda: arithmetic.unary(expr.op, value), scope, expr.pos)

    def _binary(self, expr: Binary, scope: Scope, target: Target) -> Value:
        """Returns the value of a chain of binary operators.

        It does not recurse on the left side, because chains can be long.
        """
        chain, left = [expr], expr.left
        while isinstance(left, Binary):
            chain.append(left)
            left = left.left
        value = self.evaluate(left, scope)
        for node in reversed(chain):
            right = self.evaluate(node.right, scope)
            value = self._apply(node, value, right, scope, target if node is expr else None)
        return value

    def _apply(
        self, expr: Binary, left: Value, right: Value, scope: Scope, target: Target
    ) -> Value:
        op = TENSOR_OPS.get(expr.op)
        if op is not None and (isinstance(left, TensorRef) or isinstance(right, TensorRef)):
            return self.operator(op, [left, right], Site(scope, expr.pos, target))

        def compute() -> Value:
            for side in (left, right):
                if isinstance(side, (list, tuple, str)):
                    self._steps += element_count(side) // ELEMENTS
            return arithmetic.binary(expr.op, left, right)

        return _guard(compute, scope, expr.pos)

    def _if_else(self, expr: IfElse, scope: Scope, target: Target) -> Value:
        condition = self.evaluate(expr.condition, scope)
        chosen = expr.yes if _truth(condition, scope, expr.condition.pos) else expr.no
        return self.evaluate(chosen, scope, target)

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, expr: Call, scope: Scope, target: Target) -> Value:
        if expr.op not in _BUILTINS:
            return self.invoke(expr, Site(scope, expr.pos, target))
        if len(expr.arguments) != 1 or expr.arguments[0].name is not None or expr.generic:
            raise scope.error(NnefSyntaxError, f"{expr.op}() takes one argument", expr.pos)
        value = self.evaluate(expr.arguments[0].value, scope)
        if expr.op in PRIMITIVES:
            return _guard(lambda: arithmetic.convert(expr.op, value), scope, expr.pos)
        if expr.op == "shape_of":
            return self.shape_of(value, Site(scope, expr.pos))
        if not isinstance(value, (list, str)):
            message = f"{expr.op}() wants an array, got {describe(value)}"
            raise scope.error(ShapeError, message, expr.pos)
        self._steps += len(value) // ELEMENTS
        return len(value) if expr.op == "length_of" else list(range(len(value)))


def _literal(expr: Literal, scope: Scope, target: Target) -> Value:
    return expr.value


def _sequence(value: Value, scope: Scope, pos: int) -> Any:
    if not isinstance(value, (list, tuple, str)):
        raise scope.error(ShapeError, f"'[' wants an array, got {describe(value)}", pos)
    return value


def _truth(value: Value, scope: Scope, pos: int) -> bool:
    if isinstance(value, bool):
        return value
    message = f"a condition must be a logical, got {describe(value)}"
    if has_tensor(value):
        message += ": a tensor is not known yet, use select(condition, yes, no)"
    raise scope.error(ShapeError, message, pos)


def _guard(compute: Callable[[], Value], scope: Scope, pos: int) -> Value:
    try:
        return compute()
    except ValueProblem as problem:
        raise scope.error(ShapeError, str(problem), pos) from None
    except OverBudget as error:
        raise scope.error(OverBudget, error.message, pos) from None


def spread(target: Target, count: int) -> list[Target]:
    """Returns the names of the ``count`` parts of an array or tuple that is assigned to ``target``.

    A single name is numbered from ``_1`` on. Without names all parts get None.
    """
    if isinstance(target, tuple) and len(target) == count:
        return list(target)
    if isinstance(target, str):
        return [f"{target}_{i + 1}" for i in range(count)]
    return [None] * count


_BUILTINS = frozenset(("length_of", "range_of", "shape_of", *PRIMITIVES))
