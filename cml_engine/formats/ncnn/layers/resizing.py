"""Converts layers that resample to another size, and grid sampling."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

_KINDS = {1: "nearest", 2: "linear", 3: "cubic"}

#: The largest valid extent; a table of positions is computed per element.
_LARGEST = 2**16

#: The coefficient of the cubic kernel in ncnn and most frameworks.
_CUBIC = -0.75


@converts("Interp", params="0-6 9", inputs=(1, 2), limits="sizes given as an expression")
def _interp(layer: NcnnLayer, graph: Conversion, x: str, *reference: str) -> str:
    """Converts Interp, a resize by factors, to stated sizes, or to the size of a second input."""
    kind = _KINDS.get(layer.integer(0))
    if kind is None or layer.text(9):
        raise layer.unsupported_error(
            f"resize type {layer.integer(0)}" if not kind else "a computed size"
        )
    if bool(reference) != bool(layer.integer(5)):
        raise layer.damaged_error(f"{1 + len(reference)} inputs")
    extents = graph.extents(x)
    if len(extents) == 1:
        x = graph.reshape(x, [*extents, 1, 1])
    spatial = graph.extents(x)[1:]
    if len(spatial) > 2:
        raise layer.unsupported_error(f"an input of {len(extents)} axes")
    sizes, steps = _sizes(layer, graph, spatial, reference)
    if not 1 <= min(sizes) <= max(sizes) <= _LARGEST:
        raise layer.damaged_error(f"a size of {sizes}")
    if tuple(sizes) == spatial:
        return x
    aligned = bool(layer.integer(6)) and kind != "nearest"
    exact = all(n == step * size for n, step, size in zip(spatial, steps, sizes, strict=True))
    if aligned or exact:
        return _by_extents(graph, x, sizes, kind, aligned)
    return _by_steps(graph, x, sizes, steps, kind)


def _sizes(
    layer: NcnnLayer, graph: Conversion, spatial: tuple[int, ...], reference: tuple[str, ...]
) -> tuple[list[int], list[float]]:
    """Returns the output size of each spatial axis, and the distance of its results in the source.

    Sizes are rounded down but distances are not, so size times distance need not be the extent.
    """
    ids = ((1, 3), (2, 4))[-len(spatial) :]
    factors = [layer.number(scale, 1.0) for scale, _ in ids]
    if not 1 / _LARGEST <= min(factors) <= max(factors) <= _LARGEST:
        raise layer.damaged_error(f"factors of {factors}")
    factors = [float(np.float32(factor)) for factor in factors]
    wanted = [layer.integer(size) for _, size in ids]
    fixed = all(layer.integer(key) for key in (3, 4))
    if reference:
        wanted, fixed = list(graph.extents(reference[0])[-len(spatial) :]), True
    if fixed:
        return wanted, [n / size for n, size in zip(spatial, wanted, strict=True)]
    sizes = [int(np.float32(n) * np.float32(f)) for n, f in zip(spatial, factors, strict=True)]
    return sizes, [1 / factor for factor in factors]


def _by_extents(graph: Conversion, x: str, sizes: list[int], kind: str, aligned: bool) -> str:
    """Adds operators that resize by the ratio of new to old extents; returns the result's name.

    It uses NNEF's upsampling for whole factors, otherwise the engine's ``resize`` or
    :func:`_by_steps`.
    """
    factors = [new / old for new, old in zip(sizes, graph.extents(x)[1:], strict=True)]
    whole = [int(factor) for factor in factors]
    if whole == factors and kind == "nearest":
        return graph.op("nearest_upsample", x, factor=whole)
    coordinates = "aligned" if aligned else "symmetric"
    if whole == factors and kind == "linear":
        return graph.op("multilinear_upsample", x, factor=whole, method=coordinates)
    if kind == "nearest":
        return _by_steps(graph, x, sizes, [1 / factor for factor in factors], kind)
    return graph.op("resize", x, output_size=sizes, method=kind, coordinates=coordinates)


def _by_steps(graph: Conversion, x: str, sizes: list[int], steps: list[float], kind: str) -> str:
    """Adds operators that resize axis by axis by stored indices or weights.

    Returns the result's name.

    ``steps`` are the distances of neighbouring results in the source. The positions are computed
    here in ncnn's precision.
    """
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True), start=2):
        extent = graph.extents(x)[axis - 1]
        if kind == "nearest":
            at = np.arange(size, dtype=np.float32) * np.float32(step)
            places = np.minimum(at.astype(np.int32), extent - 1)
            x = graph.op("gather", x, graph.weight(places, "places", "integer"), axis=axis)
            continue
        rows = _weights((np.arange(size) + 0.5) * step - 0.5, extent, kind == "cubic")
        rows = rows.reshape([1] * (len(graph.extents(x)) - 1) + [size, extent])
        matrix = graph.weight(rows, "matrix")
        if axis == len(graph.extents(x)):
            x = graph.op("matmul", x, matrix, transposeB=True)
        else:
            x = graph.op("matmul", matrix, x)
    return x


def _weights(positions: Array, extent: int, cubic: bool) -> Array:
    """Returns the weights of linear or cubic interpolation as a matrix [positions, extent].

    Positions outside the axis read its edge values.
    """
    current_budget().check_bytes(4 * len(positions) * extent, "the weights of the resize")
    found = np.zeros((len(positions), extent), np.float32)
    rows, base = np.arange(len(positions)), np.floor(positions).astype(int)
    for tap in range(-1, 3) if cubic else range(2):
        distance = np.abs(positions - base - tap)
        weight = _cubic(distance) if cubic else 1 - distance
        np.add.at(found, (rows, np.clip(base + tap, 0, extent - 1)), weight)
    return found


def _cubic(t: Array) -> Array:
    near = ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1
    far = _CUBIC * (((t - 5) * t + 8) * t - 4)
    return np.where(t <= 1, near, far)


@converts("GridSample", params="0-3", inputs=(2, 2), limits="reflection, cubic beyond a border")
def _grid_sample(layer: NcnnLayer, graph: Conversion, x: str, grid: str) -> str:
    """Converts GridSample, which samples ``x`` at the positions of ``grid``.

    A grid stored as planes is transposed first. Raises an error for reflection at the border,
    and for cubic sampling with repeated edges, because ncnn's values differ from PyTorch's
    there.
    """
    methods = {1: "linear", 2: "nearest", 3: "cubic"}
    borders = {1: "constant", 2: "replicate"}
    method, border = methods.get(layer.integer(0, 1)), borders.get(layer.integer(1, 1))
    axes = len(graph.extents(x)) - 1
    if method is None or border is None or axes not in (2, 3):
        raise layer.unsupported_error(
            f"sampling {layer.integer(0, 1)}, padding {layer.integer(1, 1)}, {axes} axes"
        )
    if len(graph.extents(grid)) != 1 + axes:
        raise layer.damaged_error(f"positions of {len(graph.extents(grid))} axes")
    aligned = bool(layer.integer(2))
    if (method, border) == ("cubic", "replicate"):
        raise layer.unsupported_error(f"{method} sampling with padding {layer.integer(1, 1)}")
    if layer.integer(3):
        grid = graph.permute(grid, [*range(1, 1 + axes), 0])
    return graph.op("grid_sample", x, grid, method=method, border=border, align_corners=aligned)
