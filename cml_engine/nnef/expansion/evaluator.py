"""Evaluates assignments and expressions (NNEF 1.0.5, A.2.2).

Calls of the engine's operators become nodes, other calls are expanded.

``target`` is the name, or the tuple of names, that the surrounding assignment gives to the
tensors of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from cml_engine.errors import (
    ModelError,
    NnefSyntaxError,
    ShapeError,
    Source,
    UnsupportedOp,
    located,
)
from cml_engine.errors.arguments import suggestion
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.construction import Infer
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph
from cml_engine.ir.single_value import filled
from cml_engine.nnef.expansion.einsum import einsum_fragment
from cml_engine.nnef.expansion.library import EXPANDED_BY_RULE, Library, Operator
from cml_engine.nnef.expansion.nodes import (
    Exact,
    NodeBuilder,
    Scope,
    Site,
    Target,
    flat,
    shape_of_numbers,
    spread,
)
from cml_engine.nnef.expansion.signatures import BindError, BoundArguments, Param, bind, coerce
from cml_engine.nnef.expansion.values import (
    TensorRef,
    Value,
    binary,
    charge_elements,
    convert,
    describe,
    element_count,
    has_tensor,
    kind_of,
    unary,
)
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import BUILTINS, parse_fragments
from cml_engine.nnef.text.syntax_tree import (
    PRIMITIVES,
    ArrayExpr,
    Assignment,
    Binary,
    Call,
    Comprehension,
    Expr,
    Fragment,
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


class Evaluator:
    """An evaluator of the assignments in a body, which adds nodes to its ``builder``.

    ``special`` has the operations that are allowed in a graph's body only.
    """

    def __init__(
        self,
        library: Library,
        infer: Infer | None,
        symbols: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.library = library
        self.builder = NodeBuilder(infer)
        self.special: dict[str, Special] = {"constant": self._constant}
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

    def evaluate(self, expr: Expr, scope: Scope, target: Target = None) -> Value:
        """Returns the value of an expression; ``target`` names the tensors that it computes.

        An error that has no source yet gets that of the expression.
        """
        self._steps += 1
        try:
            if self._steps > _CHARGED:  # fragments can double the work at each level
                steps, self._steps = self._steps, 0
                self._budget.charge_steps(steps, "the evaluation of expressions")
            return self._dispatch[type(expr)](expr, scope, target)
        except ModelError as error:
            if error.source is not None:
                raise
            raise scope.error(type(error), error.message, expr.pos) from None

    # -- names ----------------------------------------------------------------------------------

    def _name(self, expr: Name, scope: Scope, target: Target) -> Value:
        try:
            return scope.names[expr.id]
        except KeyError:
            if expr.id in self._symbols:
                return self._symbols[expr.id]
            hint = suggestion(expr.id, scope.names, "assign it above this line")
            raise NnefSyntaxError(f"'{expr.id}' is not defined: {hint}") from None

    # -- arrays ---------------------------------------------------------------------------------

    def _array(self, expr: ArrayExpr, scope: Scope, target: Target) -> list[Value]:
        return _sized(self._items(expr.items, scope, target))

    def _tuple(self, expr: TupleExpr, scope: Scope, target: Target) -> tuple[Value, ...]:
        return tuple(_sized(self._items(expr.items, scope, target)))

    def _items(self, items: tuple[Expr, ...], scope: Scope, target: Target) -> list[Value]:
        targets = spread(target, len(items))
        return [self.evaluate(e, scope, t) for e, t in zip(items, targets, strict=True)]

    def _comprehension(self, expr: Comprehension, scope: Scope, target: Target) -> list[Value]:
        rows = self._rows(expr, scope)
        targets = spread(target, len(rows)) if expr.condition is None else [None] * len(rows)
        self._steps += len(scope.names) // ELEMENTS + len(rows)
        inner = Scope(**{**vars(scope), "names": dict(scope.names)})
        items = []
        for row, item_target in zip(rows, targets, strict=True):
            inner.names.update(row)
            if expr.condition is not None and not self._is_true(expr.condition, inner):
                continue
            items.append(self.evaluate(expr.item, inner, item_target))
        return _sized(items)

    def _rows(self, expr: Comprehension, scope: Scope) -> list[dict[str, Value]]:
        """Returns the values of a comprehension's loop variables by name, a mapping per step.

        Raises an error if the loops' arrays differ in length.
        """
        arrays = []
        for loop in expr.loops:
            values = self.evaluate(loop.values, scope)
            if not isinstance(values, list):
                raise ShapeError(f"'{loop.name} in' wants an array, got {describe(values)}")
            arrays.append(values)
        lengths = [len(values) for values in arrays]
        if len(set(lengths)) > 1:
            raise ShapeError(
                f"the loops of a comprehension want arrays of one length, got {lengths}"
            )
        names = [loop.name for loop in expr.loops]
        return [dict(zip(names, row, strict=True)) for row in zip(*arrays, strict=True)]

    def _subscript(self, expr: Subscript, scope: Scope, target: Target) -> Value:
        values = _sequence(self.evaluate(expr.value, scope))
        index = self._index(expr.index, scope)
        if not -len(values) <= index < len(values):
            raise ShapeError(f"index {index} is outside an array of {len(values)} elements")
        return values[index]

    def _range(self, expr: Slicing, scope: Scope, target: Target) -> Value:
        values = _sequence(self.evaluate(expr.value, scope))
        begin = None if expr.begin is None else self._index(expr.begin, scope)
        end = None if expr.end is None else self._index(expr.end, scope)
        self._steps += len(values) // ELEMENTS
        return values[begin:end]

    def _index(self, expr: Expr, scope: Scope) -> int:
        value = self.evaluate(expr, scope)
        if kind_of(value) != "integer":
            raise scope.error(
                ShapeError, f"an index must be an integer, got {describe(value)}", expr.pos
            )
        return int(value)

    def _is_true(self, expr: Expr, scope: Scope) -> bool:
        value = self.evaluate(expr, scope)
        if isinstance(value, bool):
            return value
        message = f"a condition must be a logical, got {describe(value)}"
        if has_tensor(value):
            message += ": a tensor is not known yet, use select(condition, yes, no)"
        raise scope.error(ShapeError, message, expr.pos)

    # -- operators ------------------------------------------------------------------------------

    def _unary(self, expr: Unary, scope: Scope, target: Target) -> Value:
        value = self.evaluate(expr.operand, scope)
        if isinstance(value, TensorRef):
            if expr.op == "+":
                return value
            return self.operator(TENSOR_UNARY[expr.op], [value], Site(scope, expr.pos, target))
        return unary(expr.op, value)

    def _binary(self, expr: Binary, scope: Scope, target: Target) -> Value:
        """Returns the value of a chain of binary operators.

        It does not recurse on the left side, because chains can be long.
        """
        chain, leftmost = [expr], expr.left
        while isinstance(leftmost, Binary):
            chain.append(leftmost)
            leftmost = leftmost.left
        value = self.evaluate(leftmost, scope)
        for node in reversed(chain):
            right = self.evaluate(node.right, scope)
            try:
                value = self._apply(node, value, right, scope, target if node is expr else None)
            except ModelError as error:
                if error.source is not None:
                    raise
                raise scope.error(type(error), error.message, node.pos) from None
        return value

    def _apply(
        self, expr: Binary, left: Value, right: Value, scope: Scope, target: Target
    ) -> Value:
        op = TENSOR_OPS.get(expr.op)
        if op is not None and (isinstance(left, TensorRef) or isinstance(right, TensorRef)):
            return self.operator(op, [left, right], Site(scope, expr.pos, target))
        for operand in (left, right):
            if isinstance(operand, (list, tuple, str)):
                self._steps += element_count(operand) // ELEMENTS
        return binary(expr.op, left, right)

    def _if_else(self, expr: IfElse, scope: Scope, target: Target) -> Value:
        branch = expr.yes if self._is_true(expr.condition, scope) else expr.no
        return self.evaluate(branch, scope, target)

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, expr: Call, scope: Scope, target: Target) -> Value:
        if expr.op not in BUILTINS:
            return self.invoke(expr, Site(scope, expr.pos, target))
        if len(expr.arguments) != 1 or expr.arguments[0].name is not None or expr.generic:
            raise NnefSyntaxError(f"{expr.op}() takes one argument")
        value = self.evaluate(expr.arguments[0].value, scope)
        if expr.op in PRIMITIVES:
            return convert(expr.op, value)
        if expr.op == "shape_of":
            return self.shape_of(value)
        if not isinstance(value, (list, str)):
            raise ShapeError(f"{expr.op}() wants an array, got {describe(value)}")
        self._steps += len(value) // ELEMENTS
        return len(value) if expr.op == "length_of" else list(range(len(value)))

    # -- assignments and fragments --------------------------------------------------------------

    def run(self, body: Sequence[Assignment], scope: Scope) -> None:
        for assignment in body:
            yield_to_frame()
            target = self._targets(assignment.target, scope)
            value = self.evaluate(assignment.value, scope, target)
            self._assign(assignment.target, value, scope)

    def _targets(self, expr: Expr, scope: Scope) -> Target:
        """Returns the names that an assignment's left side gives to the tensors on its right side.

        Names of a fragment's body are prefixed, or replaced by the names of the call's results.
        """
        if isinstance(expr, (ArrayExpr, TupleExpr)):
            return tuple(self._targets(item, scope) for item in expr.items)
        assert isinstance(expr, Name)
        if scope.caller is None:
            return Exact(expr.id)
        return scope.targets.get(expr.id, f"{scope.prefix}_{expr.id}")

    def _assign(self, expr: Expr, value: Value, scope: Scope) -> None:
        """Binds the names of a left side to values in the scope; arrays and tuples part by part.

        Raises an error if a name is assigned twice or the parts do not fit.
        """
        if isinstance(expr, Name):
            if expr.id in scope.names:
                raise scope.error(
                    NnefSyntaxError, f"'{expr.id}' is assigned twice: use another name", expr.pos
                )
            scope.names[expr.id] = value
            return
        assert isinstance(expr, (ArrayExpr, TupleExpr))
        sequence_type = list if isinstance(expr, ArrayExpr) else tuple
        if not isinstance(value, sequence_type) or len(value) != len(expr.items):
            expected = "an array" if sequence_type is list else "a tuple"
            raise scope.error(
                ShapeError,
                f"the left side wants {expected} of {len(expr.items)}, got {describe(value)}",
                expr.pos,
            )
        for item, part in zip(expr.items, value, strict=True):
            self._assign(item, part, scope)

    # -- calls ----------------------------------------------------------------------------------

    def invoke(self, call: Call, site: Site) -> Value:
        positional: list[Value] = []
        keyword_values: dict[str, Value] = {}
        for argument in call.arguments:
            value = self.evaluate(argument.value, site.scope)
            if argument.name is None and not keyword_values:
                positional.append(value)
            elif argument.name is None:
                raise NnefSyntaxError(f"{call.op}: name every argument after the first")
            elif argument.name in keyword_values:
                raise NnefSyntaxError(f"{call.op}: parameter '{argument.name}' is given twice")
            else:
                keyword_values[argument.name] = value
        generic = site.scope.dtype if call.generic == "?" else call.generic
        return self.operator(call.op, positional, site, generic, keyword_values)

    def operator(
        self,
        op: str,
        values: Sequence[Value],
        site: Site,
        generic: str | None = None,
        keyword_values: Mapping[str, Value] = MappingProxyType({}),
    ) -> Value:
        """Calls an operator with evaluated arguments and returns its result."""
        operator = self.library.lookup(op, of_model=not site.scope.standard)
        self._steps += sum(
            len(value) // ELEMENTS
            for value in (*values, *keyword_values.values())
            if isinstance(value, (list, str))
        )
        bound = bind(operator.signature, values, keyword_values, generic)
        special = self.special.get(operator.name)
        if special is not None:
            return special(bound, site)
        if operator.standard and operator.name in EXPANDED_BY_RULE:
            operator = self._by_rule(operator, bound)
        elif operator.native:
            return self.builder.emit(operator.signature, bound, site)
        return self._expand(operator, bound, site)

    def _by_rule(self, operator: Operator, bound: BoundArguments) -> Operator:
        """Returns ``einsum`` with a body that is written for this call's equation and shapes."""
        shapes = [self.shape_of(value) for value in bound.values["inputs"]]
        text = einsum_fragment(bound.values["equation"], shapes)
        fragment = parse_fragments(text, "<einsum>")[0]
        return replace(operator, fragment=fragment, text=SourceText(text, "<einsum>"))

    def _constant(self, bound: BoundArguments, site: Site) -> Value:
        fact, values = bound.fact, bound.values["value"]
        subject = f"a constant of {fact.size:,} elements"
        current_budget().check_bytes(fact.size * NUMPY_DTYPE[fact.dtype].itemsize, subject)
        if len(values) not in (1, fact.size):
            raise ShapeError(
                f"constant wants 1 or {fact.size} values for {fact}, got {len(values)}"
            )
        name = self.builder.tensor_name(site.target, "constant")
        self.builder.add_constant(name, _fill_constant(fact, values), site.source)
        return TensorRef(name, fact.dtype)

    # -- expansion ------------------------------------------------------------------------------

    def _expand(self, operator: Operator, bound: BoundArguments, site: Site) -> Value:
        """Runs a fragment's body in place of a call and returns its result or results.

        Several results are a tuple.
        """
        fragment = operator.fragment
        inner = _inner_scope(operator, bound, site)
        if len(inner.chain) > MAX_EXPANSION:
            raise ModelError(f"fragments call each other without end: {_shown(inner.chain)}")
        self.run(fragment.body or (), inner)
        values = [_result(fragment, i, bound, inner) for i in range(len(fragment.results))]
        return values[0] if len(values) == 1 else tuple(values)

    def shape_of(self, value: Value) -> list[int]:
        """Returns a value's extents: the built-in function ``shape_of`` (deprecated)."""
        if not isinstance(value, TensorRef):
            return list(shape_of_numbers(value) or ())
        fact = self.builder.facts.get(value.name)
        if fact is None:
            raise UnsupportedOp(
                "shape_of() needs shapes, which are not known here: write the numbers"
            )
        return list(fact.shape)


