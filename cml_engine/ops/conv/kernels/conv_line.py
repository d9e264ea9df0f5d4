"""Tiles and dispatches of kernels whose threads compute neighbouring results of a line.

The results share their inputs. ``conv_line.hlsli`` has what these kernels share on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cml_engine.ops.conv.kernels.conv_blocks import blocks_of
from cml_engine.ops.conv.kernels.conv_pack import block_format, packed_filter
from cml_engine.ops.conv.kernels.conv_product import cost_per_result, launch_product, tile_params
from cml_engine.ops.conv.node import Conv, ConvTile, phases_of
from cml_engine.ops.declaration.spec import Dispatch

#: rows, and steps along a line (results of one phase), of a thread
Size = tuple[int, int]
#: products of a line of taps with a thread's steps, per input: code of more leaves the nearest
#: cache; even more takes long to build
MOST_PRODUCTS, MOST_BUILT = 256, 512


def fastest_size(conv: Conv, speeds: Mapping[Size, float]) -> Size:
    """Returns the size in ``speeds`` with the least time, including results beyond the edge.

    A size is (rows, columns); ``speeds`` are a software driver's relative speeds of each size.
    """
    line = phases_of(conv)[0][2]

    def time(size: Size) -> float:
        rows = -(-conv.shape.out_channels // size[0]) * size[0]
        steps = -(-line // size[1]) * size[1]
        return rows * cost_per_result(conv, size[0]) * steps / speeds[size]

    return min(speeds, key=time)


def lower_line(
    conv: Conv, tile: ConvTile, defines: Mapping[str, int | str], fused: int = 1
) -> Iterator[Dispatch]:
    """Yields the dispatches of a kernel that reads the input in blocks of four channels.

    A plain input is copied. ``fused`` is the number of phases that are computed together.
    """
    x = yield from blocks_of(conv)
    filter = yield from packed_filter(conv, tile.rows)
    defines = {"TAPS": conv.shape.axes3[2].size, **defines}
    form, launch = block_format(conv, tile.rows), tile_params(conv, tile, fused)
    yield from launch_product(conv, tile, x, filter, launch, defines, form)
