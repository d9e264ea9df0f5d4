"""Types that map an ONNX model's integers to real numbers, as an integer network does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cml_engine.compiler.integer.quant_params import word_range
from cml_engine.compiler.integer.quantizer.scales import round_digits
from cml_engine.errors import ModelError
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array, DType


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
        most = 127 if self.signed else 255
        return 8 if -self.low <= 128 and self.high <= most else 16

    @property
    def is_cut(self) -> bool:
        """True if the range is smaller than that of ``bits`` bits; values must then be clamped."""
        ends = word_range(self.bits, self.signed)
        return self.low > ends.low or self.high < ends.high


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


def quantized_type(scale: Value | None, zero: Value | None, dtype: DType) -> QuantizedType:
    """Returns the range and scale of a tensor's integers, from its scale, zero point and ONNX type.

    Raises :class:`NotIntegerError` if an integer network cannot represent them.
    """
    if scale is None or scale.array is None or (zero is not None and zero.array is None):
        raise NotIntegerError(
            "its scale or zero point is computed when the network runs: quantize the model "
            "statically (onnxruntime.quantization.quantize_static)"
        )
    start = np.zeros(1, dtype) if zero is None or zero.array is None else zero.array
    if scale.array.size != 1 or start.size != 1:
        raise NotIntegerError(
            f"{scale.array.size} scales of a computed tensor; an integer network has one for each "
            "(weights may have one for each channel)"
        )
    limits, at = np.iinfo(dtype), int(start.reshape(()))
    found = QuantizedType(
        round_digits(float(scale.array.reshape(()))), limits.min - at, limits.max - at
    )
    most = 65535 if not found.signed else 32767
    if -found.low > 32768 or found.high > most:
        raise NotIntegerError(
            f"zero point {at} of {np.dtype(dtype).name}: words of 16 bits have none; quantize the "
            "model symmetrically (extra_options={'ActivationSymmetric': True})"
        )
    return found
