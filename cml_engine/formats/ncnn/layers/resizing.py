"""Converts layers that resample to another size, and grid sampling."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.line_weights import taps_of
from cml_engine.formats.ncnn.conversion import ANY, NcnnLayer, NcnnTensor, converts
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

_KINDS = {1: "nearest", 2: "linear", 3: "cubic"}

#: The largest valid extent; a table of positions is computed per element.
_LARGEST = 2**16

#: The coefficient of the cubic kernel in ncnn and most frameworks.
_CUBIC = -0.75


@converts("Interp", params="0-6 9", inputs=(1, ANY))
def _interp(layer: NcnnLayer, x: NcnnTensor, *reference: NcnnTensor) -> NcnnTensor:
    """Converts Interp, a resize by factors, to stated sizes, or to the size of a second input."""
    method = _KINDS.get(layer.integer(0))
    if method is None:
        raise layer.unsupported_error(f"resize type {layer.integer(0)}")
    if not layer.text(9) and len(reference) != (1 if layer.integer(5) else 0):
        raise layer.damaged_error(f"{1 + len(reference)} inputs")
    extents = x.extents
    computed = layer.sizes(9, x, *reference)[::-1] if layer.text(9) else []
    if len(extents) == 1:
        x = x.reshape([*extents, 1, 1])
    spatial = x.extents[1:]
    if len(spatial) > 2:
        raise layer.unsupported_error(f"an input of {len(extents)} axes")
    sizes, steps = _sizes(layer, spatial, computed, reference)
    if not 1 <= min(sizes) <= max(sizes) <= _LARGEST:
        raise layer.damaged_error(f"a size of {sizes}")
    if tuple(sizes) == spatial:
        return x
    is_aligned = bool(layer.integer(6)) and method != "nearest"
    is_exact = all(n == step * size for n, step, size in zip(spatial, steps, sizes, strict=True))
    if not (is_aligned or is_exact):
        return _by_steps(layer, x, sizes, steps, method)
    factors = [new / old for new, old in zip(sizes, spatial, strict=True)]
    integer_factors = [int(factor) for factor in factors]
    if method == "nearest":
        if integer_factors == factors:
            return x.nearest_upsample(factor=integer_factors)
        return _by_steps(layer, x, sizes, [1 / factor for factor in factors], method)
    coordinates = "aligned" if is_aligned else "symmetric"
    if integer_factors == factors and method == "linear":
        return x.multilinear_upsample(factor=integer_factors, method=coordinates)
    return x.resize(output_size=sizes, method=method, coordinates=coordinates)


def _sizes(
    layer: NcnnLayer,
    spatial: tuple[int, ...],
    computed: list[int],
    reference: tuple[NcnnTensor, ...],
) -> tuple[list[int], list[float]]:
    """Returns the output size of each spatial axis, and the distance of its results in the source.

    ``computed`` are the sizes of a formula. Sizes are rounded down but distances are not, so size
    times distance need not be the extent.
    """
    ids = ((1, 3), (2, 4))[-len(spatial) :]
    factors = [layer.number(scale, 1.0) for scale, _ in ids]
    if not 1 / _LARGEST <= min(factors) <= max(factors) <= _LARGEST:
        raise layer.damaged_error(f"factors of {factors}")
    factors = [float(np.float32(factor)) for factor in factors]
    sizes_stated = [layer.integer(size) for _, size in ids]
    if computed:
        if len(computed) > len(spatial):
            raise layer.damaged_error(f"a size of {computed} for {len(spatial)} axes")
        sizes_stated = [*spatial[: len(spatial) - len(computed)], *computed]
    elif reference:
        sizes_stated = [1, 1, *reference[0].extents][-len(spatial) :]
    if computed or reference or all(layer.integer(key) for key in (3, 4)):
        # sizes below 1 are refused afterwards
        steps = [n / max(size, 1) for n, size in zip(spatial, sizes_stated, strict=True)]
        return sizes_stated, steps
    sizes = [int(np.float32(n) * np.float32(f)) for n, f in zip(spatial, factors, strict=True)]
    return sizes, [1 / factor for factor in factors]


def _by_steps(
    layer: NcnnLayer, x: NcnnTensor, sizes: list[int], steps: list[float], method: str
) -> NcnnTensor:
    """Resizes axis by axis by stored indices or weights.

    ``steps`` are the distances of neighbouring results in the source. The positions are computed
    here in ncnn's precision.
    """
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True), start=2):
        extent = x.extents[axis - 1]
        if method == "nearest":
            positions = np.arange(size, dtype=np.float32) * np.float32(step)
            indices = np.minimum(positions.astype(np.int32), extent - 1)
            x = x.take(indices, axis)
            continue
        rows = _weights((np.arange(size) + 0.5) * step - 0.5, extent, method == "cubic")
        places, weights = taps_of(rows)
        weights = weights.reshape([1] * axis + [*weights.shape] + [1] * (len(x.extents) - axis))
        read = x.gather(layer.constant(places.ravel(), "places", "integer"), axis=axis)
        terms = read.unflatten(axis, places.shape) * layer.constant(weights, "weights")
        x = terms.sum_reduce(axes=[axis + 1]).merge(axis, 2)
    return x


def _weights(positions: Array, extent: int, cubic: bool) -> Array:
    """Returns the weights of linear or cubic interpolation as a matrix [positions, extent].

    Positions outside the axis read its edge values.
    """
    current_budget().check_bytes(4 * len(positions) * extent, "the weights of the resize")
    matrix = np.zeros((len(positions), extent), np.float32)
    rows, base = np.arange(len(positions)), np.floor(positions).astype(int)
    for tap in range(-1, 3) if cubic else range(2):
        distance = np.abs(positions - base - tap)
        weight = _cubic(distance) if cubic else 1 - distance
        np.add.at(matrix, (rows, np.clip(base + tap, 0, extent - 1)), weight)
    return matrix


def _cubic(t: Array) -> Array:
    inner = ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1
    outer = _CUBIC * (((t - 5) * t + 8) * t - 4)
    return np.where(t <= 1, inner, outer)


@converts(
    "GridSample", params="0-3", inputs=(2, 2),
    differences="reflection: at both borders in turn, as in PyTorch (ncnn: once at each); "
    "nearest: halves to the even position, as in PyTorch (ncnn: up)",
)  # fmt: skip
def _grid_sample(layer: NcnnLayer, x: NcnnTensor, grid: NcnnTensor) -> NcnnTensor:
    """Converts GridSample, which samples ``x`` at the positions of ``grid``.

    A grid stored as planes is transposed first.
    """
    sampling, padding = layer.integer(0, 1), layer.integer(1, 1)
    method = {1: "linear", 2: "nearest", 3: "cubic"}.get(sampling)
    border = {1: "constant", 2: "replicate", 3: "reflect"}.get(padding)
    axes = len(x.extents) - 1
    if method is None or border is None or axes not in (2, 3):
        raise layer.unsupported_error(f"sampling {sampling}, padding {padding}, {axes} axes")
    if len(grid.extents) != 1 + axes:
        raise layer.damaged_error(f"positions of {len(grid.extents)} axes")
    is_aligned = bool(layer.integer(2))
    if layer.integer(3):
        grid = grid.permute([*range(1, 1 + axes), 0])
    return x.grid_sample(grid, method=method, border=border, align_corners=is_aligned)
