"""Imports operators whose results are known when the model is loaded, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from cml_engine.formats.onnx.counted_axes import (
    LARGEST,
    extent,
    greatest,
    number_of,
    plus,
    quotient_up,
    room,
)
from cml_engine.formats.onnx.counted_shapes import counted_by, elements
from cml_engine.formats.onnx.op_schemas import OnnxCall, attribute, element_type, op
from cml_engine.formats.onnx.tensors import OnnxTensor
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    allocate,
    as_value,
    checked_axis,
    concat,
    unsupported_error,
)
from cml_engine.formats.onnx.values import (
    constant as known_value,
)
from cml_engine.ir.graph import Array, DType
from cml_engine.ir.single_value import filled


@op("Constant", "known")
def constant(
    call: OnnxCall,
    *,
    value: OnnxTensor | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
    sparse_value: OnnxTensor | None = None,
) -> Value:
    name = next(iter(call.node.attributes), "")
    if name == "value" and value is not None:
        return Value.known(value.values())
    if name in ("value_float", "value_floats"):
        return Value.known(np.array(call.attrs[name], np.float32))
    if name in ("value_int", "value_ints"):
        return Value.known(np.array(call.attrs[name], np.int64))
    raise unsupported_error(
        f"a constant of texts ({name})" if name else "a constant without a value"
    )


@op("Shape", "known")
def shape(x: Value, *, start: int = 0, end: int | None = None) -> Value:
    axes = range(x.rank)[start:end]
    if x.counts.keys().isdisjoint(axes):
        return Value.known(np.array(x.shape[start:end], np.int64))
    extents = [as_value(extent(x, axis)).reshape([1]) for axis in axes]
    return concat(extents, 0).typed(np.int64)


@op("Size", "known")
def size(x: Value) -> Value:
    return as_value(number_of(x, range(x.rank))).reshape([]).typed(np.int64)


@op("ConstantOfShape", "known")
def constant_of_shape(shape: Value, *, value: OnnxTensor | None = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else value.values()
    extents = elements(shape, "the shape")
    most = [room(n, LARGEST) for n in extents]
    array = filled(fill.reshape(-1)[0], allocate(most, fill.itemsize))
    return counted_by(Value.known(array), extents)


@op("Range", "known")
def arange(start: Array, limit: Value, step: Array, *, stash_type: int = 1) -> Value:
    if limit.array is None:
        return _counted_range(start, limit, step)
    first, last, step_size = (array.reshape(()) for array in (start, limit.array, step))
    if step_size == 0:
        raise InvalidNode("a step of 0")
    count = max(0, int(np.ceil((last.astype(np.float64) - first) / step_size)))
    allocate([count])
    return Value.known(
        (first + np.arange(count).astype(first.dtype) * step_size).astype(first.dtype)
    )


def _counted_range(start: Array, limit: Value, step: Array) -> Value:
    """Returns integers up to a limit that is computed at run time, along a counted axis."""
    first, step_size = int(start.reshape(())), int(step.reshape(()))
    if limit.kind != "integer" or step_size < 1:
        known_value(limit, "the limit")
    (last,) = elements(limit, "the limit")
    count = quotient_up(greatest(plus(last, -first), 0), step_size)
    values = first + step_size * np.arange(room(count, LARGEST), dtype=np.int64)
    return counted_by(Value.known(values.astype(start.dtype)), [count])


@op("EyeLike", "known")
def eye_like(
    x: Value,
    *,
    dtype: DType | None = element_type(),
    k: int = attribute(0, low=-(1 << 31), high=1 << 31),
) -> Value:
    if x.rank != 2:
        raise InvalidNode(f"it wants a matrix, got {x}")
    rows, columns = allocate(x.shape)
    return Value.known(np.eye(rows, columns, k=k).astype(x.dtype if dtype is None else dtype))


def _declare_window(name: str, weights: Sequence[float]) -> None:
    """Declares an operator that gives a window, a sum of cosines with these weights."""

    @op(name, "known")
    def window(
        size: int, *, output_datatype: DType = element_type(1), periodic: bool = True
    ) -> Value:
        allocate([size])
        angle = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
        # rounded, because truncation would turn 3 - 1e-16 into 2
        wave = np.round(sum(w * np.cos(k * angle) for k, w in enumerate(weights)), 12)
        return Value.known(np.asarray(wave, np.float64).astype(output_datatype))


_declare_window("HannWindow", (0.5, -0.5))
_declare_window("HammingWindow", (25 / 46, -21 / 46))
_declare_window("BlackmanWindow", (0.42, -0.5, 0.08))


@op("MelWeightMatrix", "known")
def mel_weight_matrix(
    bins: int,
    length: int,
    sample_rate: int,
    lower_edge: float,
    upper_edge: float,
    *,
    output_datatype: DType = element_type(1),
) -> Value:
    """Imports MelWeightMatrix: a known matrix [spectrum bins, filters] of triangular filters."""
    allocate([bins + 2, length // 2 + 1])

    def mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    step = (mel(upper_edge) - mel(lower_edge)) / (bins + 2)
    edges = 700 * (10 ** ((np.arange(bins + 2) * step + mel(lower_edge)) / 2595) - 1)
    bin_edges = ((length + 1) * edges // sample_rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        lower, centre, upper = bin_edges[i : i + 3]
        if lower == centre:
            weights[centre, i] = 1
        else:
            rising = np.arange(lower, centre + 1)
            weights[rising, i] = (rising - lower) / (centre - lower)
        if upper > centre:
            falling = np.arange(centre, upper)
            weights[falling, i] = (upper - falling) / (upper - centre)
    return Value.known(weights.astype(output_datatype))


# -- Fourier transforms and grids ----------------------------------------------------------------


@op("DFT", "transpose, matmul", until=19)
def dft_17(
    x: Value,
    length: int | None = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    return dft(x, length, axis, inverse=inverse, onesided=onesided)


@op("DFT", "transpose, matmul", since=20)
def dft(
    x: Value,
    length: int | None = None,
    axis: int = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    axis = checked_axis(axis, x.rank)
    n = x.shape[axis]
    if length is None:
        length = 2 * (n - 1) if inverse and onesided else n
    matrix = _transform_matrix(n, x.shape[-1], length, inverse, onesided)
    order = [*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1]
    return _transform(x.transpose(order), matrix).transpose(np.argsort(order).tolist())


def _transform_matrix(
    extent: int, n_parts: int, length: int, inverse: bool, is_half: bool
) -> Array:
    """Returns the matrix of a Fourier transform, [extent * parts, results, parts of a result].

    An entry is the contribution of an input value to a result. ``n_parts`` is 1 for real and 2 for
    complex input. With ``is_half`` only the first half of the spectrum is returned, or given to the
    inverse.
    """
    if length < 1:
        raise unsupported_error(f"a transform of {length} values")
    allocate([extent, n_parts, length, 2])
    basis: Array = np.eye(extent)
    if n_parts == 2:
        basis = np.concatenate([basis[:, None], 1j * basis[:, None]], 1).reshape(-1, extent)
    if inverse and is_half:
        return np.fft.irfft(basis, length, axis=1)[..., None].astype(np.float32)
    result = np.fft.ifft(basis, length, axis=1) if inverse else np.fft.fft(basis, length, axis=1)
    if is_half:
        result = result[:, : length // 2 + 1]
    return np.stack([result.real, result.imag], -1).astype(np.float32)


def _transform(x: Value, matrix: Array) -> Value:
    """Adds a product that replaces the last two axes of ``x`` by their Fourier transform.

    ``matrix`` comes from :func:`_transform_matrix`. Returns the result.
    """
    flat = x.reshape([prod(x.shape[:-2]), x.shape[-2] * x.shape[-1]])
    y = flat.matmul(Value.known(matrix.reshape(matrix.shape[0], -1)))
    return y.reshape([*x.shape[:-2], *matrix.shape[1:]])


@op("STFT", "gather, mul, matmul")
def stft(
    signal: Value,
    step: int,
    window: Value | None = None,
    length: int | None = None,
    *,
    onesided: bool = True,
) -> Value:
    x = signal if signal.rank == 3 else signal.unsqueeze([2])
    _, n, n_parts = x.shape
    if length is None:
        length = n if window is None else window.shape[0]
    if step < 1 or not 0 < length <= n:
        raise InvalidNode(f"frames of {length} every {step} of {n} values")
    count = 1 + (n - length) // step
    allocate([count, length])
    indices = np.arange(count)[:, None] * step + np.arange(length)
    frames = x.gather(Value.known(indices), axis=1)
    if window is not None:
        frames = frames * window.reshape([1, 1, length, 1])
    return _transform(frames, _transform_matrix(length, n_parts, length, False, onesided))


@op("AffineGrid", "matmul, reshape")
def affine_grid(theta: Value, size: list[int], *, align_corners: bool = False) -> Value:
    extents = size[2:]
    if not extents or theta.shape != (size[0], len(extents), len(extents) + 1):
        raise InvalidNode(f"matrices {theta} for the size {size}")
    allocate([len(extents) + 1, *extents])
    axes = [
        np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / n - 1 for n in extents
    ]
    grid = np.meshgrid(*axes, indexing="ij")[::-1]  # x, y, then z
    points = np.stack([*(g.reshape(-1) for g in grid), np.ones(prod(extents))], 0)
    points_value = Value.known(points[None].astype(np.float32))
    grid_values = points_value.matmul(theta, transposeA=True, transposeB=True)
    return grid_values.reshape([theta.shape[0], *extents, len(extents)])
