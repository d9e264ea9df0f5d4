"""Tensors of a graph under construction as Python expressions, which add operators to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

#: the operands of an operator beside tensors: numbers, and what a class takes besides
Number = TypeVar("Number")


class TensorArithmetic(Generic[Number]):
    """A tensor whose arithmetic adds operators: ``x * 2 + 1`` adds a ``mul`` and an ``add``."""

    __slots__ = ()

    def apply(self, op: str, *operands: Self | Number, **attrs: Any) -> Self:
        """Adds the operator of an NNEF name with one result, and returns the result."""
        raise NotImplementedError

    def __add__(self, other: Self | Number) -> Self:
        return self.apply("add", self, other)

    def __radd__(self, other: Self | Number) -> Self:
        return self.apply("add", other, self)

    def __sub__(self, other: Self | Number) -> Self:
        return self.apply("sub", self, other)

    def __rsub__(self, other: Self | Number) -> Self:
        return self.apply("sub", other, self)

    def __mul__(self, other: Self | Number) -> Self:
        return self.apply("mul", self, other)

    def __rmul__(self, other: Self | Number) -> Self:
        return self.apply("mul", other, self)

    def __truediv__(self, other: Self | Number) -> Self:
        return self.apply("div", self, other)

    def __rtruediv__(self, other: Self | Number) -> Self:
        return self.apply("div", other, self)

    def __neg__(self) -> Self:
        return self.apply("neg", self)


class TensorExpression(TensorArithmetic[Number]):
    """A tensor of which every operator with one result is a method: ``x.softmax(axes=[1])``.

    An operator that is a word of Python has an underscore: ``x.and_(y)``.
    """

    __slots__ = ()

    def __getattr__(self, op: str) -> Callable[..., Self]:
        if op.startswith("_"):
            raise AttributeError(op)
        return partial(self.apply, op.rstrip("_"), self)
