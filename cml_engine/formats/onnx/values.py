"""The values that the names of an ONNX model have during import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array, DType, Fact

_KINDS = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}
_DTYPES: dict[str, np.dtype[Any]] = {
    "scalar": np.dtype("f4"),
    "integer": np.dtype("i8"),
    "logical": np.dtype("?"),
}

#: the reason and the advice for inputs without elements
NOTHING = "an extent of its inputs is 0: give shapes with extents of 1 or more"


class Value:
    """A tensor: known at import (``array``), or computed (``tensor``, its name in the graph).

    ``dtype`` is the ONNX type, which may be wider than the type that the graph computes with. A
    known value gets a ``tensor`` too when an operator reads it, named ``name`` if that is set.
    """

    __slots__ = ("array", "dtype", "name", "shape", "tensor")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        array: Array | None = None,
        tensor: str | None = None,
        name: str = "",
    ) -> None:
        self.dtype, self.shape, self.array, self.tensor = dtype, shape, array, tensor
        self.name = name

    @classmethod
    def known(cls, array: Any, name: str = "") -> Value:
        array = np.asarray(array)
        return cls(array.dtype, array.shape, array, None, name)

    @classmethod
    def computed(cls, tensor: str, fact: Fact, dtype: np.dtype[Any] | None = None) -> Value:
        return cls(dtype or _DTYPES[fact.dtype], fact.shape, None, tensor)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def kind(self) -> str:
        """NNEF's name of the type: ``"scalar"``, ``"integer"`` or ``"logical"``."""
        return kind_of(self.dtype)

    def typed(self, dtype: Any) -> Value:
        """Returns the value with another ONNX type of the same NNEF type.

        A known array is converted; a computed tensor is the same.
        """
        if self.array is not None:
            return Value.known(self.array.astype(dtype), self.name)
        return Value(np.dtype(dtype), self.shape, None, self.tensor)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def kind_of(dtype: np.dtype[Any]) -> str:
    return _KINDS[dtype.kind]


def has_nothing(values: Sequence[Value | None]) -> bool:
    """Returns True if a computed value has no elements.

    Known values may be empty, such as the region of a Resize.
    """
    return any(v is not None and v.array is None and 0 in v.shape for v in values)
