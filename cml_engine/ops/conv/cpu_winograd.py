"""``conv`` 3x3 with stride 1 in NumPy by Winograd's F(4x4, 3x3): a quarter of the products.

Sessions use it because they know the filter in advance; the definition is ``conv_cpu``. The
result is a view with channels last in memory. Neighbouring values are then channels of one
position, so tiles are copied in runs of whole positions, and the next such ``conv`` finds its
input in the right order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.common.blas import multiply, share
from cml_engine.ops.common.window import pad_border
from cml_engine.ops.conv.cpu import convolve
from cml_engine.ops.conv.shapes import ConvShape
from cml_engine.ops.declaration.scratch import Scratch

#: The transforms for the points 0, 2/3, -2/3, 3/2, -3/2 and infinity. Those of the input and of the
#: output are multiplied, point by point, by what makes them whole numbers, and the filter's divided
#: by it: so only that one is rounded.
_INPUT = (
    (36, 0, -97, 0, 36, 0),
    (0, -18, -27, 8, 12, 0),
    (0, 18, -27, -8, 12, 0),
    (0, -12, -8, 27, 18, 0),
    (0, 12, -8, -27, 18, 0),
    (0, 36, 0, -97, 0, 36),
)
_OUTPUT = (
    (1, 27, 27, 8, 8, 0),
    (0, 18, -18, 12, -12, 0),
    (0, 12, 12, 18, 18, 0),
    (0, 8, -8, 27, -27, 1),
)
_FILTER = (
    (1 / 36, 0, 0),
    (-1 / 520, -1 / 780, -1 / 1170),
    (-1 / 520, 1 / 780, -1 / 1170),
    (1 / 1170, 1 / 780, 1 / 520),
    (1 / 1170, -1 / 780, 1 / 520),
    (0, 0, 1 / 36),
)
_POINTS = 36
#: the most floats of a part's tiles at one of the 36 points: its buffers of 1 MB stay in the cache
_MOST = 1 << 13
#: the fewest floats, and the fewest tiles, of a part: less work is not worth a second thread, and
#: BLAS copies the filter for each part
_LEAST = 3 << 10
_FEWEST_TILES = 48
#: floats of two buffers of 36 points beyond which a row of tiles is too wide (48 MB)
_MOST_FOR_A_ROW = 12 << 20


def is_faster(shape: ConvShape) -> bool:
    """Returns True for a 3x3 convolution of stride 1 whose transforms cost less than they save."""
    if not shape.takes_tiles:
        return False
    rows, columns = _tiles(shape)
    inputs, outputs = shape.in_channels, shape.out_channels
    if rows * columns < 4 or 2 * _POINTS * columns * max(inputs, outputs) > _MOST_FOR_A_ROW:
        return False
    direct = 9 * inputs * outputs * prod(shape.narrow)
    # the results' transform counts double, for they are moved once more to their places
    per_tile = _POINTS * (_POINTS * inputs + inputs * outputs + 32 * outputs)
    return 1.25 * per_tile * rows * columns < direct


def _tiles(shape: ConvShape) -> tuple[int, int]:
    rows, columns = (-(-n // 4) for n in shape.narrow)
    return rows, columns


def transformed_filter(filter: Array) -> Array:
    """Transforms a filter (out, in, 3, 3) to an array [36][in][out] of float32.

    The points of the last axis come first.
    """
    taps = filter.transpose(3, 2, 1, 0).reshape(9, -1)
    points = multiply(np.kron(np.array(_FILTER), np.array(_FILTER)), taps.astype(np.float64))
    return points.astype(np.float32).reshape(_POINTS, filter.shape[1], filter.shape[0])


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the work: some images, and ``rows`` rows of tiles of each, from ``first``."""

    images: slice
    first: int
    rows: int

    @property
    def count(self) -> int:
        return int(self.images.stop - self.images.start)