def _literal(expr: Literal, scope: Scope, target: Target) -> Value:
    return expr.value


def _sequence(value: Value) -> list[Value] | tuple[Value, ...] | str:
    if not isinstance(value, (list, tuple, str)):
        raise ShapeError(f"'[' wants an array, got {describe(value)}")
    return value


def _sized(items: list[Value]) -> list[Value]:
    """Returns an array, after charging its elements to the load budget if it is nested.

    Nested arrays can double at every assignment.
    """
    if items and isinstance(items[0], (list, tuple)):
        charge_elements(items)
    return items


#: The deepest nesting of fragments; recursion by halves (``add_n``) needs about twenty levels.
MAX_EXPANSION = 40

#: The function of an operator that never becomes a node.
Special: TypeAlias = Callable[[BoundArguments, Site], Value]


def _inner_scope(operator: Operator, bound: BoundArguments, site: Site) -> Scope:
    fragment, target = operator.fragment, site.target
    results = [result.name for result in fragment.results]
    result_targets = [target] if len(results) == 1 else spread(target, len(results))
    return Scope(
        text=operator.text,
        names=dict(bound.values),
        targets={r: t for r, t in zip(results, result_targets, strict=True) if t is not None},
        caller=site.source,
        chain=(*site.scope.chain, fragment.name),
        prefix=_prefix(target) or site.scope.prefix or fragment.name,
        standard=operator.standard,
        dtype=bound.dtype,
    )


