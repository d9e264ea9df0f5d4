"""Reads the nodes of a quantized ONNX model as nodes of an integer network.

QuantizeLinear becomes a rounding point, DequantizeLinear disappears, and weights keep their
integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cml_engine.errors import Source
from cml_engine.formats.onnx.integer.quantized_values import (
    NotIntegerError,
    QuantizedConstant,
    QuantizedValue,
    quantized_type,
)
from cml_engine.formats.onnx.model import OnnxModelFile
from cml_engine.formats.onnx.op_schemas import OnnxCall
from cml_engine.formats.onnx.operators.convolution import convolve
from cml_engine.formats.onnx.operators.matrix import matmul
from cml_engine.formats.onnx.operators.quantized import dequantize
from cml_engine.formats.onnx.values import Value, checked_axis, clean, current_import
from cml_engine.ir.graph import Attrs

#: the attribute of a copy that is a rounding point: the scale and range of its integers
WORDS = "words"
_OPERATORS = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "MatMulInteger".split()
)
#: operators that move integers unchanged
_MOVES = frozenset(
    "Concat DepthToSpace Expand Flatten Gather Identity MaxPool Reshape Slice SpaceToDepth Split "
    "Squeeze Tile Transpose Unsqueeze".split()
)


def is_quantized(model: OnnxModelFile) -> bool:
    """Returns True if a model's main graph has quantization operators."""
    return any(node.op in _OPERATORS for node in model.graph.nodes)


