"""Elementwise formulas: parses expressions, and generates HLSL or evaluates them in NumPy.

A :class:`Formula` is the one source of an operator's kernel, of its place in chains, and of the
statement by which another kernel applies it to its own result (``epilogue.py``).

An expression has numbers, operands, ``{attributes}``, ``+ - * /``, comparisons, ``&& ||``, ``c ?
x : y``, parentheses and calls. Conditions and numbers are distinct types, so that all generated
forms have the same meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cml_engine.errors.arguments import similar_names
from cml_engine.ir.graph import Array, Attrs

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|\{(?P<attribute>\w+)\}"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<symbol><=|>=|==|!=|&&|\|\||[-+*/<>?:(),])|(?P<end>$))"
)
_BINARY: Mapping[str, tuple[int, Callable[..., Array]]] = {
    "||": (1, np.logical_or), "&&": (2, np.logical_and),
    "==": (3, np.equal), "!=": (3, np.not_equal),
    "<": (4, np.less), "<=": (4, np.less_equal), ">": (4, np.greater), ">=": (4, np.greater_equal),
    "+": (5, np.add), "-": (5, np.subtract), "*": (6, np.multiply), "/": (6, np.divide),
}  # fmt: skip
_LOGIC = ("||", "&&")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
#: shader functions that return a condition, and those that also take a ``float4``
_CONDITIONS = frozenset({"cml_isnan", "cml_isinf", "cml_negative", "cml_unequal"})
_VECTOR_FUNCTIONS = frozenset(
    "abs exp exp2 log log2 sqrt floor ceil cml_negative cml_clamp cml_sigmoid cml_tanh cml_erf "
    "cml_requantize cml_requantize_signed cml_requantize_wide cml_requantize_wide_signed "
    "cml_requantize_pair cml_requantize_product cml_integer_numbers".split()
)
#: the names of operands in HLSL
LETTERS = "abcde"
#: limits far above any use: nested parts, and parts with all calls expanded
_MAX_DEPTH, _MAX_PARTS = 64, 1000


class ExpressionError(ValueError):
    """Raised for an invalid expression; ``at`` is the index of the character, from 0."""

    def __init__(self, problem: str, text: str, at: int) -> None:
        super().__init__(f"{problem}, at character {at + 1}:\n    {text}\n    {' ' * at}^")


@dataclass(frozen=True, slots=True)
class Term:
    """A node of an expression tree.

    ``kind`` is ``number``, ``operand`` (``text`` is its letter), ``attribute``, ``call``,
    ``known`` (an operator, whose body is the first part), ``choice``, or the symbol of the
    operation on the ``parts``.
    """

    kind: str
    text: str = ""
    parts: tuple[Term, ...] = ()
    at: int = 0
    numpy: Callable[..., object] | None = None
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(part.size for part in self.parts))

    @property
    def is_condition(self) -> bool:
        if self.kind == "known":
            return False
        return self.kind in (*_LOGIC, *_COMPARISONS) or self.text in _CONDITIONS

    @property
    def arguments(self) -> tuple[Term, ...]:
        """The arguments of a call as written in the expression."""
        return self.parts[1:] if self.kind == "known" else self.parts

    def calls(self) -> list[Term]:
        """Returns the calls in this tree of functions that only shaders have, outermost first."""
        inner = [call for part in self.arguments for call in part.calls()]
        return [self, *inner] if self.kind == "call" else inner

    def functions(self) -> set[str]:
        """Returns the names of all functions and operators that this tree calls."""
        names = {self.text} if self.kind in ("call", "known") else set[str]()
        return names.union(*(part.functions() for part in self.arguments))


def parse(
    text: str,
    operands: Mapping[str, str],
    attributes: Sequence[str] = (),
    functions: Mapping[str, Formula] | None = None,
) -> Term:
    """Parses the text of an expression into a tree.

    ``operands`` maps names to letters. A called name that is not in ``functions`` is a shader
    function. Raises :class:`ExpressionError` if the text is invalid or its type is not a number.
    """
    return _Parser(text, operands, attributes, functions or {}).parse()


@dataclass
class _Parser:
    _text: str
    _operands: Mapping[str, str]
    _attributes: Sequence[str]
    _functions: Mapping[str, Formula]
    _depth: int = 0
    _next: int = 0

    def parse(self) -> Term:
        self._advance()
        term = self._number(self._choice())
        if self._kind != "end":
            raise self._wrong("wanted an operator or the end")
        return term

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._next)
        if match is None:
            at = self._next + len(self._text[self._next :]) - len(self._text[self._next :].lstrip())
            raise ExpressionError(f"'{self._text[at]}' is not for expressions", self._text, at)
        self._kind = str(match.lastgroup)
        self._token = match[self._kind]
        self._at = match.end() - len(match[0].lstrip())
        self._next = match.end()

    def _take_symbol(self, symbol: str) -> bool:
        matches = self._kind == "symbol" and self._token == symbol
        if matches:
            self._advance()
        return matches

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ExpressionError(
                f"more than {_MAX_DEPTH} parts in one another", self._text, self._at
            )

    def _expect(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._wrong(f"wanted '{symbol}'")

    def _wrong(self, problem: str) -> ExpressionError:
        token = "the end" if self._kind == "end" else f"'{self._token}'"
        return ExpressionError(f"{problem}, got {token}", self._text, self._at)

    def _number(self, term: Term) -> Term:
        if term.is_condition:
            raise ExpressionError("wanted a number, got a condition", self._text, term.at)
        return term

    def _condition(self, term: Term) -> Term:
        if not term.is_condition:
            raise ExpressionError(
                "wanted a condition (a comparison), got a number", self._text, term.at
            )
        return term

    def _choice(self) -> Term:
        self._enter()
        term = self._sum(0)
        if self._kind == "symbol" and self._token == "?":
            condition = self._condition(term)
            self._advance()
            then = self._number(self._choice())
            self._expect(":")
            term = Term("choice", "", (condition, then, self._number(self._choice())), condition.at)
        self._depth -= 1
        return term

    def _sum(self, strength: int) -> Term:
        left = self._single()
        while self._kind == "symbol" and _BINARY.get(self._token, (0,))[0] > strength:
            symbol, at = self._token, self._at
            self._advance()
            right = self._sum(_BINARY[symbol][0])
            check = self._condition if symbol in _LOGIC else self._number
            left = Term(symbol, "", (check(left), check(right)), at)
        return left

    def _single(self) -> Term:
        at, kind, token = self._at, self._kind, self._token
        if kind == "symbol" and token in "-+":
            self._enter()
            self._advance()
            inner = self._number(self._single())
            self._depth -= 1
            return Term("negative", "", (inner,), at) if token == "-" else inner
        if self._take_symbol("("):
            inner = self._choice()
            self._expect(")")
            return inner
        if kind in ("end", "symbol"):
            raise self._wrong("wanted a number, a name or '('")
        self._advance()
        if kind == "number":
            with np.errstate(over="ignore"):
                finite = np.isfinite(np.float32(token))
            if not finite:
                raise ExpressionError(f"{token} has no place in 32 bits", self._text, at)
            return Term(kind, token, (), at)
        if kind == "attribute":
            return Term(kind, self._named(token, self._attributes, "attribute", at), (), at)
        if self._kind == "symbol" and self._token == "(":
            return self._call(token, at)
        self._named(token, tuple(self._operands), "operand", at)
        return Term("operand", self._operands[token], (), at)

    def _named(self, name: str, names: Sequence[str], role: str, at: int) -> str:
        if name in names:
            return name
        if role == "operand" and name in self._attributes:
            raise ExpressionError(f"attributes are written {{{name}}}", self._text, at)
        listed = ", ".join(names) or "there are none"
        raise ExpressionError(f"'{name}' is no {role} ({listed})", self._text, at)

    def _call(self, name: str, at: int) -> Term:
        self._advance()
        parts: list[Term] = []
        while not parts or self._take_symbol(","):
            parts.append(self._number(self._choice()))
        self._expect(")")
        function = self._functions.get(name)
        if function is None:
            return Term("call", name, tuple(parts), at)
        if len(parts) != function.arity:
            raise ExpressionError(
                f"{name} takes {function.arity} numbers, got {len(parts)}", self._text, at
            )
        letters = LETTERS[: function.arity]
        body = parse(function.hlsl, dict(zip(letters, letters, strict=True)))
        body = _substituted(body, "operand", dict(zip(letters, parts, strict=True)))
        term = Term("known", name, (body, *parts), at, function.numpy)
        if term.size > _MAX_PARTS:
            raise ExpressionError(f"more than {_MAX_PARTS} parts", self._text, at)
        return term


def _substituted(term: Term, kind: str, values: Mapping[str, Term]) -> Term:
    """Returns the tree with ``values`` in place of the terms of a kind that have these texts."""
    if term.kind == kind and term.text in values:
        return values[term.text]
    parts = tuple(_substituted(part, kind, values) for part in term.parts)
    return Term(term.kind, term.text, parts, term.at, term.numpy)


def suggest_names(name: str, functions: Mapping[str, Formula]) -> str:
    """Returns a hint for a message: "call" and the known functions that are similar to the name.

    If none is similar, it lists all.
    """
    similar = similar_names(name, functions, n=3) or similar_names(name[4:], functions, n=3)
    return f"call {' or '.join(similar or sorted(functions))}"


# ---------------------------------------------------------------- forms


def hlsl(term: Term) -> str:
    """Returns the expression as scalar HLSL, with ``{attributes}`` left to be replaced.

    Every operation is in parentheses, and every number is written as its float32 value.
    """
    inner = [hlsl(part) for part in term.parts]
    if term.kind == "!=":
        return f"cml_unequal({inner[0]}, {inner[1]})"  # true for a NaN, as in C and in NumPy
    if term.kind == "choice":
        return f"({inner[0]} ? {inner[1]} : {inner[2]})"
    return _alike(term, inner)


def wide_hlsl(term: Term, hlsl_type: str) -> str | None:
    """Returns the expression as branch-free HLSL on vectors of type ``hlsl_type``.

    The type is ``float`` or ``float4``. ``{attributes}`` are left to be replaced. Returns None
    if the expression has ``!=`` or calls a function that takes scalars only.
    """
    inner = [
        wide_hlsl(part, hlsl_type)
        for part in (term.parts[:1] if term.kind == "known" else term.parts)
    ]
    if (
        None in inner
        or (term.kind == "call" and term.text not in _VECTOR_FUNCTIONS)
        or term.kind == "!="
    ):
        return None
    parts = [str(part) for part in inner]
    if term.kind == "choice":
        return f"select({parts[0]}, {hlsl_type}({parts[1]}), {hlsl_type}({parts[2]}))"
    if term.kind in _COMPARISONS:
        return f"({hlsl_type}({parts[0]}) {term.kind} {hlsl_type}({parts[1]}))"
    if term.kind in _LOGIC:
        return f"{'or' if term.kind == '||' else 'and'}({parts[0]}, {parts[1]})"
    return _alike(term, parts)


def _alike(term: Term, inner: Sequence[str]) -> str:
    """Returns the term as HLSL that is the same for one element and for four.

    ``inner`` is the HLSL of its parts.
    """
    match term.kind:
        case "number":
            return literal(term.text)
        case "operand":
            return term.text
        case "attribute":
            return f"{{{term.text}}}"
        case "negative":
            return f"(-{inner[0]})"
        case "call":
            return f"{term.text}({', '.join(inner)})"
        case "known":
            return inner[0]
    return f"({inner[0]} {term.kind} {inner[1]})"


#: the operators of NNEF that are written otherwise
_IN_NNEF = {"choice": "select({}, {}, {})", "negative": "(-{})"}


def nnef(term: Term, operands: Sequence[str]) -> str:
    """Returns the expression as NNEF, with the names ``operands`` for the letters.

    Returns "" if it calls a function that only shaders have.
    """
    if term.kind == "operand":
        return operands[LETTERS.index(term.text)]
    if term.kind in ("number", "attribute"):
        return literal(term.text) if term.kind == "number" else term.text
    inner = [nnef(part, operands) for part in term.arguments]
    if term.kind == "call" or "" in inner:
        return ""
    if term.kind == "known":
        return f"{term.text}({', '.join(inner)})"
    return _IN_NNEF.get(term.kind, f"({{}} {term.kind} {{}})").format(*inner)


def literal(text: str) -> str:
    """Returns the nearest float32 of a number as text for HLSL and Python."""
    number = str(np.float32(text))
    return number if set(number) & set(".e") else f"{number}.0"


def evaluate(term: Term, operands: Mapping[str, Array], attributes: Mapping[str, object]) -> Any:
    """Computes the expression with NumPy; ``operands`` are arrays by letter."""
    if term.kind == "number":
        return np.float32(term.text)
    if term.kind == "operand":
        return operands[term.text]
    if term.kind == "attribute":
        return attributes[term.text]
    arguments = [evaluate(part, operands, attributes) for part in term.arguments]
    if term.numpy is not None:
        return term.numpy(*arguments)
    if term.kind == "choice":
        return np.where(*arguments)
    return np.negative(*arguments) if term.kind == "negative" else _BINARY[term.kind][1](*arguments)


# ---------------------------------------------------------------- formulas


@dataclass(frozen=True)
class Formula:
    """The formula of one elementwise operator.

    Parameters
    ----------
    hlsl : an expression over the operands ``a`` to ``e`` and ``{attribute}`` names. The functions
        it calls are in ``pointwise.hlsli``.
    numpy : ``numpy(*arrays, *attribute values)``.
    types : the operands' NNEF types; ``?`` is any type, the same for all operands that have it.
    result : the result's type; ``?`` is that of the ``?`` operands.
    attrs : attributes in the order of ``numpy``'s arguments.
    fusable : the kernels of other operators may apply it to their results. This requires numeric
        operands, a numeric result, and an expression that ``expression.py`` can parse.
    commutative : the first two operands may be swapped.
    term : the parsed expression, if it is known already.
    in_place : ``in_place(attrs, x, *others)`` writes its result to the memory of ``x``, or does
        nothing and returns False.
    """

    hlsl: str
    numpy: Callable[..., object]
    types: tuple[str, ...] = ("scalar",)
    result: str = "scalar"
    attrs: tuple[str, ...] = ()
    fusable: bool = False
    commutative: bool = False
    in_place: Callable[..., bool] | None = None
    term: Term | None = None

    @property
    def arity(self) -> int:
        return len(self.types)

    def values(self, attrs: Attrs) -> list[float]:
        """Returns the values of the formula's attributes as floats, in order."""
        return [float(attrs[name]) for name in self.attrs]

    def expression(self, attributes: Sequence[str]) -> str:
        """Returns the scalar HLSL with the texts ``attributes`` in place of the attributes."""
        return self.hlsl.format(**dict(zip(self.attrs, attributes, strict=True)))

    def wide_expression(self, hlsl_type: str, attributes: Sequence[str]) -> str | None:
        """Returns branch-free HLSL on vectors of type ``hlsl_type``, such as ``float4``.

        ``attributes`` are the texts in place of the attributes. Returns None if the expression
        has no such form.
        """
        template = wide_hlsl(self._term, hlsl_type)
        return template and template.format(**dict(zip(self.attrs, attributes, strict=True)))

    @cached_property
    def _term(self) -> Term:
        if self.term is not None:
            return self.term
        letters = LETTERS[: self.arity]
        return parse(self.hlsl, dict(zip(letters, letters, strict=True)), self.attrs)


def with_attributes_as_operands(formula: Formula, names: Sequence[str]) -> Formula:
    """Returns the formula with the named attributes as operands behind the others."""
    remaining = tuple(name for name in formula.attrs if name not in names)
    letters = dict(zip(names, LETTERS[formula.arity :], strict=False))
    order = [(*names, *remaining).index(name) for name in formula.attrs]
    numpy, arity = formula.numpy, formula.arity

    def reordered(*arguments: object) -> object:
        return numpy(*arguments[:arity], *(arguments[arity + i] for i in order))

    operands = {name: Term("operand", letter) for name, letter in letters.items()}
    return replace(
        formula,
        hlsl=formula.expression([letters.get(name, f"{{{name}}}") for name in formula.attrs]),
        numpy=reordered,
        types=(*formula.types, *["scalar"] * len(names)),
        attrs=remaining,
        in_place=None,
        term=formula.term and _substituted(formula.term, "attribute", operands),
    )
