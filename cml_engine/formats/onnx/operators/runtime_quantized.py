"""Imports quantized operators of ONNX Runtime's own tools.

They compute with the numbers that the integers represent. Those whose result is quantized too have
a :class:`QuantizedForm`, by which an integer network takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cml_engine.formats.onnx.op_schemas import MICROSOFT, Attr, OnnxCall, attribute, op
from cml_engine.formats.onnx.operators.convolution import (
    POOL,
    average_pool,
    global_average_pool,
)
from cml_engine.formats.onnx.operators.matrix import TURNS, gemm, matmul
from cml_engine.formats.onnx.operators.quantized import (
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
    axis : returns the axis of operands along which they have several scales.
    """

    operands: Callable[[OnnxCall], Sequence[int]]
    result: int
    compute: Compute
    axis: Callable[[OnnxCall], int] = lambda call: -1


#: by an operator's domain and name
QUANTIZED_FORMS: dict[str, QuantizedForm] = {}


def _form(name: str, form: QuantizedForm) -> str:
    QUANTIZED_FORMS[f"{MICROSOFT}:{name}"] = form
    return name


def _in_floats(call: OnnxCall, attributes: dict[str, Any]) -> Value:
    """Imports a node by its :class:`QuantizedForm` for a network of floats."""
    form = QUANTIZED_FORMS[call.node.qualified]
    operands = [dequantize(*call.quantized(i), form.axis(call)) for i in form.operands(call)]
    y = form.compute(call, *operands, **attributes)
    if not call.has(form.result):
        return y
    return quantize(y, call[form.result], call.optional(form.result + 1))


_REQUIRED: Any = attribute(required=True)

# -- of one operand ------------------------------------------------------------------------------


def _unary(name: str, nnef: str, compute: Compute, attrs: dict[str, Attr] | None = None) -> None:
    form = QuantizedForm(lambda call: (0,), 3, compute)

    @op(_form(name, form), nnef, attrs=attrs, domain=MICROSOFT)
    def convert(
        call: OnnxCall,
        x: Value,
        x_scale: Value,
        x_zero: Value | None = None,
        y_scale: Value = _REQUIRED,
        y_zero: Value | None = None,
        **attributes: Any,
    ) -> Value:
        return _in_floats(call, attributes)


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


def _binary(name: str, nnef: str, compute: Compute) -> None:
    form = QuantizedForm(lambda call: (0, 3), 6, compute)

    @op(_form(name, form), nnef, domain=MICROSOFT)
    def convert(
        call: OnnxCall,
        a: Value,
        a_scale: Value,
        a_zero: Value | None = None,
        b: Value = _REQUIRED,
        b_scale: Value = _REQUIRED,
        b_zero: Value | None = None,
        c_scale: Value = _REQUIRED,
        c_zero: Value | None = None,
    ) -> Value:
        return _in_floats(call, {})


_binary("QLinearAdd", "add, quantized", lambda call, a, b: a + b)
_binary("QLinearMul", "mul, quantized", lambda call, a, b: a * b)


_WHERE = QuantizedForm(lambda call: (1, 4), 7, lambda call, x, y: call[0].select(x, y))


@op(_form("QLinearWhere", _WHERE), "select, quantized", domain=MICROSOFT)
def qlinear_where(
    call: OnnxCall, condition: Value, x: Value, x_scale: Value, x_zero: Value, y: Value,
    y_scale: Value, y_zero: Value, z_scale: Value, z_zero: Value,
) -> Value:  # fmt: skip
    return _in_floats(call, {})


_CONCAT = QuantizedForm(
    lambda call: range(2, len(call.inputs), 3),
    0,
    lambda call, *parts, axis: concat(parts, checked_axis(axis, parts[0].rank)),
)


@op(_form("QLinearConcat", _CONCAT), "concat, quantized", domain=MICROSOFT)
def qlinear_concat(call: OnnxCall, scale: Value, zero: Value, *parts: Value, axis: int) -> Value:
    return _in_floats(call, {"axis": axis})


def _quantized_gemm(call: OnnxCall, a: Value, b: Value, *, alpha: float, **turns: int) -> Value:
    bias = None
    if call.has(6):
        scale = call[1].reshape([]) * call[4].reshape([call[4].size])
        bias = call[6].scalar() * scale
    return gemm(a, b, bias, alpha=alpha, beta=alpha, **turns)


_GEMM = QuantizedForm(
    lambda call: (0, 3), 7, _quantized_gemm, lambda call: 0 if call.attrs["transB"] else -1
)


@op(_form("QGemm", _GEMM), "linear, quantized", attrs=TURNS, domain=MICROSOFT)
def qgemm(
    call: OnnxCall, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value,
    b_zero: Value, c: Value | None = None, y_scale: Value | None = None,
    y_zero: Value | None = None, *, alpha: float = 1.0, **turns: int,
) -> Value:  # fmt: skip
    return _in_floats(call, {"alpha": alpha, **turns})


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
