"""Imports Fourier transforms, and sampling grids."""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array


@op(
    "DFT",
    nnef="transpose, matmul",
    inputs=2,
    attrs={"axis": 1, "inverse": 0, "onesided": 0},
    until=19,
)
@op("DFT", nnef="transpose, matmul", inputs=3, attrs={"inverse": 0, "onesided": 0}, since=20)
def dft(call: OnnxCall) -> Value:
    x = call[0]
    axis = call.attributes.get("axis")
    if axis is None:
        axis = call.ints(2, "the axis")[0] if call.has(2) else -2
    axis = call.axis(axis, x.rank)
    inverse, half = bool(call.attr("inverse")), bool(call.attr("onesided"))
    length = 2 * (x.shape[axis] - 1) if inverse and half else x.shape[axis]
    if call.has(1):
        length = call.ints(1, "the length")[0]
    matrix = transform(call, x.shape[axis], x.shape[-1], length, inverse, half)
    order = [*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1]
    moved = call.transpose(x, order)
    return call.transpose(_transform(call, moved, matrix), np.argsort(order).tolist())


def transform(
    call: OnnxCall, extent: int, parts: int, length: int, inverse: bool, half: bool
) -> Array:
    """Returns the matrix of a Fourier transform, [extent * parts, results, parts of a result].

    An entry is the contribution of an input value to a result. ``parts`` is 1 for real and 2 for
    complex input. With ``half`` only the first half of the spectrum is returned, or given to the
    inverse.
    """
    if length < 1:
        raise call.unsupported_error(f"a transform of {length} values")
    call.allocate([extent, parts, length, 2])
    units: Any = np.eye(extent)
    if parts == 2:
        units = np.concatenate([units[:, None], 1j * units[:, None]], 1).reshape(-1, extent)
    if inverse and half:
        return np.fft.irfft(units, length, axis=1)[..., None].astype(np.float32)
    result = np.fft.ifft(units, length, axis=1) if inverse else np.fft.fft(units, length, axis=1)
    if half:
        result = result[:, : length // 2 + 1]
    return np.stack([result.real, result.imag], -1).astype(np.float32)


def _transform(call: OnnxCall, x: Value, matrix: Array) -> Value:
    """Adds a product that replaces the last two axes of ``x`` by their Fourier transform.

    ``matrix`` comes from :func:`transform`. Returns the result.
    """
    rows = int(np.prod(x.shape[:-2]))
    flat = call.reshape(x, [rows, x.shape[-2] * x.shape[-1]])
    y = call.op("matmul", flat, Value.known(matrix.reshape(matrix.shape[0], -1)))
    return call.reshape(y, [*x.shape[:-2], *matrix.shape[1:]])


@op("STFT", nnef="gather, mul, matmul", inputs=4, attrs={"onesided": 1})
def stft(call: OnnxCall) -> Value:
    x = call[0] if call[0].rank == 3 else call.unsqueeze(call[0], [2])
    batch, extent, parts = x.shape
    step = call.ints(1, "the frame's step")[0]
    window = call[2] if call.has(2) else None
    length = extent if window is None else window.shape[0]
    length = call.ints(3, "the frame's length")[0] if call.has(3) else length
    if step < 1 or not 0 < length <= extent:
        raise call.shape_error(f"frames of {length} every {step} of {extent} values")
    count = 1 + (extent - length) // step
    call.allocate([count, length])
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = call.op("gather", x, Value.known(places), axis=1)
    if window is not None:
        frames = call.op("mul", frames, call.reshape(window, [1, 1, length, 1]))
    half = bool(call.attr("onesided"))
    return _transform(call, frames, transform(call, length, parts, length, False, half))


@op("AffineGrid", nnef="matmul, reshape", inputs=2, attrs={"align_corners": 0})
def affine_grid(call: OnnxCall) -> Value:
    theta, size = call[0], call.ints(1, "the size")
    extents = size[2:]
    if len(extents) + 2 != len(size) or theta.shape[1:] != (len(extents), len(extents) + 1):
        raise call.shape_error(f"matrices {theta} for the size {size}")
    call.allocate([len(extents) + 1, *extents])
    axes = [_along(n, bool(call.attr("align_corners"))) for n in extents]
    grid = np.meshgrid(*axes, indexing="ij")[::-1]  # x, y, then z
    points = np.stack([*(g.reshape(-1) for g in grid), np.ones(int(np.prod(extents)))], 0)
    known = Value.known(points[None].astype(np.float32))
    moved = call.op("matmul", known, theta, transposeA=True, transposeB=True)
    return call.reshape(moved, [theta.shape[0], *extents, len(extents)])


def _along(n: int, corners: bool) -> Array:
    if corners:
        return np.linspace(-1, 1, n)
    return (2 * np.arange(n) + 1) / n - 1
