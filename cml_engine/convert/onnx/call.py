"""One node while it is imported: its inputs and attributes, and the NNEF operators it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine.convert.onnx.model import OnnxNode
from cml_engine.convert.onnx.rows import OneOf, Row
from cml_engine.convert.onnx.values import Value
from cml_engine.errors import ModelError, ShapeError, UnsupportedOp
from cml_engine.graph import Fact

if TYPE_CHECKING:
    from cml_engine.convert.onnx.emit import Emitter

Array = np.ndarray[Any, Any]
Operand = Value | float | int | bool


class NeedsConstant(UnsupportedOp):
    """An operator wants a value now that is known only when the network runs; ``inputs`` are the
    graph's inputs from which it is computed."""

    def __init__(self, message: str, source: Any, inputs: tuple[str, ...]) -> None:
        super().__init__(message, source)
        self.inputs = inputs


class Call:
    """A node with its inputs as values. ``opset`` is that of the node's domain."""

    def __init__(
        self,
        node: OnnxNode,
        row: Row,
        opset: int,
        inputs: Sequence[Value | None],
        emitter: Emitter,
        wanted: Sequence[bool],
    ) -> None:
        self.node, self.opset, self.inputs, self.emit = node, opset, inputs, emitter
        self._wanted = wanted
        self._attrs = self._checked(row)
        count = max((i for i, name in enumerate(node.inputs, 1) if name), default=0)
        if count > row.inputs:
            raise UnsupportedOp(
                f"{count} inputs, the operator takes {row.inputs}: the model was made for another "
                "version of it",
                emitter.source,
            )

    # -- what the node says ---------------------------------------------------------------------

    def attr(self, name: str) -> Any:
        """An attribute's value, or its default."""
        return self._attrs[name]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self._attrs

    def given(self, name: str) -> bool:
        return name in self.node.attributes

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def wants(self, position: int) -> bool:
        """Whether anything reads that output."""
        return position < len(self._wanted) and self._wanted[position]

    @property
    def results(self) -> int:
        """How many outputs the node names."""
        return len(self.node.outputs)

    def __getitem__(self, position: int) -> Value:
        """An input that must be there."""
        if not self.has(position):
            raise self.wrong(f"input {position + 1} is missing")
        value = self.inputs[position]
        assert value is not None
        return value

    def get(self, position: int, default: Operand) -> Value:
        """An optional input, or a number in its place."""
        return self[position] if self.has(position) else self.emit.value(default)

    def array(self, position: int, what: str = "") -> Array:
        """The values of an input that the import must know."""
        return self.known(self[position], what or f"input {position + 1}")

    def known(self, value: Value, what: str) -> Array:
        if value.array is not None:
            return value.array
        inputs = self.emit.origins(value)
        named = ", ".join(f"'{name}'" for name in inputs)
        from_what = f"it is computed from {named}" if inputs else "it is computed"
        bind = (
            f"cml.load(…, constants={{'{inputs[0]}': …}})" if inputs else "a constant in its place"
        )
        raise NeedsConstant(
            f"{what} must be known when the model is loaded, and {from_what}: export the model "
            f"with fixed shapes, or give {bind}",
            self.emit.source,
            inputs,
        )

    def ints(self, position: int, what: str = "") -> list[int]:
        """The integers of an input that the import must know."""
        array = self.array(position, what)
        if array.dtype.kind not in "iu" and array.size:
            raise self.wrong(f"{what or f'input {position + 1}'} is {array.dtype}, wanted integers")
        return [int(n) for n in array.reshape(-1)]

    def number(self, position: int, default: float = 0.0) -> float:
        """A single known number."""
        if not self.has(position):
            return default
        array = self.array(position)
        if array.size != 1:
            raise self.wrong(f"input {position + 1} has {array.size} values, wanted one")
        return float(array.reshape(-1)[0])

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.wrong(f"axis {axis} of {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        found = [self.axis(axis, rank) for axis in axes]
        if len(set(found)) < len(found):
            raise self.wrong(f"the axes {list(axes)} name one twice")
        return found

    # -- errors ---------------------------------------------------------------------------------

    def refuse(self, what: str) -> UnsupportedOp:
        """The error for a variant of this operator that has no counterpart here."""
        return UnsupportedOp(
            f"{what} is not supported: export the model otherwise", self.emit.source
        )

    def wrong(self, what: str) -> ShapeError:
        return ShapeError(f"{what}: the model is not right, export it again", self.emit.source)

    def _checked(self, row: Row) -> dict[str, Any]:
        found = {k: None if isinstance(v, type) else v for k, v in row.attrs.items()}
        for name, value in self.node.attributes.items():
            if name not in row.attrs:
                known = ", ".join(row.attrs) or "none"
                raise UnsupportedOp(
                    f"unknown attribute '{name}', the operator has {known}: the model was made for "
                    "another version of it",
                    self.emit.source,
                )
            found[name] = self._of_type(name, value, row.attrs[name])
        for name, default in row.attrs.items():
            if isinstance(default, type) and name not in self.node.attributes:
                raise self.wrong(f"attribute '{name}' is missing")
        return found

    def _of_type(self, name: str, value: Any, default: Any) -> Any:
        if isinstance(default, OneOf) and isinstance(value, str):
            if value not in default.among:
                known = ", ".join(default.among)
                raise self.refuse(f"{name}='{value}' (of {known})")
            return value
        wanted = default if isinstance(default, type) else type(default)
        if default is None or isinstance(value, wanted):
            return value
        if wanted is float and isinstance(value, int):
            return float(value)
        got = type(value).__name__
        raise ModelError(f"attribute '{name}' is {got}, wanted {wanted.__name__}", self.emit.source)

    # -- NNEF -----------------------------------------------------------------------------------

    def op(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """One operator with one result."""
        return self.emit.node(op, [self.emit.value(x) for x in inputs], 1, attrs)[0]

    def ops(self, op: str, results: int, *inputs: Operand, **attrs: Any) -> list[Value]:
        """One operator with several results."""
        return self.emit.node(op, [self.emit.value(x) for x in inputs], results, attrs)

    def fragment(self, op: str, results: int, *inputs: Operand, **attrs: Any) -> list[Value]:
        """A compound operator of NNEF or of the extensions, expanded."""
        return self.emit.fragment(op, [self.emit.value(x) for x in inputs], results, attrs)

    def zip(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """An elementwise operator; shapes are aligned from the right, as ONNX does."""
        return self.op(op, *self.aligned(*inputs), **attrs)

    def aligned(self, *inputs: Operand) -> list[Value]:
        """Operands with 1s in front up to the largest rank, for NNEF aligns from the left."""
        values = [self.emit.value(x) for x in inputs]
        rank = max(v.rank for v in values)
        full = any(v.array is None and v.rank == rank for v in values)
        return [self._lifted(v, rank, full) for v in values]

    def _lifted(self, value: Value, rank: int, full: bool) -> Value:
        if full and value.array is not None and value.array.size == 1:
            return Value.known(value.array.reshape(()), value.name)
        missing = rank - value.rank
        if value.rank == 0 or not missing:
            return value
        return self.unsqueeze(value, list(range(missing)))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        shape = [int(n) for n in shape]
        if tuple(shape) == value.shape:
            return value
        if value.array is not None:
            return Value.known(value.array.reshape(shape), value.name)
        if any(n == 0 for n in shape):  # a 0 of NNEF's copies the input's extent
            return self._empty(value, shape)
        return self.op("reshape", value, shape=shape).typed(value.dtype)

    def _empty(self, value: Value, shape: Sequence[int]) -> Value:
        return Value.known(np.zeros(shape, value.dtype))

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        if not axes:
            return value
        if value.array is not None:
            return Value.known(np.expand_dims(value.array, tuple(axes)), value.name)
        return self.op("unsqueeze", value, axes=sorted(axes)).typed(value.dtype)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        if not axes:
            return value
        if value.array is not None:
            return Value.known(value.array.squeeze(tuple(axes)), value.name)
        return self.op("squeeze", value, axes=sorted(axes)).typed(value.dtype)

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        if list(axes) == list(range(value.rank)):
            return value
        if value.array is not None:
            return Value.known(value.array.transpose(axes), value.name)
        return self.op("transpose", value, axes=list(axes)).typed(value.dtype)

    def slice(self, value: Value, axis: int, begin: int, end: int) -> Value:
        """A part of one axis, ``begin <= end`` counted from the front."""
        if begin == 0 and end == value.shape[axis]:
            return value
        if value.array is not None:
            return Value.known(value.array.take(range(begin, end), axis))
        if begin == end:
            return self._empty(value, [0 if a == axis else n for a, n in enumerate(value.shape)])
        result = self.op("slice", value, axes=[axis], begin=[begin], end=[end])
        return result.typed(value.dtype)

    def split(self, value: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
        """Consecutive parts of one axis."""
        ends = np.cumsum([0, *sizes]).tolist()
        if value.array is not None or 0 in sizes:
            return [self.slice(value, axis, a, b) for a, b in zip(ends, ends[1:], strict=False)]
        unit = int(np.gcd.reduce(sizes))
        ratios = [size // unit for size in sizes]
        parts = self.ops("split", len(sizes), value, axis=axis, ratios=ratios)
        return [part.typed(value.dtype) for part in parts]

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """The values one after the other; empty ones add nothing."""
        full = [v for v in values if 0 not in v.shape]
        if len(full) == 1:
            return full[0]
        if not full:
            arrays = [np.zeros(v.shape, v.dtype) for v in values]
            return Value.known(np.concatenate(arrays, axis))
        if all(v.array is not None for v in full):
            return Value.known(np.concatenate([v.array for v in full if v.array is not None], axis))
        return self.op("concat", *full, axis=axis).typed(full[0].dtype)

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Broadcast to a shape, aligned from the right."""
        lifted = self.reshape(value, [1] * (len(shape) - value.rank) + list(value.shape))
        repeats = [n if have == 1 else 1 for have, n in zip(lifted.shape, shape, strict=True)]
        if all(n == 1 for n in repeats):
            return lifted
        if lifted.array is not None:
            return Value.known(np.broadcast_to(lifted.array, shape))
        if 0 in repeats:
            return self._empty(value, shape)
        return self.op("tile", lifted, repeats=repeats).typed(value.dtype)

    def cast(self, value: Value, kind: str) -> Value:
        """To one of NNEF's three types."""
        if value.kind == kind:
            return value
        return self.op("cast", value, dtype=kind)

    def scalar(self, value: Operand) -> Value:
        """As floats, which most operators want; integers are exact up to 2^24."""
        return self.cast(self.emit.value(value), "scalar")

    def fact(self, value: Value) -> Fact:
        return Fact(value.kind, value.shape)
