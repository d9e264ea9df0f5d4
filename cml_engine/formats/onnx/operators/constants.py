"""Imports operators whose results are known when the model is loaded: constants and shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import (
    ELEMENT,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    TENSOR,
    TEXT,
    TEXTS,
    Attr,
)
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.tensors import element_dtype
from cml_engine.formats.onnx.values import Value

_KINDS = {
    "value": TENSOR,
    "value_float": FLOAT,
    "value_floats": FLOATS,
    "value_int": INT,
    "value_ints": INTS,
    "value_string": TEXT,
    "value_strings": TEXTS,
    "sparse_value": TENSOR,
}


@op("Constant", nnef="known", inputs=0, attrs=_KINDS)
def constant(call: OnnxCall) -> Value:
    name = next(iter(call.node.attributes), "")
    if name == "value":
        return Value.known(call.attr(name).values())
    if name in ("value_float", "value_floats"):
        return Value.known(np.array(call.attr(name), np.float32))
    if name in ("value_int", "value_ints"):
        return Value.known(np.array(call.attr(name), np.int64))
    raise call.unsupported_error(
        f"a constant of texts ({name})" if name else "a constant without a value"
    )


def _end(call: OnnxCall, name: str, rank: int, default: int) -> int:
    found = call.attr(name)
    return max(0, min(rank, found + rank if found < 0 else found)) if call.given(name) else default


@op("Shape", nnef="known", attrs={"start": 0, "end": 0})
def shape(call: OnnxCall) -> Value:
    rank = call[0].rank
    begin, end = _end(call, "start", rank, 0), _end(call, "end", rank, rank)
    found = call.emit.found(call[0])
    if found is not None and begin <= found[0] < end:
        extents = [Value.known(np.array([n], np.int64)) for n in call[0].shape]
        extents[found[0]] = found[1]
        return call.concat(extents[begin:end], 0).typed(np.int64)
    return Value.known(np.array(call[0].shape[begin:end], np.int64))


@op("Size", nnef="known")
def size(call: OnnxCall) -> Value:
    found = call.emit.found(call[0])
    if found is not None:
        others = int(np.prod([n for a, n in enumerate(call[0].shape) if a != found[0]]))
        return call.reshape(call.op("int_mul", found[1], others), []).typed(np.int64)
    return Value.known(np.array(np.prod(call[0].shape, dtype=np.int64)))


@op("ConstantOfShape", nnef="known", attrs={"value": TENSOR})
def constant_of_shape(call: OnnxCall) -> Value:
    given = call.attr("value")
    value = np.zeros(1, np.float32) if given is None else given.values()
    shape = call.allocate(call.ints(0, "the shape"), value.itemsize)
    return Value.known(np.full(shape, value.reshape(-1)[0], value.dtype))


@op("Range", nnef="known", inputs=3, attrs={"stash_type": 1})
def arange(call: OnnxCall) -> Value:
    start, limit, step = (call.array(i).reshape(()) for i in range(3))
    if step == 0:
        raise call.shape_error("a step of 0")
    count = max(0, int(np.ceil((limit.astype(np.float64) - start) / step)))
    call.allocate([count])
    return Value.known((start + np.arange(count).astype(start.dtype) * step).astype(start.dtype))


@op(
    "EyeLike",
    nnef="known",
    attrs={"dtype": ELEMENT, "k": Attr(int, 0, low=-(1 << 31), high=1 << 31)},
)
def eye_like(call: OnnxCall) -> Value:
    if call[0].rank != 2:
        raise call.shape_error(f"it wants a matrix, got {call[0]}")
    element = call.attr("dtype")
    dtype = call[0].dtype if element is None else element_dtype(element)
    rows, columns = call.allocate(call[0].shape)
    return Value.known(np.eye(rows, columns, k=call.attr("k")).astype(dtype or np.float32))


def _window(call: OnnxCall, weights: tuple[float, ...]) -> Value:
    count = call.ints(0, "the size")[0]
    call.allocate([count])
    steps = count if call.attr("periodic") else count - 1
    angle = 2 * np.pi * np.arange(count) / max(steps, 1)
    # rounded, because truncation would turn 3 - 1e-16 into 2
    wave = np.round(sum(w * np.cos(k * angle) for k, w in enumerate(weights)), 12)
    dtype = element_dtype(call.attr("output_datatype"))
    return Value.known(np.asarray(wave, np.float64).astype(dtype or np.float32))


def _window_of(*weights: float) -> Callable[[OnnxCall], Value]:
    return lambda call: _window(call, weights)


for _name, _weights in (
    ("HannWindow", (0.5, -0.5)),
    ("HammingWindow", (25 / 46, -21 / 46)),
    ("BlackmanWindow", (0.42, -0.5, 0.08)),
):
    op(_name, nnef="known", attrs={"output_datatype": replace(ELEMENT, default=1), "periodic": 1})(
        _window_of(*_weights)
    )


@op(
    "MelWeightMatrix",
    nnef="known",
    inputs=5,
    attrs={"output_datatype": replace(ELEMENT, default=1)},
)
def mel_weight_matrix(call: OnnxCall) -> Value:
    """Imports MelWeightMatrix: a known matrix [spectrum bins, filters] of mel filters.

    The filters are triangular.
    """
    bins, length, rate = (call.ints(i)[0] for i in range(3))
    low, high = call.number(3), call.number(4)
    call.allocate([bins + 2, length // 2 + 1])

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    step = (mel(high) - mel(low)) / (bins + 2)
    edges = 700 * (10 ** ((np.arange(bins + 2) * step + mel(low)) / 2595) - 1)
    place = ((length + 1) * edges // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        below, centre, above = place[i : i + 3]
        if below == centre:
            weights[centre, i] = 1
        else:
            rising = np.arange(below, centre + 1)
            weights[rising, i] = (rising - below) / (centre - below)
        if above > centre:
            falling = np.arange(centre, above)
            weights[falling, i] = (above - falling) / (above - centre)
    dtype = element_dtype(call.attr("output_datatype"))
    return Value.known(weights.astype(dtype or np.float32))


@op("OptionalHasElement", nnef="known")
def optional_has_element(call: OnnxCall) -> Value:
    """Returns a constant: True if the node has an input. A tensor counts as a filled optional."""
    return Value.known(np.array(call.has(0)))


@op("OptionalGetElement", nnef="nothing")
def optional_get_element(call: OnnxCall) -> Value:
    return call[0]
