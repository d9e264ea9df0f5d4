"""What a name of an ONNX model stands for while the model is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array, Fact

_KINDS = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}
_DTYPES: dict[str, np.dtype[Any]] = {
    "scalar": np.dtype("f4"),
    "integer": np.dtype("i8"),
    "logical": np.dtype("?"),
}

#: why an operator cannot take what it is given, and what to do
NOTHING = "an extent of its inputs is 0: give shapes with extents of 1 or more"


class Value:
    """A tensor: known now (``array``), or to be computed (``tensor``, its name in the graph).

    ``dtype`` is the ONNX type, which may be wider than what the graph computes with. A value that
    is known gets a ``tensor`` too when an operator reads it, called ``name`` if it has one.
    """

    __slots__ = ("array", "dtype", "name", "shape", "tensor")

    def __init__(
        self,
        dtype: np.dtype[Any],
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
        """NNEF's name of the type."""
        return kind_of(self.dtype)

    def typed(self, dtype: Any) -> Value:
        """The same tensor under another ONNX type of the same kind."""
        if self.array is not None:
            return Value.known(self.array.astype(dtype), self.name)
        return Value(np.dtype(dtype), self.shape, None, self.tensor)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def kind_of(dtype: np.dtype[Any]) -> str:
    return _KINDS[dtype.kind]


def has_nothing(values: Sequence[Value | None]) -> bool:
    """Whether what the network computes has no element; known values (a Resize's regions) may."""
    return any(v is not None and v.array is None and 0 in v.shape for v in values)