def _result(fragment: Fragment, index: int, bound: BoundArguments, scope: Scope) -> Value:
    """Returns the value of a fragment's result number ``index``, in the type that it declares.

    Raises an error if the body never assigned it or the type does not fit.
    """
    result = fragment.results[index]
    if result.name not in scope.names:
        raise scope.error(
            NnefSyntaxError,
            f"fragment '{fragment.name}' never assigns its result '{result.name}'",
            fragment.pos,
        )
    value = scope.names[result.name]
    try:
        return coerce(result.type, value, bound.dtype)
    except BindError:
        raise scope.error(
            ShapeError,
            f"result '{result.name}' must be {result.type}, got {describe(value)}",
            fragment.pos,
        ) from None


def _prefix(target: Target) -> str:
    while isinstance(target, tuple):
        target = target[0] if target else None
    return target or ""


def _shown(chain: tuple[str, ...]) -> str:
    names = chain if len(chain) <= 8 else (*chain[:6], "...", chain[-1])
    return " -> ".join(names)


def _fill_constant(fact: Fact, values: Sequence[float]) -> Array:
    if fact.dtype == "integer" and any(not -(2**31) <= v < 2**31 for v in values):
        raise ShapeError("a value does not fit in 32 bits")
    with np.errstate(over="ignore"):
        array = np.array(values, NUMPY_DTYPE[fact.dtype])
    if len(values) == prod(fact.shape):
        return array.reshape(fact.shape)
    return filled(array[0], fact.shape)


