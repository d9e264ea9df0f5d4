"""Evaluates assignments: calls of the engine's operators become nodes, other calls are expanded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from cml_engine.errors import ModelError, NnefSyntaxError, ShapeError, UnsupportedOp
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.nnef.expansion.bind import BindError, BoundArguments, bind, coerce
from cml_engine.nnef.expansion.einsum import EquationProblem, einsum_fragment
from cml_engine.nnef.expansion.expression_evaluator import (
    ELEMENTS,
    Evaluator,
    Exact,
    Scope,
    Site,
    Target,
    spread,
)
from cml_engine.nnef.expansion.library import EXPANDED_BY_RULE, Library, Operator
from cml_engine.nnef.expansion.nodes import Infer, NodeBuilder, shape_of_numbers
from cml_engine.nnef.expansion.signatures import Signature
from cml_engine.nnef.expansion.values import TensorRef, Value, describe
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.nnef.text.syntax_tree import (
    ArrayExpr,
    Assignment,
    Call,
    Expr,
    Fragment,
    Name,
    TupleExpr,
)

#: The deepest nesting of fragments; recursion by halves (``add_n``) needs about twenty levels.
MAX_EXPANSION = 40

#: The function of an operator that never becomes a node.
Special: TypeAlias = Callable[[Signature, BoundArguments, Site], Value]


class FragmentEvaluator(Evaluator):
    """An evaluator of the assignments in a body, which adds nodes to its ``builder``.

    ``special`` has the operations that are allowed in a graph's body only.
    """

    def __init__(
        self,
        library: Library,
        infer: Infer | None,
        symbols: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(symbols)
        self.library = library
        self.builder = NodeBuilder(infer)
        self.special: Mapping[str, Special] = {}

    # -- assignments ----------------------------------------------------------------------------

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
                message = f"'{expr.id}' is assigned twice: use another name"
                raise scope.error(NnefSyntaxError, message, expr.pos)
            scope.names[expr.id] = value
            return
        assert isinstance(expr, (ArrayExpr, TupleExpr))
        wanted = list if isinstance(expr, ArrayExpr) else tuple
        if not isinstance(value, wanted) or len(value) != len(expr.items):
            what = "an array" if wanted is list else "a tuple"
            message = f"the left side wants {what} of {len(expr.items)}, got {describe(value)}"
            raise scope.error(ShapeError, message, expr.pos)
        for item, part in zip(expr.items, value, strict=True):
            self._assign(item, part, scope)

    # -- calls ----------------------------------------------------------------------------------

    def invoke(self, call: Call, site: Site) -> Value:
        operator = self._lookup(call.op, site)
        positional: list[Value] = []
        named: dict[str, Value] = {}
        for argument in call.arguments:
            value = self.evaluate(argument.value, site.scope)
            if argument.name is None and not named:
                positional.append(value)
            elif argument.name is None:
                raise site.error(NnefSyntaxError, f"{call.op}: name every argument after the first")
            elif argument.name in named:
                message = f"{call.op}: parameter '{argument.name}' is given twice"
                raise site.error(NnefSyntaxError, message)
            else:
                named[argument.name] = value
        generic = site.scope.dtype if call.generic == "?" else call.generic
        return self._call_bound(operator, positional, named, generic, site)

    def operator(
        self, op: str, values: list[Value], site: Site, generic: str | None = None
    ) -> Value:
        return self._call_bound(self._lookup(op, site), values, {}, generic, site)

    def _lookup(self, name: str, site: Site) -> Operator:
        try:
            return self.library.lookup(name, of_model=not site.scope.standard)
        except UnsupportedOp as error:
            raise site.error(UnsupportedOp, error.message) from None

    def _call_bound(
        self,
        operator: Operator,
        positional: list[Value],
        named: Mapping[str, Value],
        generic: str | None,
        site: Site,
    ) -> Value:
        self._steps += sum(
            len(value) // ELEMENTS
            for value in (*positional, *named.values())
            if isinstance(value, (list, str))
        )
        try:
            bound = bind(operator.signature, positional, named, generic)
        except BindError as problem:
            raise site.error(ShapeError, str(problem)) from None
        special = self.special.get(operator.name)
        if special is not None:
            return special(operator.signature, bound, site)
        if operator.standard and operator.name in EXPANDED_BY_RULE:
            operator = self._by_rule(operator, bound, site)
        elif operator.native:
            return self.builder.emit(operator.signature, bound, site)
        return self._expand(operator, bound, site)

    def _by_rule(self, operator: Operator, bound: BoundArguments, site: Site) -> Operator:
        """Returns ``einsum`` with a body that is written for this call's equation and shapes."""
        shapes = [self.shape_of(value, site) for value in bound.values["inputs"]]
        try:
            text = einsum_fragment(bound.values["equation"], shapes)
        except EquationProblem as problem:
            raise site.error(ShapeError, f"einsum: {problem}") from None
        fragment = parse_fragments(text, "<einsum>")[0]
        return replace(operator, fragment=fragment, text=SourceText(text, "<einsum>"))

    # -- expansion ------------------------------------------------------------------------------

    def _expand(self, operator: Operator, bound: BoundArguments, site: Site) -> Value:
        """Runs a fragment's body in place of a call and returns its result or results.

        Several results are a tuple.
        """
        fragment = operator.fragment
        inner = _inner_scope(operator, bound, site)
        if len(inner.chain) > MAX_EXPANSION:
            message = f"fragments call each other without end: {_shown(inner.chain)}"
            raise site.error(ModelError, message)
        self.run(fragment.body or (), inner)
        values = [_result(fragment, i, bound, inner) for i in range(len(fragment.results))]
        return values[0] if len(values) == 1 else tuple(values)

    def shape_of(self, value: Value, site: Site) -> list[int]:
        if not isinstance(value, TensorRef):
            return list(shape_of_numbers(value) or ())
        fact = self.builder.facts.get(value.name)
        if fact is None:
            message = "shape_of() needs shapes, which are not known here: write the numbers"
            raise site.error(UnsupportedOp, message)
        return list(fact.shape)


def _inner_scope(operator: Operator, bound: BoundArguments, site: Site) -> Scope:
    fragment, target = operator.fragment, site.target
    results = [result.name for result in fragment.results]
    wanted = [target] if len(results) == 1 else spread(target, len(results))
    return Scope(
        text=operator.text,
        names=dict(bound.values),
        targets={r: t for r, t in zip(results, wanted, strict=True) if t is not None},
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
        message = f"fragment '{fragment.name}' never assigns its result '{result.name}'"
        raise scope.error(NnefSyntaxError, message, fragment.pos)
    value = scope.names[result.name]
    try:
        return coerce(result.type, value, bound.dtype)
    except BindError:
        message = f"result '{result.name}' must be {result.type}, got {describe(value)}"
        raise scope.error(ShapeError, message, fragment.pos) from None


def _prefix(target: Target) -> str:
    while isinstance(target, tuple):
        target = target[0] if target else None
    return target or ""


def _shown(chain: tuple[str, ...]) -> str:
    shown = chain if len(chain) <= 8 else (*chain[:6], "...", chain[-1])
    return " -> ".join(shown)