class QdqReader:
    """Imports the quantization operators of one model for an integer network.

    ``stored`` collects the integers of constants, by the constants' names.
    """

    def __init__(self) -> None:
        self.stored: dict[str, QuantizedConstant] = {}
        self._forms: dict[str, Callable[[OnnxCall], Value | None]] = {
            "QuantizeLinear": self._quantize,
            "DequantizeLinear": self._dequantize,
            "QLinearConv": self._conv,
            "QLinearMatMul": self._matmul,
        }

    def results(self, call: OnnxCall) -> Sequence[Value | None] | None:
        """Returns the results of a node that handles integers, or None for other nodes.

        A node with None is imported like any other.
        """
        op = call.node.op if not call.node.domain else call.node.qualified
        if op in self._forms:
            found = self._forms[op](call)
            return None if found is None else [found]
        if op in _OPERATORS:
            raise NotIntegerError(
                f"{call.node.op} goes by a scale that is computed when the network runs: quantize "
                "the model statically (onnxruntime.quantization.quantize_static)"
            )
        read = [v for v in call.inputs if isinstance(v, QuantizedValue)]
        return self._move(call, read) if read else None

    def check(self, inputs: Sequence[Value | None], source: Source) -> None:
        """Raises :class:`NotIntegerError` if an input is integers that stand for real numbers.

        The node is a control-flow operator or an operator that the table lacks. Its results
        would have no known scale.
        """
        if any(isinstance(value, QuantizedValue) for value in inputs):
            raise NotIntegerError("reads integers, and does not say what they stand for", source)

    def check_outputs(self, outputs: Sequence[Value], names: Sequence[str]) -> None:
        for value, name in zip(outputs, names, strict=True):
            if isinstance(value, QuantizedValue):
                raise NotIntegerError(
                    f"output '{name}' is of integers; that of an integer network is of numbers: "
                    "end it with DequantizeLinear"
                )

    # -- integers and numbers ---------------------------------------------------------------------

    def _quantize(self, call: OnnxCall) -> Value | None:
        zero = call[2] if call.has(2) else None
        dtype = np.dtype(np.uint8) if zero is None else zero.dtype
        if call[0].array is not None or dtype.kind not in "iu":
            return None
        return self._quantize_values(call, call[0], call[1], zero, dtype)

    def _quantize_values(
        self, call: OnnxCall, x: Value, scale: Value, zero: Value | None, dtype: np.dtype[Any]
    ) -> QuantizedValue:
        if isinstance(x, QuantizedValue) or x.kind != "scalar":
            raise NotIntegerError(f"quantizes {x}, wanted numbers")
        words = quantized_type(scale, zero, dtype)
        found = x.copy()
        nodes = current_import().builder.nodes
        nodes[-1] = replace(nodes[-1], attrs=Attrs({**nodes[-1].attrs, WORDS: words}))
        return QuantizedValue(found, words)

    def _dequantize(self, call: OnnxCall) -> Value:
        zero = call[2] if call.has(2) else None
        if call[0].array is None:
            return self._numbers(call[0], call[1], zero)
        return self._dequantize_constant(call, call[0], call[1], zero)

    def _numbers(self, x: Value, scale: Value, zero: Value | None) -> Value:
        """Returns the real numbers that computed integers represent: the tensor that was rounded.

        Raises :class:`NotIntegerError` if the integers were made with another scale or zero point.
        """
        if not isinstance(x, QuantizedValue):
            raise NotIntegerError(f"reads integers ({x}) that no QuantizeLinear makes")
        if (
            quantized_type(scale, zero, zero.dtype if zero is not None else np.dtype(np.uint8))
            != x.words
        ):
            raise NotIntegerError("reads integers by another scale than they were made by")
        return x.real

    def _dequantize_constant(
        self, call: OnnxCall, x: Value, scale: Value, zero: Value | None
    ) -> Value:
        """Returns a constant's dequantized values, and records its integers in ``stored``.

        Integers with a scale per block are not recorded.
        """
        block, axis = call.attrs.get("block_size", 0), call.attrs.get("axis", 1)
        real = dequantize(x, scale, zero, axis, block)
        if real.array is None or x.array is None or scale.array is None:
            raise NotIntegerError("its scale is computed when the network runs")
        name = x.name or f"{current_import().base}_weights"
        start = 0 if zero is None or zero.array is None else zero.array.astype(np.int64)
        if not block and np.ndim(start) and np.size(start) > 1:
            axis = checked_axis(axis, x.rank)
            start = np.reshape(start, [-1 if a == axis else 1 for a in range(x.rank)])
        if not block:
            scales = tuple(float(s) for s in scale.array.reshape(-1))
            self.stored[clean(name)] = QuantizedConstant(x.array.astype(np.int64) - start, scales)
        return Value.known(real.array, name)

    def _move(self, call: OnnxCall, read: Sequence[QuantizedValue]) -> list[Value]:
        if call.node.op not in _MOVES or any(v.words != read[0].words for v in read):
            raise NotIntegerError(
                f"{call.node.op} computes with integers and does not say what they stand for"
            )
        call.inputs = [v.real if isinstance(v, QuantizedValue) else v for v in call.inputs]
        return [QuantizedValue(v, read[0].words) for v in call.convert() if v is not None]

    # -- operators of integers --------------------------------------------------------------------

    def _conv(self, call: OnnxCall) -> Value:
        x = self._numbers(call[0], call[1], call[2])
        weights = self._weights(call, 3, 0)
        bias = self._bias(call, 8, call[1], call[4]).unsqueeze([0]) if call.has(8) else 0.0
        y = convolve(x, weights, bias, **call.attrs)
        return self._quantize_values(call, y, call[6], call[7], call[7].dtype)

    def _matmul(self, call: OnnxCall) -> Value:
        a = self._numbers(call[0], call[1], call[2])
        known = call[3].array is not None
        b = self._weights(call, 3, -1) if known else self._numbers(call[3], call[4], call[5])
        return self._quantize_values(call, matmul(a, b), call[6], call[7], call[7].dtype)

    def _weights(self, call: OnnxCall, position: int, axis: int) -> Value:
        """Returns the dequantized weights of an input, and records their integers in ``stored``.

        The inputs after ``position`` are their scale and zero point, each one number or one per
        element of ``axis``.
        """
        x, scale, zero = call[position], call[position + 1], call[position + 2]
        if x.array is None or scale.array is None or zero.array is None:
            raise NotIntegerError("its weights are computed")
        shape = [1] * x.rank
        shape[axis] = -1
        start = zero.array.astype(np.int64).reshape(shape)
        whole, name = x.array.astype(np.int64) - start, x.name or f"{current_import().base}_weights"
        scales = tuple(float(s) for s in scale.array.reshape(-1))
        self.stored[clean(name)] = QuantizedConstant(whole, scales)
        real = whole * scale.array.astype(np.float64).reshape(shape)
        return Value.known(real.astype(np.float32), name)

    def _bias(self, call: OnnxCall, position: int, of_x: Value, of_weights: Value) -> Value:
        bias = call[position]
        if bias.array is None or of_x.array is None or of_weights.array is None:
            raise NotIntegerError("its bias is computed")
        scales = of_weights.array.astype(np.float64).reshape(-1) * float(of_x.array.reshape(()))
        name = bias.name or f"{current_import().base}_bias"
        self.stored[clean(name)] = QuantizedConstant(
            bias.array.astype(np.int64), tuple(map(float, scales))
        )
        return Value.known((bias.array * scales).astype(np.float32), name)
