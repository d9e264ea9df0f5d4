"""``conv`` whose windows overlap along a line: a thread loads an input once for all taps of a line.

Shader: ``shaders_hlsl/conv/conv_row_tile.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.conv_line import (
    MOST_BUILT,
    MOST_PRODUCTS,
    Size,
    fastest_size,
    lower_line,
)
from cml_engine.ops.conv.kernels.conv_product import PARAMS, fitting_tiles, shares_loads
from cml_engine.ops.conv.node import CONV, GROUP, SOFTWARE_GROUP, Conv, ConvTile, is_depthwise
from cml_engine.ops.declaration.spec import Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: rows and columns of the tiles for the tuner
_TILES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8))
#: rows and columns -> speed of a software driver's products with them, relative to the best
_SPEED = {(16, 4): 1.0, (8, 8): 0.88, (8, 4): 0.77, (4, 4): 0.5}
#: the same if each lane loads the filter itself
_SPEED_APART = {(16, 8): 1.0, (8, 8): 0.85, (16, 4): 0.65, (8, 4): 0.6, (4, 4): 0.5}
_SMALLEST = min(_SPEED)
_LEAST_COLUMNS = min(columns for _, columns in _SPEED)


def rows_are_faster(conv: Conv) -> bool:
    """Returns True on a software driver if the code of some tile fits the instruction cache.

    On a software driver a load costs the same at any address, and this kernel saves half of the
    loads. Hardware prefers neighbouring threads that read neighbouring addresses, which this
    kernel gives up.
    """
    return conv.op.limits.software and bool(_fast_speeds(conv))


def rows_are_possible(conv: Conv) -> bool:
    """Returns True for a conv whose overlapping windows share most inputs of a row.

    It must not be depthwise.
    """
    line = conv.shape.axes3[2]
    if is_depthwise(conv) or conv.transposed or not is_built(conv):
        return False
    span = (_LEAST_COLUMNS - 1) * line.stride + line.reach
    return span < _LEAST_COLUMNS * line.size


def is_built(conv: Conv) -> bool:
    """Returns True if a driver builds the smallest tile in reasonable time."""
    return conv.shape.axes3[2].size * prod(_SMALLEST) <= MOST_BUILT


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles worth trying whose kernels a driver builds in reasonable time."""
    most = MOST_BUILT // conv.shape.axes3[2].size
    return [tile for tile in fitting_tiles(conv, _TILES) if tile.rows * tile.columns <= most]


def default_tile(conv: Conv) -> ConvTile:
    """Returns the fastest tile on a software driver; results beyond the edge count as work."""
    return ConvTile(*fastest_size(conv, _fast_speeds(conv) or {_SMALLEST: 1.0}), SOFTWARE_GROUP)


def _fast_speeds(conv: Conv) -> dict[Size, float]:
    """Returns the speeds of the sizes whose code fits the first instruction cache."""
    shares, taps = shares_loads(conv), conv.shape.axes3[2].size
    speeds, most = (_SPEED, MOST_PRODUCTS) if shares else (_SPEED_APART, MOST_BUILT)
    return {size: speed for size, speed in speeds.items() if taps * prod(size) <= most}


def _lower(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line = conv.shape.axes3[2]
    return lower_line(conv, tile, {"STRIDE": line.stride, "DILATION": line.dilation})


CONV.add(
    KernelVariant(
        name="row tile",
        about="row tiles: neighbours along a line, which share their inputs",
        kernel=engine_kernel("conv/conv_row_tile.hlsl", PARAMS, group=GROUP),
        lower=_lower,
        default_tile=default_tile,
        is_possible=rows_are_possible,
        is_faster=rows_are_faster,
        before=("tile",),
        tiles=tiles,
        examples=(
            ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), stride=[2, 1], note="a stride down")),
            ("conv", conv_case((2, 8, 9, 11), (10, 8, 3, 4), stride=[2, 2], note="strides")),
            ("conv", conv_case((1, 8, 9, 15), (5, 8, 3, 3), dilation=[2, 2], note="dilation")),
            ("conv", conv_case((1, 10, 9, 7), (15, 2, 3, 3), groups=5, note="groups")),
        ),
    )
)