class Winograd:
    """A 3x3 convolution by Winograd's algorithm whose filter is known; call it with the tensors.

    Threads compute parts of the image from the padding to the bias.
    """

    def __init__(self, shape: ConvShape, filter: Array, scratch: Scratch) -> None:
        self._shape = shape
        self._filter = scratch.prepared("winograd", filter, transformed_filter)
        self._scratch = scratch
        self._parts = list(_parts(shape))
        self._multiply = multiply if len(self._parts) == 1 else np.matmul
        self._input = np.array(_INPUT, np.float32)
        self._output = np.kron(np.array(_OUTPUT), np.array(_OUTPUT)).astype(np.float32)

    def __call__(self, attrs: Attrs, x: Array, filter: Array, bias: Array) -> Array:
        """Returns the convolution of ``x``, with the filter given at construction.

        If a result is not finite, it is computed again without tiles: within a tile, an infinity
        or a NaN spreads to results that do not depend on it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            tiled = self._by_tiles(x, bias)
        return convolve(self._shape, x, filter, bias, self._scratch) if tiled is None else tiled

    def _by_tiles(self, x: Array, bias: Array) -> Array | None:
        shape = self._shape
        rows, columns = _tiles(shape)
        out = self._scratch.result(shape.batch, 4 * rows, 4 * columns, shape.out_channels)
        inner, before = x, (shape.axes[0].before, shape.axes[1].before)
        if shape.border != "constant":
            inner, before = pad_border(x, shape.padding, shape.border), (0, 0)
        inner = inner.transpose(0, 2, 3, 1)
        infinite: list[_Part] = []

        def compute(part: _Part) -> None:
            values = self._transformed(part, self._padded(part, inner, before))
            sums = self._scratch.take("winograd.a", _POINTS, values.shape[1], shape.out_channels)
            self._multiply(values, self._filter, out=sums)
            if not self._store(part, sums, bias.reshape(-1), out):
                infinite.append(part)

        share([partial(compute, part) for part in self._parts])
        if infinite:
            return None
        return out[:, : shape.narrow[0], : shape.narrow[1]].transpose(0, 3, 1, 2)

    def _padded(self, part: _Part, inner: Array, before: tuple[int, int]) -> Array:
        """Returns the area that the part's tiles cover, with zeros outside the images.

        ``inner`` are the images with channels last, ``before`` the padding before rows and columns.
        """
        rows, columns = 4 * part.rows + 2, 4 * _tiles(self._shape)[1] + 2
        shape = (part.count, rows, columns, inner.shape[3])
        padded = self._scratch.take("winograd.padded", *shape)
        padded[:] = 0
        (to_y, from_y), (to_x, from_x) = (
            _overlap(4 * part.first - before[0], rows, inner.shape[1]),
            _overlap(-before[1], columns, inner.shape[2]),
        )
        padded[:, to_y, to_x] = inner[part.images, from_y, from_x]
        return padded

    def _transformed(self, part: _Part, padded: Array) -> Array:
        """Returns the part's transformed 6x6 input tiles as [36][tiles][in channels].

        Columns are transformed before the tiles are gathered, when neighbouring tiles still share
        them, and rows afterwards.
        """
        _, _, width, channels = padded.shape
        image, row, _, item = padded.strides
        windows = as_strided(
            padded,
            (part.count, part.rows, 6, width * channels),
            (image, 4 * row, row, item),
            writeable=False,
        )
        columns = self._scratch.take("winograd.b", *windows.shape)
        self._multiply(self._input, windows, out=columns)
        image, row, point, item = columns.strides
        tiles = as_strided(
            columns,
            (6, 6, part.count, part.rows, _tiles(self._shape)[1], channels),
            (channels * item, point, image, row, 4 * channels * item, item),
            writeable=False,
        )
        gathered = self._scratch.take("winograd.a", *tiles.shape)
        np.copyto(gathered, tiles)
        values = self._scratch.take("winograd.b", 6, gathered[0].size)
        self._multiply(self._input, gathered.reshape(6, -1), out=values)
        return values.reshape(_POINTS, -1, channels)

    def _store(self, part: _Part, sums: Array, bias: Array, out: Array) -> bool:
        """Transforms the part's sums and stores them with the bias in ``out``.

        Returns False, and stores nothing, if one of the results is not finite.
        """
        results = self._scratch.take("winograd.b", 16, sums[0].size)
        self._multiply(self._output, sums.reshape(_POINTS, -1), out=results)
        if not (np.isfinite(results.max()) and np.isfinite(results.min())):
            return False
        columns, channels = _tiles(self._shape)[1], self._shape.out_channels
        tiled = results.reshape(4, 4, part.count, part.rows, columns, channels)
        band = out[part.images, 4 * part.first : 4 * (part.first + part.rows)]
        positions = band.reshape(part.count, part.rows, 4, columns, 4, channels)
        np.add(tiled, bias, out=positions.transpose(4, 2, 0, 1, 3, 5))
        return True


def _parts(shape: ConvShape) -> Iterator[_Part]:
    """Yields parts of the work of about equal size: some images, or bands of one."""
    rows, columns = _tiles(shape)
    half = -(-shape.batch * rows * columns // 2)
    channels = max(shape.in_channels, shape.out_channels)
    limit = max(_FEWEST_TILES, _LEAST // channels, min(half, _MOST // channels))
    images = _even_step(shape.batch, limit // (rows * columns))
    band = _even_step(rows, limit // columns) if rows * columns > limit else rows
    for image in range(0, shape.batch, images):
        for first in range(0, rows, band):
            chosen = slice(image, min(image + images, shape.batch))
            yield _Part(chosen, first, min(band, rows - first))


def _even_step(length: int, limit: int) -> int:
    """Returns the step of at most ``limit`` that cuts ``length`` into the most even pieces."""
    return -(-length // -(-length // max(limit, 1)))


def _overlap(start: int, count: int, extent: int) -> tuple[slice, slice]:
    """Returns the overlap of ``[start, start + count)`` and ``[0, extent)`` as two slices.

    The first is relative to ``start``, the second to 0.
    """
    low, high = max(start, 0), max(min(start + count, extent), max(start, 0))
    return slice(low - start, high - start), slice(low, high)
