"""Prints syntax trees as NNEF text, which parses back to an equal tree."""

from __future__ import annotations

from collections.abc import Iterable

from cml_engine.nnef.text.parser import PRECEDENCE
from cml_engine.nnef.text.syntax_tree import (
    Argument,
    ArrayExpr,
    Assignment,
    Binary,
    Call,
    Comprehension,
    Document,
    Expr,
    Fragment,
    FragmentParam,
    FragmentResult,
    GraphDef,
    IfElse,
    Literal,
    Name,
    Slicing,
    Subscript,
    TupleExpr,
    Unary,
)

_POSTFIX = 8
_UNARY = 7


def print_document(document: Document) -> str:
    """Returns the text of a whole ``graph.nnef`` for its syntax tree."""
    parts = []
    if document.version is not None:
        parts.append(f"version {document.version};\n")
    parts += [f"extension {name.id};\n" for name in document.extensions]
    parts += [f"extension tract_symbol {symbol};\n" for symbol in document.symbols]
    parts += [f"\n{print_fragment(fragment)}" for fragment in document.fragments]
    parts.append("\n" + print_graph(document.graph) if parts else print_graph(document.graph))
    return "".join(parts)


def print_fragment(fragment: Fragment) -> str:
    """Returns the NNEF text of a fragment, with its body if it has one."""
    generic = ""
    if fragment.generic:
        default = f" = {fragment.default_dtype}" if fragment.default_dtype else ""
        generic = f"<?{default}>"
    params = ", ".join(map(_param, fragment.params))
    results = ", ".join(map(_result, fragment.results))
    head = f"fragment {fragment.name}{generic}({params}) -> ({results})"
    return f"{head};\n" if fragment.body is None else f"{head}\n{_body(fragment.body)}"


def print_graph(graph: GraphDef) -> str:
    inputs = ", ".join(name.id for name in graph.inputs)
    outputs = ", ".join(name.id for name in graph.outputs)
    return f"graph {graph.name}({inputs}) -> ({outputs})\n{_body(graph.body)}"


def print_expression(expr: Expr, context: int = 0) -> str:
    """Returns the text of an expression.

    ``context`` is the precedence of the surrounding expression. An expression of lower
    precedence gets parentheses.
    """
    match expr:
        case Literal():
            return _literal(expr)
        case Name():
            return expr.id
        case ArrayExpr(items):
            return f"[{_commas(items)}]"
        case TupleExpr(items):
            return f"({_commas(items)})"
        case Subscript(value, index):
            return f"{print_expression(value, _POSTFIX)}[{print_expression(index)}]"
        case Slicing(value, begin, end):
            ends = ":".join("" if e is None else print_expression(e) for e in (begin, end))
            return f"{print_expression(value, _POSTFIX)}[{ends}]"
        case Unary(op, operand):
            return _wrap(f"{op}{print_expression(operand, _UNARY)}", _UNARY, context)
        case Binary(op):
            return _wrap(_binary(expr), PRECEDENCE[op], context)
        case IfElse(condition, yes, no):
            condition_text = f"{print_expression(yes, 1)} if {print_expression(condition)}"
            return _wrap(f"{condition_text} else {print_expression(no)}", 0, context)
        case Comprehension():
            return _comprehension(expr)
        case Call(op, arguments, generic):
            dtype = "" if generic is None else f"<{generic}>"
            return f"{op}{dtype}({', '.join(map(_argument, arguments))})"


def _binary(expr: Binary) -> str:
    """Returns the text of a chain such as ``a + b + c``.

    It does not recurse on the left side, because chains can be long.
    """
    parts: list[str] = []
    level = PRECEDENCE[expr.op]
    left: Expr = expr
    while isinstance(left, Binary) and PRECEDENCE[left.op] == level:
        parts.append(f" {left.op} {print_expression(left.right, level + 1)}")
        left = left.left
    return print_expression(left, level) + "".join(reversed(parts))


def _comprehension(expr: Comprehension) -> str:
    loops = ", ".join(f"{loop.name} in {print_expression(loop.values, 1)}" for loop in expr.loops)
    condition = "" if expr.condition is None else f" if {print_expression(expr.condition)}"
    return f"[for {loops}{condition} yield {print_expression(expr.item)}]"


def _literal(expr: Literal) -> str:
    value = expr.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


def _wrap(text: str, level: int, context: int) -> str:
    return f"({text})" if level < context else text


def _commas(items: Iterable[Expr]) -> str:
    return ", ".join(map(print_expression, items))


def _argument(argument: Argument) -> str:
    value = print_expression(argument.value)
    return value if argument.name is None else f"{argument.name} = {value}"


def _param(param: FragmentParam) -> str:
    default = "" if param.default is None else f" = {print_expression(param.default)}"
    return f"{param.name}: {param.type}{default}"


def _result(result: FragmentResult) -> str:
    return f"{result.name}: {result.type}"


def _body(body: Iterable[Assignment]) -> str:
    return "{\n" + "".join(map(_assignment, body)) + "}\n"


def _assignment(assignment: Assignment) -> str:
    target, value = assignment.target, print_expression(assignment.value)
    if isinstance(target, TupleExpr) and len(target.items) > 1:
        return f"    {_commas(target.items)} = {value};\n"
    return f"    {print_expression(target)} = {value};\n"
