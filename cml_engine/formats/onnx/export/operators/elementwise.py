"""Exports elementwise operators, of floats and of integers, which wrap around at 32 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.onnx import same_operators as same
from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.export.game_operators import write_standard_body

_OF_INTEGERS = same.onnx_names(same.ARITHMETIC, same.COMPARISONS, same.SIGNED, same.LIMITS)
_SAME = {
    **same.onnx_names(
        same.ARITHMETIC, same.COMPARISONS, same.SIGNED, same.LOGIC, same.FLOATS, same.PLAIN
    ),
    **{f"int_{name}": onnx for name, onnx in _OF_INTEGERS.items() if name != "div"},
}
_BITS = {**same.onnx_names(same.BITS), "bit_not": "BitwiseNot"}

for _table, _since in ((_SAME, ONNX_OPSET.low), (_BITS, 18)):
    for _name, _onnx in _table.items():

        @rule(_name, onnx=f"`{_onnx}`", since=_since)
        def _same_operator(c: ExportCall, op: str = _onnx) -> ExportTensor:
            return c.add(op, *c.aligned())


@rule("ne", "int_ne", onnx="`Not` of `Equal`")
def _unequal(c: ExportCall) -> ExportTensor:
    return c.add("Equal", *c.aligned()).Not()


@rule("select", onnx="`Where`; of truth values `And`, `Or`, `Not`")
def _select(c: ExportCall) -> ExportTensor:
    condition, if_true, if_false = c.aligned()
    if c.out.dtype != "logical":
        return condition.Where(if_true, if_false)
    return condition & if_true | condition.Not() & if_false


@rule("clamp", onnx="`Clip`; where the bounds are computed or cross, `Where` of comparisons")
def _clamp(c: ExportCall) -> ExportTensor:
    low, high = c.value(1), c.value(2)
    if low is not None and high is not None and low.ndim == high.ndim == 0 and low <= high:
        return c.add("Clip", *c.tensors)
    x, a, b = c.aligned()
    x = (x > b).Where(b, x)
    return (x < a).Where(a, x)


def round_half_up(x: ExportTensor) -> ExportTensor:
    low = x.Floor()
    up = x - low >= 0.5
    return up.Where(low + 1.0, low)


@rule("round", onnx="`Floor`, one more from halves on", function=True)
def _round(c: ExportCall) -> ExportTensor:
    return round_half_up(c.x)


@rule("min", "max", onnx="`Where` of a comparison; in QDQ models `Min`, `Max`")
def _limit(c: ExportCall) -> ExportTensor | Sequence[ExportTensor]:
    # the results for NaN and -0 differ, which integers lack
    return c.add(c.node.op.capitalize(), *c.aligned()) if c.is_integer else write_standard_body(c)


@rule("sqr", onnx="`Mul`; in QDQ models `Pow`")
def _square(c: ExportCall) -> ExportTensor:
    return c.x.Pow(2.0) if c.is_integer else c.x * c.x


@rule("rsqr", onnx="`Reciprocal` of `Mul`")
def _per_square(c: ExportCall) -> ExportTensor:
    return (c.x * c.x).Reciprocal()


@rule("rsqrt", onnx="`Reciprocal` of `Sqrt`")
def _per_root(c: ExportCall) -> ExportTensor:
    return c.x.Sqrt().Reciprocal()


for _onnx, (_name, _attributes) in same.ACTIVATIONS.items():

    @rule(_name, onnx=f"`{_onnx}`")
    def _activation(
        c: ExportCall,
        op: str = _onnx,
        attributes: Mapping[str, tuple[str, float]] = _attributes,
    ) -> ExportTensor:
        values = {name: float(c.attrs[own]) for name, (own, _) in attributes.items()}
        return c.add(op, c.x, **values)


@rule("prelu", onnx="`PRelu`; where the slopes are of a larger shape `Where`, `Less`, `Mul`")
def _prelu(c: ExportCall) -> ExportTensor | Sequence[ExportTensor]:
    return c.add("PRelu", *c.aligned()) if c.fact(0) == c.out else write_standard_body(c)


@rule("gelu_erf", onnx="`Gelu`; before opset 20 `Erf` and others")
def _gelu_erf(c: ExportCall) -> ExportTensor | Sequence[ExportTensor]:
    return c.x.Gelu(approximate="none") if c.opset >= 20 else write_standard_body(c)


@rule("fmod", onnx="`Mod`")
def _fmod(c: ExportCall) -> ExportTensor:
    return c.add("Mod", *c.aligned(), fmod=1)


@rule("batch_normalization", onnx="`BatchNormalization`; where the operands are not one value per "
      "channel, its formula")  # fmt: skip
def _batch_normalization(c: ExportCall) -> ExportTensor | Sequence[ExportTensor]:
    x, mean, variance, offset, scale = (c.fact(i) for i in range(5))
    channels = x.shape[1] if x.rank > 1 else 0
    per_channel = all(f.shape in ((1, channels), ()) for f in (mean, variance, offset, scale))
    are_vectors = all(c.fact(i).rank or c.value(i) is not None for i in range(1, 5))
    if channels and x == c.out and per_channel and are_vectors:
        operands = [c.per_channel(i, channels) for i in (4, 3, 1, 2)]
        return c.x.BatchNormalization(*operands, epsilon=float(c.attrs.epsilon))
    return write_standard_body(c)


@rule("to_bits", "from_bits", onnx="`BitCast`", since=26)
def _bits(c: ExportCall) -> ExportTensor:
    return c.x.BitCast(to=6 if c.node.op == "to_bits" else 1)


# -- integers: processors trap on a division by 0 and on the smallest integer divided by -1 ------


def _is_plain(c: ExportCall) -> bool:
    divisor = c.value(1)
    return divisor is not None and not np.isin(divisor, (0, -1)).any()


@rule("int_div", onnx="`Div`, guarded: by 0 it is 0", function=True)
def _divide(c: ExportCall) -> ExportTensor:
    x, y = c.aligned()
    if _is_plain(c):
        return x / y
    is_zero, is_minus_one = y.Equal(0), y.Equal(-1)
    divisor = (is_zero | is_minus_one).Where(1, y)
    quotient = is_minus_one.Where(x.Neg(), x / divisor)
    return is_zero.Where(0, quotient)


@rule("int_rem", "int_mod", onnx="`Mod`, guarded: by 0 it is 0", function=True)
def _remainder(c: ExportCall) -> ExportTensor:
    x, y = c.aligned()
    if not _is_plain(c):
        y = (y.Equal(0) | y.Equal(-1)).Where(1, y)
    return x.Mod(y, fmod=int(c.node.op == "int_rem"))


@rule("uint_div", "uint_mod", onnx="`Div`, `Mod` of uint32, guarded: by 0 it is 0", function=True)
def _unsigned_quotient(c: ExportCall) -> ExportTensor:
    x, y = c.aligned()
    is_zero = y.Equal(0)
    number, divisor = x.cast("uint32"), is_zero.Where(1, y).cast("uint32")
    result = number / divisor if c.node.op == "uint_div" else number.Mod(divisor, fmod=0)
    return is_zero.Where(0, result.cast("integer"))


@rule("random_bits", onnx="its rounds, of uint32", function=True, since=18)
def _random_bits(c: ExportCall) -> ExportTensor:
    row, column, draw, seed, stream = (tensor.cast("uint32") for tensor in c.aligned())
    index, zero = row + column, _unsigned(c, 0)
    words = [index.BitShift(_unsigned(c, 2), direction="RIGHT"), draw, zero, zero]
    for i in range(10):
        keys = [
            key + _unsigned(c, i * step % 2**32)
            for key, step in ((seed, 0x9E3779B9), (stream, 0xBB67AE85))
        ]
        (high_a, low_a), (high_b, low_b) = (
            _write_product(c, words[position], factor)
            for position, factor in ((0, 0xD2511F53), (2, 0xCD9E8D57))
        )
        words = [
            high_b.BitwiseXor(words[1]).BitwiseXor(keys[0]), low_b,
            high_a.BitwiseXor(words[3]).BitwiseXor(keys[1]), low_a,
        ]  # fmt: skip
    place = index.BitwiseAnd(_unsigned(c, 3)).cast("integer")
    integers = [word.cast("integer") for word in words]
    result = integers[3]
    for i in range(3):
        result = place.Equal(i).Where(integers[i], result)
    return result


def _unsigned(c: ExportCall, value: int) -> ExportTensor:
    return c.constant(np.array(value, np.uint32))


def _write_product(
    c: ExportCall, x: ExportTensor, factor: int
) -> tuple[ExportTensor, ExportTensor]:
    """Writes a product of unsigned integers, as its upper and its lower 32 bits."""

    def upper_half(value: ExportTensor) -> ExportTensor:
        return value.BitShift(_unsigned(c, 16), direction="RIGHT")

    mask, upper, lower = (_unsigned(c, n) for n in (0xFFFF, factor >> 16, factor & 0xFFFF))
    low, high = x.BitwiseAnd(mask), upper_half(x)
    middle = high * lower + upper_half(low * lower)
    rest = low * upper + middle.BitwiseAnd(mask)
    result = high * upper + upper_half(middle) + upper_half(rest)
    return result, x * _unsigned(c, factor)


@rule("shift_left", "shift_right", onnx="`BitShift`, guarded: by more than 31 it is 0",
      function=True)  # fmt: skip
def _shift(c: ExportCall) -> ExportTensor:
    x, y = c.aligned()
    is_in_range = (y >= 0) & (y < 32)
    steps = is_in_range.Where(y, 0).cast("uint32")
    direction = "LEFT" if c.node.op == "shift_left" else "RIGHT"
    shifted = x.cast("uint32").BitShift(steps, direction=direction)
    return is_in_range.Where(shifted.cast("integer"), 0)
