"""Reads the nodes of a quantized ONNX model as nodes of an integer network.

QuantizeLinear becomes a rounding point, DequantizeLinear disappears, and weights keep their
integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cml_engine.compiler.integer.quant_params import word_range
from cml_engine.compiler.integer.quantizer.scales import round_digits
from cml_engine.errors import ModelError, Source
from cml_engine.formats.onnx.model import OnnxModelFile
from cml_engine.formats.onnx.op_schemas import OnnxCall
from cml_engine.formats.onnx.operators.convolution import bias_row, convolve
from cml_engine.formats.onnx.operators.quantized import (
    check_zero_points,
    dequantize,
    quantize,
    quantized_dtype,
)
from cml_engine.formats.onnx.operators.runtime_quantized import (
    QUANTIZED_FORMS,
    QuantizedForm,
)
from cml_engine.formats.onnx.ranges import of_dtype
from cml_engine.formats.onnx.values import Value, along, checked_axis, clean, current_import
from cml_engine.ir.graph import Array, Attrs


class NotIntegerError(ModelError):
    """The error that a quantized model has no integer form; the message says why."""


@dataclass(frozen=True, slots=True)
class QuantizedType:
    """The scale and range of ONNX's integers without their zero point.

    ``real = scale * q`` and ``low <= q <= high``.
    """

    scale: float
    low: int
    high: int

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def bits(self) -> int:
        """The number of bits with which the engine stores an integer, 8 or 16.

        ONNX's smallest integer, -128 or -32768, is one below the engine's range and counts as
        -127 or -32767.
        """
        max_high = 127 if self.signed else 255
        return 8 if -self.low <= 128 and self.high <= max_high else 16

    @property
    def is_cut(self) -> bool:
        """True if the range is smaller than that of ``bits`` bits; values must then be clamped."""
        limits = word_range(self.bits, self.signed)
        return self.low > limits.low or self.high < limits.high


class QuantizedValue(Value):
    """A tensor of real numbers in the graph that is one of integers (``words``) in the file."""

    __slots__ = ("words",)

    def __init__(self, real: Value, words: QuantizedType) -> None:
        super().__init__(np.dtype(np.float32), real.shape, None, real.tensor)
        self.words = words

    @property
    def real(self) -> Value:
        """The same tensor as a plain value: the real numbers that the integers represent."""
        return Value(self.dtype, self.shape, None, self.tensor)


@dataclass(frozen=True, slots=True)
class QuantizedConstant:
    """A constant's integers (``whole``) minus their zero point, with one or more scales.

    Several scales are one per channel.
    """

    whole: Array
    scales: tuple[float, ...]


def quantized_type(scale: Value, zero: Value | None) -> QuantizedType:
    """Returns the range and scale of a tensor's integers, from its scale and zero point.

    Raises :class:`NotIntegerError` if an integer network cannot represent them.
    """
    zero_array = np.zeros(1, np.uint8) if zero is None else zero.array
    if scale.array is None or zero_array is None:
        raise NotIntegerError(
            "its scale or zero point is computed when the network runs: quantize the model "
            "statically (onnxruntime.quantization.quantize_static)"
        )
    if scale.array.size != 1 or zero_array.size != 1:
        raise NotIntegerError(
            f"{scale.array.size} scales of a computed tensor; an integer network has one for each "
            "(weights may have one for each channel)"
        )
    limits, zero_point = of_dtype(zero_array.dtype), int(zero_array.reshape(()))
    quantized = QuantizedType(
        round_digits(float(scale.array.reshape(()))),
        int(limits.low) - zero_point,
        int(limits.high) - zero_point,
    )
    max_high = 65535 if not quantized.signed else 32767
    if -quantized.low > 32768 or quantized.high > max_high:
        raise NotIntegerError(
            f"zero point {zero_point} of {zero_array.dtype.name}: words of 16 bits have none; "
            "quantize the model symmetrically (extra_options={'ActivationSymmetric': True})"
        )
    return quantized


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
    nodes = model.graph.nodes
    return any(node.op in _OPERATORS or node.qualified in QUANTIZED_FORMS for node in nodes)


class QdqReader:
    """Imports the quantization operators of one model for an integer network.

    ``stored`` collects the integers of constants, by the constants' names.
    """

    def __init__(self) -> None:
        self.stored: dict[str, QuantizedConstant] = {}
        self._converters: dict[str, Callable[[OnnxCall], Value | None]] = {
            "QuantizeLinear": self._quantize,
            "DequantizeLinear": self._dequantize,
            "QLinearConv": self._conv,
        }

    def results(self, call: OnnxCall) -> Sequence[Value | None] | None:
        """Returns the results of a node that handles integers, or None for other nodes.

        A node with None is imported like any other.
        """
        is_same = not call.node.domain or call.node.op in ("QuantizeLinear", "DequantizeLinear")
        op = call.node.op if is_same else call.node.qualified
        check_zero_points(call)
        if op in QUANTIZED_FORMS:
            return [self._by_form(call, QUANTIZED_FORMS[op])]
        if op in self._converters:
            result = self._converters[op](call)
            return None if result is None else [result]
        if op in _OPERATORS:
            raise NotIntegerError(
                f"{call.node.op} goes by a scale that is computed when the network runs: quantize "
                "the model statically (onnxruntime.quantization.quantize_static)"
            )
        quantized = [v for v in call.inputs if isinstance(v, QuantizedValue)]
        return self._move(call, quantized) if quantized else None

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
        x, scale, zero = call.quantized(0)
        dtype = quantized_dtype(zero, call.attrs.get("output_dtype", 0))
        if x.array is not None:
            return None
        return self._rounded(x, scale, zero or Value.known(np.zeros((), dtype)))

    def _rounded(self, x: Value, scale: Value, zero: Value | None) -> Value:
        """Adds a rounding point: a copy with the scale and range of its integers.

        Known numbers become known integers.
        """
        if isinstance(x, QuantizedValue) or x.kind != "scalar":
            raise NotIntegerError(f"quantizes {x}, wanted numbers")
        if x.array is not None:
            return quantize(x, scale, zero)
        quantized = quantized_type(scale, zero)
        copied = x.copy()
        nodes = current_import().builder.nodes
        nodes[-1] = replace(nodes[-1], attrs=Attrs({**nodes[-1].attrs, WORDS: quantized}))
        return QuantizedValue(copied, quantized)

    def _dequantize(self, call: OnnxCall) -> Value:
        axis, block = call.attrs.get("axis", 1), call.attrs.get("block_size", 0)
        return self._operand(call, 0, axis, block)

    def _operand(self, call: OnnxCall, first: int, axis: int, block: int = 0) -> Value:
        """Returns the numbers that an operand's integers stand for, given by three inputs."""
        x, scale, zero = call.quantized(first)
        if x.array is None:
            return self._numbers(x, scale, zero)
        return self._constant(x, scale, zero, axis, block)

    def _numbers(self, x: Value, scale: Value, zero: Value | None) -> Value:
        """Returns the tensor that a QuantizeLinear rounded, from the integers that it made.

        Raises :class:`NotIntegerError` if the integers were made with another scale or zero point.
        """
        if not isinstance(x, QuantizedValue):
            raise NotIntegerError(f"reads integers ({x}) that no QuantizeLinear makes")
        if quantized_type(scale, zero) != x.words:
            raise NotIntegerError("reads integers by another scale than they were made by")
        return x.real

    def _constant(
        self, x: Value, scale: Value, zero: Value | None, axis: int, block: int = 0
    ) -> Value:
        """Returns a constant's dequantized values, and records its integers.

        Integers with a scale per block are not recorded.
        """
        real = dequantize(x, scale, zero, axis, block)
        if real.array is None or x.array is None or scale.array is None:
            raise NotIntegerError("its weights or their scale are computed when the network runs")
        if block:
            return Value.known(real.array, _constant_name(x, "weights"))
        zeros = 0 if zero is None or zero.array is None else zero.array.astype(np.int64)
        if np.size(zeros) > 1:
            zeros = np.reshape(zeros, along(checked_axis(axis, x.rank), x.rank))
        return self._record(x, "weights", x.array.astype(np.int64) - zeros, scale.array, real.array)

    def _record(self, x: Value, role: str, integers: Array, scales: Array, real: Array) -> Value:
        """Records a constant's integers by its name in ``stored``, and returns its real numbers."""
        name = _constant_name(x, role)
        scale_values = tuple(float(s) for s in scales.reshape(-1))
        self.stored[clean(name)] = QuantizedConstant(integers, scale_values)
        return Value.known(real, name)

    def _move(self, call: OnnxCall, quantized: Sequence[QuantizedValue]) -> list[Value]:
        if call.node.op not in _MOVES or any(v.words != quantized[0].words for v in quantized):
            raise NotIntegerError(
                f"{call.node.op} computes with integers and does not say what they stand for"
            )
        call.inputs = [v.real if isinstance(v, QuantizedValue) else v for v in call.inputs]
        return [QuantizedValue(v, quantized[0].words) for v in call.convert() if v is not None]

    # -- operators of integers --------------------------------------------------------------------

    def _conv(self, call: OnnxCall) -> Value:
        x, weights = self._numbers(*call.quantized(0)), self._constant(*call.quantized(3), 0)
        bias = self._bias(call[8], call[1], call[4]) if call.has(8) else None
        y = convolve(x, weights, bias_row(bias, weights.shape[0]), **call.attrs)
        return self._rounded(y, call[6], call[7])

    def _by_form(self, call: OnnxCall, form: QuantizedForm) -> Value:
        operands = [self._operand(call, i, form.axis(call, i)) for i in form.operands(call)]
        y = form.compute(call, *operands, **call.attrs)
        if form.can_be_float and not call.has(form.result):
            return y
        return self._rounded(y, call[form.result], call.optional(form.result + 1))

    def _bias(self, bias: Value, input_scale: Value, weight_scales: Value) -> Value:
        if bias.array is None or input_scale.array is None or weight_scales.array is None:
            raise NotIntegerError("its bias is computed")
        scales = weight_scales.array.astype(np.float64).reshape(-1) * float(
            input_scale.array.reshape(())
        )
        real = (bias.array * scales).astype(np.float32)
        return self._record(bias, "bias", bias.array.astype(np.int64), scales, real)


def _constant_name(x: Value, role: str) -> str:
    return x.name or f"{current_import().base}_{role}"
