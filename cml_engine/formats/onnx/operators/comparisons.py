"""Imports comparisons, logic, selection and type casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import one_of
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.arithmetic import wrap
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, element_dtype
from cml_engine.formats.onnx.values import Value, kind_of
from cml_engine.ir.graph import Array


def compare(call: OnnxCall, name: str, x: Value, y: Value) -> Value:
    """Adds the comparison ``lt``, ``le``, ``gt``, ``ge`` or ``eq`` and returns its result.

    Two integers are compared as integers, other values as floats.
    """
    if x.kind == y.kind == "integer":
        return call.zip(f"int_{name}", x, y)
    return call.zip(name, call.scalar(x), call.scalar(y))


def _comparison(name: str) -> Callable[[OnnxCall], Value]:
    return lambda call: compare(call, name, call[0], call[1])


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *arrays: function(*arrays)


for _name, _nnef, _function in (
    ("Less", "lt", np.less),
    ("LessOrEqual", "le", np.less_equal),
    ("Greater", "gt", np.greater),
    ("GreaterOrEqual", "ge", np.greater_equal),
    ("Equal", "eq", np.equal),
):
    op(_name, nnef=f"{_nnef}, int_{_nnef}", inputs=2, fold=_fold(_function))(_comparison(_nnef))

op("And", nnef="and", inputs=2, fold=_fold(np.logical_and))(
    lambda call: call.zip("and", call[0], call[1])
)
op("Or", nnef="or", inputs=2, fold=_fold(np.logical_or))(
    lambda call: call.zip("or", call[0], call[1])
)
op("Not", nnef="not", fold=_fold(np.logical_not))(lambda call: call.op("not", call[0]))


@op("Xor", nnef="and, or, not", inputs=2, fold=_fold(np.logical_xor))
def xor(call: OnnxCall) -> Value:
    x, y = call[0], call[1]
    both = call.zip("and", x, y)
    return call.op("and", call.zip("or", x, y), call.op("not", both))


@op("Where", nnef="select", inputs=3, fold=_fold(np.where))
def where(call: OnnxCall) -> Value:
    return call.zip("select", call[0], call[1], call[2]).typed(call[1].dtype)


@op("IsNaN", nnef="is_nan")
def is_nan(call: OnnxCall) -> Value:
    return call.op("is_nan", call[0])


@op("IsInf", nnef="is_inf, gt, lt, and", attrs={"detect_negative": 1, "detect_positive": 1})
def is_inf(call: OnnxCall) -> Value:
    x, infinite = call[0], call.op("is_inf", call[0])
    positive, negative = call.attr("detect_positive"), call.attr("detect_negative")
    if positive and negative:
        return infinite
    if not positive and not negative:
        return call.op("and", infinite, False)
    return call.op("and", infinite, call.op("gt" if positive else "lt", x, 0.0))


# -- types ---------------------------------------------------------------------------------------


def to_dtype(call: OnnxCall, value: Value, element: int) -> Value:
    """Returns a value cast to ``element``, the number of an ONNX type."""
    dtype = element_dtype(element)
    if dtype is None or ELEMENT_TYPES[element] in ("uint4", "int4"):
        raise call.unsupported_error(f"a cast to {ELEMENT_TYPES.get(element, element)}")
    if value.array is not None:
        return Value.known(_cast_array(value.array, dtype))
    if value.kind != kind_of(dtype):
        if dtype == np.uint32 and value.kind == "scalar":
            value = _signed(call, value)
        value = call.cast(value, kind_of(dtype))
    elif value.kind == "scalar" and dtype.itemsize < value.dtype.itemsize == 4:
        value = call.op("copy", value)  # float16 and bfloat16 are computed as float32
    if dtype.kind in "iu" and dtype.itemsize < 4 and dtype != value.dtype:
        return wrap(value, dtype, call)
    return value.typed(dtype)


def _signed(call: OnnxCall, value: Value) -> Value:
    """Adds operators that clamp floats to uint32's range and subtract 2^32 from 2^31 and more.

    A cast of the result to int32 then has the bits of the uint32.
    """
    value = call.op("clamp", value, *_ends(np.dtype(np.uint32)))
    lowered = call.op("sub", value, 2.0**32)
    return call.op("select", call.op("ge", value, 2.0**31), lowered, value)


def _cast_array(array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns a known array cast as the network does at run time, but exact for 64-bit types."""
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and dtype.kind in "iu":
            whole = np.nan_to_num(array.astype(np.float64)).clip(*_ends(dtype))
            return whole.astype(np.int64).astype(dtype)
        return array.astype(dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Returns the lowest and highest float to clamp to before a cast to an integer type."""
    if dtype.itemsize == 8:
        return -(2.0**63), 2.0**63 - 1024  # the largest float64 that int64 holds
    return -(2.0**31), 2.0**32 - 256 if dtype == np.uint32 else 2.0**31 - 1


_CAST = {"saturate": 1, "round_mode": one_of("up", "down", "nearest")}


@op("Cast", nnef="cast", attrs={"to": int}, until=18)
@op("Cast", nnef="cast", attrs={"to": int, **_CAST}, since=19)
def cast(call: OnnxCall) -> Value:
    return to_dtype(call, call[0], call.attr("to"))


@op("BitCast", nnef="to_bits, from_bits", attrs={"to": int}, since=26)
def bit_cast(call: OnnxCall) -> Value:
    """Imports BitCast, which reinterprets the bits as another type of the same size."""
    x, element = call[0], call.attr("to")
    dtype = element_dtype(element)
    if dtype is None or dtype.itemsize != x.dtype.itemsize:
        raise call.shape_error(f"{x.dtype} read as {ELEMENT_TYPES.get(element, element)}")
    if x.array is not None:
        return Value.known(np.ascontiguousarray(x.array).view(dtype).reshape(x.shape))
    # floats of other sizes are computed in 32 bits, and integers have at most 32 bits
    if "uint32" in (x.dtype.name, dtype.name) or (
        x.dtype.itemsize != 4 and "scalar" in (x.kind, kind_of(dtype))
    ):
        raise call.unsupported_error(f"{x.dtype} read as {dtype}")
    if x.kind != "logical" and x.kind != kind_of(dtype):
        return call.op("to_bits" if x.kind == "scalar" else "from_bits", x).typed(dtype)
    return to_dtype(call, x, element)


@op("CastLike", nnef="cast", inputs=2, attrs=_CAST)
def cast_like(call: OnnxCall) -> Value:
    wanted = call[1].dtype.name
    element = next(number for number, name in ELEMENT_TYPES.items() if name == wanted)
    return to_dtype(call, call[0], element)
