"""Imports quantized operators by forms, most of them of ONNX Runtime's own tools.

They compute with the numbers that the integers represent. Those whose result is quantized too have
a :class:`QuantizedForm`, by which an integer network takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cml_engine.formats.onnx.op_schemas import MANY, MICROSOFT, Attr, OnnxCall, op
from cml_engine.formats.onnx.operators.convolution import (
    POOL,
    average_pool,
    global_average_pool,
)
from cml_engine.formats.onnx.operators.matrix import TURNS, gemm, matmul
from cml_engine.formats.onnx.operators.quantized import (
    check_zero_points,
    dequantize,
    dynamic_quantize_linear,
    quantize,
)
from cml_engine.formats.onnx.values import Value, checked_axis, concat

Compute = Callable[..., Value]


@dataclass(frozen=True)
class QuantizedForm:
    """An operator of integers that have a scale and a zero point each, computed with numbers.

    Parameters
    ----------
    operands : returns the positions of the operands; each is followed by its scale and zero point.
    result : the position of the result's scale, which is followed by its zero point.
    compute : adds the operators for the node, its operands as numbers and its attributes.
    axis : returns the axis along which the operand at a position has several scales.
    can_be_float : whether the result is a tensor of floats if its scale is left out.
    """

    operands: Callable[[OnnxCall], Sequence[int]]
    result: int
    compute: Compute
    axis: Callable[[OnnxCall, int], int] = lambda call, position: -1
    can_be_float: bool = False


#: by an operator's domain and name
QUANTIZED_FORMS: dict[str, QuantizedForm] = {}


def _declare(
    name: str,
    nnef: str,
    form: QuantizedForm,
    inputs: int,
    attrs: Mapping[str, Attr] | None = None,
    domain: str = MICROSOFT,
) -> None:
    """Declares an operator with at most ``inputs`` inputs by its form."""
    QUANTIZED_FORMS[f"{domain}:{name}" if domain else name] = form

    @op(name, nnef, domain=domain, attrs=attrs, inputs=inputs)
    def in_floats(call: OnnxCall, **attributes: Any) -> Value:
        check_zero_points(call)
        operands = [dequantize(*call.quantized(i), form.axis(call, i)) for i in form.operands(call)]
        y = form.compute(call, *operands, **attributes)
        if form.can_be_float and not call.has(form.result):
            return y
        return quantize(y, call[form.result], call.optional(form.result + 1))


# -- of one operand ------------------------------------------------------------------------------


def _unary(name: str, nnef: str, compute: Compute, attrs: Mapping[str, Attr] | None = None) -> None:
    _declare(name, nnef, QuantizedForm(lambda call: (0,), 3, compute), 5, attrs)


def _softmax(call: OnnxCall, x: Value, *, axis: int, opset: int) -> Value:
    axis = checked_axis(axis, x.rank)
    return x.softmax(axes=[axis] if opset >= 13 else list(range(axis, x.rank)))


def _channels_first(pool: Compute) -> Compute:
    """Returns a pool that takes the attribute ``channels_last``."""

    def compute(call: OnnxCall, x: Value, *, channels_last: bool, **attributes: Any) -> Value:
        if not channels_last:
            return pool(x, **attributes)
        y = pool(x.transpose([0, x.rank - 1, *range(1, x.rank - 1)]), **attributes)
        return y.transpose([0, *range(2, y.rank), 1])

    return compute


_CHANNELS_LAST = {"channels_last": Attr(bool, False)}
_unary("QLinearSigmoid", "sigmoid, quantized", lambda call, x: x.sigmoid())
_unary("QLinearLeakyRelu", "leaky_relu, quantized",
       lambda call, x, alpha: x.leaky_relu(alpha=alpha), {"alpha": Attr(float, 0.01)})  # fmt: skip
_unary("QLinearSoftmax", "softmax, quantized", _softmax,
       {"axis": Attr(int, -1), "opset": Attr(int, required=True)})  # fmt: skip
_unary("QLinearAveragePool", "avg_pool, pad, quantized", _channels_first(average_pool),
       {**POOL, **_CHANNELS_LAST, "count_include_pad": Attr(bool, False)})  # fmt: skip
_unary("QLinearGlobalAveragePool", "mean_reduce, quantized", _channels_first(global_average_pool),
       _CHANNELS_LAST)  # fmt: skip


# -- of several operands -------------------------------------------------------------------------


def _quantized_gemm(call: OnnxCall, a: Value, b: Value, *, alpha: float, **turns: int) -> Value:
    bias = None
    if call.has(6):
        scale = call[1].reshape([]) * call[4].reshape([call[4].size])
        bias = call[6].scalar() * scale
    return gemm(a, b, bias, alpha=alpha, beta=alpha, **turns)


_declare("QLinearMatMul", "cast, sub, mul, matmul, round_even, clamp",
         QuantizedForm(lambda call: (0, 3), 6, lambda call, a, b: matmul(a, b),
                       lambda call, position: -1 if position else -2), 8, domain="")  # fmt: skip
_declare("QLinearAdd", "add, quantized",
         QuantizedForm(lambda call: (0, 3), 6, lambda call, a, b: a + b), 8)  # fmt: skip
_declare("QLinearMul", "mul, quantized",
         QuantizedForm(lambda call: (0, 3), 6, lambda call, a, b: a * b), 8)  # fmt: skip
_declare("QLinearWhere", "select, quantized",
         QuantizedForm(lambda call: (1, 4), 7, lambda call, x, y: call[0].select(x, y)),
         9)  # fmt: skip
_declare("QLinearConcat", "concat, quantized",
         QuantizedForm(lambda call: range(2, len(call.inputs), 3), 0,
                       lambda call, *parts, axis: concat(parts, checked_axis(axis, parts[0].rank))),
         MANY, {"axis": Attr(int, required=True)})  # fmt: skip
_declare("QGemm", "linear, quantized",
         QuantizedForm(lambda call: (0, 3), 7, _quantized_gemm,
                       lambda call, position: 0 if call.attrs["transB"] else -1,
                       can_be_float=True),
         9, {**TURNS, "alpha": Attr(float, 1.0)})  # fmt: skip


# -- with a result of floats ---------------------------------------------------------------------


@op("MatMulIntegerToFloat", "cast, sub, mul, matmul, add", domain=MICROSOFT)
def matmul_integer_to_float(
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None = None,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    y = matmul(dequantize(a, a_scale, a_zero, -1), dequantize(b, b_scale, b_zero, -1))
    return y if bias is None else y + bias


def dynamically_quantized(x: Value) -> Value:
    """Adds operators that round numbers to 256 steps between their smallest and largest one."""
    integers, scale, zero = dynamic_quantize_linear(x)
    return dequantize(integers, scale, zero)


@op("DynamicQuantizeMatMul", "DynamicQuantizeLinear, matmul, add", domain=MICROSOFT)
def dynamic_quantize_matmul(
    a: Value, b: Value, b_scale: Value, b_zero: Value | None = None, bias: Value | None = None
) -> Value:
    y = matmul(dynamically_quantized(a), dequantize(b, b_scale, b_zero, -1))
    return y if bias is None else y + bias