def expand_call(
    evaluator: Evaluator,
    op: str,
    operands: Sequence[Value],
    attrs: Mapping[str, Value],
    facts: Mapping[str, Fact],
    source: Source | None = None,
) -> Graph:
    """Returns the graph of one call, in which compound operators are expanded.

    The tensors in ``facts`` are its inputs. Operands are references to them, numbers, and lists of
    both. ``attrs`` are further arguments by name, and the type of a generic call as ``dtype``.
    Errors and nodes get the ``source``.
    """
    source, builder = source or Source(f"<{op}>"), evaluator.builder
    builder.facts.update(facts)
    builder.reserve(facts)
    site = Site(Scope(SourceText("", source.file), caller=source), 0)

    def value_of(param: Param | None, value: Value) -> Value:
        """Returns nested numbers for a tensor as a constant, with which fragments can compute."""
        if param is None or param.type.kind != "tensor" or not isinstance(value, list):
            return value
        try:
            return builder.tensor(coerce(param.type, value, None), site)
        except BindError:  # ``bind`` describes it
            return value

    with located(source):
        sig = evaluator.library.lookup(op).signature
        generic = attrs.get("dtype") if sig.generic else None
        positional = [value_of(*pair) for pair in zip_longest(sig.params, operands)][
            : len(operands)
        ]
        keyword_values = {
            key: value_of(sig.by_name.get(key), value) for key, value in attrs.items()
        }
        if generic is not None:
            del keyword_values["dtype"]
        result = evaluator.operator(op, positional, site, generic, keyword_values)
        results = result if isinstance(result, (list, tuple)) else [result]
        outputs = tuple(builder.tensor(value, site).name for value in flat(results))
    nodes = tuple(builder.nodes)
    return Graph(op, tuple(facts), outputs, nodes, builder.facts, builder.constants)
