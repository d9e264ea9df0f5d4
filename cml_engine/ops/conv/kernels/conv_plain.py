"""``conv`` of a plain input of few channels, as a network's first layer has it.

In blocks of four channels the input would be copied first, and mostly zeros would be multiplied.
Shader: ``shaders_hlsl/conv/conv_plain.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ir.layout import PLAIN
from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.conv_product import PARAMS, launch_product, tile_params
from cml_engine.ops.conv.kernels.conv_row_tile import default_tile, is_built, rows_are_faster, tiles
from cml_engine.ops.conv.node import CONV, GROUP, Conv, ConvTile
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: with more, blocks of four are worth their copy
_MOST_CHANNELS = 8


def _is_possible(conv: Conv) -> bool:
    """Returns True for a plain input of few channels, one group and a constant filter."""
    shape = conv.shape
    if conv.transposed or not conv.constant or shape.groups != 1:
        return False
    if conv.op.layout(conv.op.in_names[0]) != PLAIN or shape.axes3[2].dilation != 1:
        return False
    return is_built(conv) and 0 < shape.in_channels <= _MOST_CHANNELS


def _lower(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line, (x, filter, _) = conv.shape.axes3[2], conv.op.in_names
    filter = conv.pack(f"{filter}.plain.rows{tile.rows}", lambda: _pack_lines(conv, tile.rows))
    defines: Defines = {"T0_TYPE": "float", "TAPS": line.size, "STRIDE": line.stride}
    return launch_product(conv, tile, x, filter, tile_params(conv, tile, fused=1), defines)


def _pack_lines(conv: Conv, rows: int) -> Packing:
    """Packs the filter as [row block][line of taps][in][taps of a line][rows]."""
    (source, out, inner), shape = conv.filter_source(), conv.shape
    line = shape.axes3[2].size
    blocks = -(-shape.out_channels // rows)
    lines = (shape.taps // line, 2, line), (shape.group_in, inner, 1), (line, 2, 1)
    return Packing(source, ((blocks, out, rows), *lines, (rows, out, 1)))


CONV.add(
    KernelVariant(
        name="plain",
        about="a plain input of a few channels, as a network's first layer has it",
        kernel=engine_kernel("conv/conv_plain.hlsl", PARAMS, group=GROUP),
        lower=_lower,
        default_tile=default_tile,
        is_possible=_is_possible,
        is_faster=rows_are_faster,
        before=("dot4 tile", "row tile", "tile"),
        tiles=tiles,
        examples=(("conv", conv_case((2, 3, 9, 7), (10, 3, 3, 4), stride=[1, 2], note="strides")),),
    )
)
