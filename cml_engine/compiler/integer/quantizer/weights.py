"""Converts weights and biases to integers whose sums provably fit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.quantizer.ranges import round_digits
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.ir.graph import Array
from cml_engine.ir.integer_rule import INT_BOUND, round_half_up

_TYPES = {8: np.int8, 16: np.int16}
#: the used share of the range that fits: the scales are rounded, and the bias is added
_MARGIN = 0.45
#: the largest sum of absolute weights for two passes, by whether the words have 16 bits
_MOST_WEIGHT = {True: 60_000, False: 900_000}


def quantize_weights(
    rows: Array, bias: Array, words: Range, scale: float, bits: int
) -> tuple[Array, list[float]]:
    """Returns the integer weights, and the scale of each row, which is one output channel.

    ``words`` and ``scale`` are the range and the scale of the input's words. ``bias`` has one
    value per row. A row whose sum would not fit gets a larger scale and therefore fewer digits.
    """
    most = (1 << (bits - 1)) - 1
    flat = np.abs(rows.reshape(len(rows), -1).astype(np.float64))
    total = min(_MARGIN * INT_BOUND / max(words.magnitude, 1), _MOST_WEIGHT[words.magnitude > 255])
    steps = np.maximum.reduce(
        [
            flat.max(1, initial=0.0) / most,
            flat.sum(1) / total,
            np.abs(bias) / (scale * _MARGIN * INT_BOUND),
        ]
    )
    scales = [round_digits(step * 1.0000005) if step > 0 else 1.0 for step in steps]
    whole = np.floor(rows / np.array(scales).reshape(-1, *[1] * (rows.ndim - 1)) + 0.5)
    return whole.clip(-most, most).astype(_TYPES[bits]), scales


def quantize_bias(bias: Array, scale: float, scales: list[float]) -> tuple[Array, list[float]]:
    """Returns the bias as int32 of shape ``[1, channels]``, and its scale for each channel.

    The scale is the exact product of the input's ``scale`` and the channel's weight scale in
    ``scales``.
    """
    exact = [Fraction(repr(scale)) * Fraction(repr(step)) for step in scales]
    values = np.broadcast_to(bias.reshape(-1), (len(scales),))
    whole = [round_half_up(Fraction(float(b)) / s) for b, s in zip(values, exact, strict=True)]
    return np.array(whole, np.int32).reshape(1, -1), [float(s) for s in exact]
