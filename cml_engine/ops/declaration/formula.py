"""The elementwise formula of an operator, from which all code that computes it is generated.

It is the one source of the operator's kernel, of its place in chains, and of the statement by which
another kernel applies it to its own result (``epilogue.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.declaration.expression import Term, parse, wide_hlsl

LETTERS = "abcde"


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
    numpy: Callable[..., Array]
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

    def wide_expression(self, kind: str, attributes: Sequence[str]) -> str | None:
        """Returns branch-free HLSL on vectors of type ``kind``, such as ``float4``.

        ``attributes`` are the texts in place of the attributes. Returns None if the expression
        has no such form.
        """
        found = wide_hlsl(self._term, kind)
        return found and found.format(**dict(zip(self.attrs, attributes, strict=True)))

    @cached_property
    def _term(self) -> Term:
        if self.term is not None:
            return self.term
        letters = LETTERS[: self.arity]
        return parse(self.hlsl, dict(zip(letters, letters, strict=True)), self.attrs)
