"""One node during import: its inputs and attributes, and the NNEF operators that replace it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cml_engine.formats.onnx.node_inputs import NodeInputs, Operand
from cml_engine.formats.onnx.values import Value
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Fact


class OnnxCall(NodeInputs):
    """One node of an ONNX model while it is imported: its inputs and attributes.

    The converter of the node's operator gets it as its argument, and adds NNEF operators with its
    methods.
    """

    def op(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """Adds an NNEF operator with one result and returns the result."""
        return self.emit.node(op, [self.emit.value(x) for x in inputs], 1, attrs)[0]

    def ops(self, op: str, results: int, *inputs: Operand, **attrs: Any) -> list[Value]:
        """Adds an NNEF operator with ``results`` results and returns them."""
        return self.emit.node(op, [self.emit.value(x) for x in inputs], results, attrs)

    def fragment(self, op: str, results: int, *inputs: Operand, **attrs: Any) -> list[Value]:
        """Adds the operators that a compound operator of NNEF or of the extensions expands to.

        Returns its ``results`` results.
        """
        return self.emit.fragment(op, [self.emit.value(x) for x in inputs], results, attrs)

    def zip(self, op: str, *inputs: Operand, **attrs: Any) -> Value:
        """Adds an elementwise operator and returns its result.

        The operands' shapes are aligned from the right, as in ONNX.
        """
        return self.op(op, *self.align(*inputs), **attrs)

    def align(self, *inputs: Operand) -> list[Value]:
        """Returns the inputs, all of the largest rank; axes of 1 are added in front.

        ONNX aligns shapes from the right, NNEF from the left.
        """
        values = [self.emit.value(x) for x in inputs]
        rank = max(v.rank for v in values)
        full = any(v.array is None and v.rank == rank for v in values)
        return [self._lift(v, rank, full) for v in values]

    def _lift(self, value: Value, rank: int, full: bool) -> Value:
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
        if any(n == 0 for n in shape):  # in NNEF 0 copies the input's extent
            return self._make_empty(value, shape)
        return self.op("reshape", value, shape=shape).typed(value.dtype)

    def _make_empty(self, value: Value, shape: Sequence[int]) -> Value:
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
        """Adds a slice of the elements ``begin`` to ``end - 1`` of one axis and returns the result.

        ``0 <= begin <= end``. No operator is added if the value is known or nothing is cut off.
        """
        if begin == 0 and end == value.shape[axis]:
            return value
        if value.array is not None:
            return Value.known(value.array.take(range(begin, end), axis))
        if begin == end:
            return self._make_empty(
                value, [0 if a == axis else n for a, n in enumerate(value.shape)]
            )
        result = self.op("slice", value, axes=[axis], begin=[begin], end=[end])
        return result.typed(value.dtype)

    def split(self, value: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
        """Splits one axis into consecutive parts of the given sizes and returns them."""
        ends = np.cumsum([0, *sizes]).tolist()
        if value.array is not None or 0 in sizes:
            return [self.slice(value, axis, a, b) for a, b in zip(ends, ends[1:], strict=False)]
        unit = int(np.gcd.reduce(sizes))
        ratios = [size // unit for size in sizes]
        parts = self.ops("split", len(sizes), value, axis=axis, ratios=ratios)
        return [part.typed(value.dtype) for part in parts]

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Returns the values concatenated along an axis. It skips values without elements."""
        full = [v for v in values if 0 not in v.shape]
        if len(full) == 1:
            return full[0]
        if not full:
            arrays = [np.zeros(v.shape, v.dtype) for v in values]
            return Value.known(np.concatenate(arrays, axis))
        if all(v.array is not None for v in full):
            size = sum(v.array.nbytes for v in full if v.array is not None)
            current_budget().check_bytes(size, "its result", self.emit.source)
            return Value.known(np.concatenate([v.array for v in full if v.array is not None], axis))
        return self.op("concat", *full, axis=axis).typed(full[0].dtype)

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Returns a value broadcast to a shape; shapes are aligned from the right."""
        lifted = self.reshape(value, [1] * (len(shape) - value.rank) + list(value.shape))
        repeats = [n if have == 1 else 1 for have, n in zip(lifted.shape, shape, strict=True)]
        if all(n == 1 for n in repeats):
            return lifted
        if lifted.array is not None:
            return Value.known(np.broadcast_to(lifted.array, shape))
        if 0 in repeats:
            return self._make_empty(value, shape)
        return self.op("tile", lifted, repeats=repeats).typed(value.dtype)

    def cast(self, value: Value, kind: str) -> Value:
        """Returns a value cast to ``kind``: ``"scalar"``, ``"integer"`` or ``"logical"``."""
        if value.kind == kind:
            return value
        return self.op("cast", value, dtype=kind)

    def scalar(self, value: Operand) -> Value:
        """Returns a value cast to float32, the type of most operators.

        Integers are exact up to 2^24.
        """
        return self.cast(self.emit.value(value), "scalar")

    def fact(self, value: Value) -> Fact:
        return Fact(value.kind, value.shape)
