"""The elementwise formula of an operator.

It is the one source of the operator's kernel, of its place in chains, and of the statement by which
another kernel applies it to its own result (``epilogue.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cml_engine.ir.graph import Attrs
from cml_engine.ops.declaration.expression import Term, parse, wide_hlsl

LETTERS = "abcde"


@dataclass(frozen=True)
class Formula:
    """One elementwise operator.

    Parameters
    ----------
    hlsl : an expression over the operands ``a`` to ``e`` and ``{attribute}`` names. The functions
        it calls are in ``pointwise.hlsli``.
    numpy : ``numpy(*arrays, *attribute values)``.
    types : the operands' NNEF types; ``?`` is any, the same for all that have it.
    result : the result's type; ``?`` is that of the ``?`` operands.
    attrs : attributes in the order in which ``numpy`` takes them.
    fusable : the kernels of other operators may apply it to their results: it then has operands
        and a result of numbers, and its expression is one of ``expression.py``'s.
    commutative : the first two operands may stand in either order.
    term : the expression as it is read, where that is known already.
    in_place : ``in_place(attrs, x, *others)`` makes its result of ``x`` in the memory of ``x``, or
        is False and does nothing.
    """

    hlsl: str
    numpy: Callable[..., Any]
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
        """The attributes' values, in order."""
        return [float(attrs[name]) for name in self.attrs]

    def expression(self, attributes: Sequence[str]) -> str:
        """The HLSL of one number, with those texts in the place of the attributes."""
        return self.hlsl.format(**dict(zip(self.attrs, attributes, strict=True)))

    def wide_expression(self, kind: str, attributes: Sequence[str]) -> str | None:
        """The HLSL of as many numbers as ``kind`` (``float4``) holds, without branches; None where
        it calls what only takes one."""
        found = wide_hlsl(self._term, kind)
        return found and found.format(**dict(zip(self.attrs, attributes, strict=True)))

    @cached_property
    def _term(self) -> Term:
        if self.term is not None:
            return self.term
        letters = LETTERS[: self.arity]
        return parse(self.hlsl, dict(zip(letters, letters, strict=True)), self.attrs)
