"""``conv`` of one output per input channel (depthwise), by tiles. Shader: ``depthwise.hlsl``.

Windows of stride 1 overlap, so a thread that computes a tile of results loads far less than one
that loads every window separately. Other depthwise convolutions use ``conv.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.conv import default_tile as default_direct_tile
from cml_engine.ops.conv.kernels.conv import direct_seconds
from cml_engine.ops.conv.kernels.conv_blocks import blocks_of, has_multipliers_after_bias, pack_bias
from cml_engine.ops.conv.kernels.conv_pack import packed_depthwise
from cml_engine.ops.conv.kernels.conv_product import store_defines, wide_defines
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    Conv,
    ConvTile,
    is_depthwise,
)
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.spec import Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: a larger window has more taps than registers hold beside the sums
_MOST_TAPS = 25
_TILE_X = 4
#: rows of a tile on a software driver
_SOFTWARE_TILE_Y = 4
#: rows and columns of the tiles for the tuner
_TILES = ((1, 4), (2, 2), (2, 4), (4, 4))


def is_possible(conv: Conv) -> bool:
    """Returns True for a depthwise convolution with overlapping windows in two dimensions.

    Its stride and dilation are 1, and it computes in floats.
    """
    shape = conv.shape
    if conv.transposed or not is_depthwise(conv) or len(shape.axes) != 2 or conv.sums == "int":
        return False
    dense = all((a.stride, a.dilation) == (1, 1) for a in shape.axes)
    return dense and 1 < shape.taps <= _MOST_TAPS


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile of a thread: rows by columns of results.

    On hardware it is the one with the least modelled time, which is that of 3x3.
    """
    if conv.op.limits.software:
        return ConvTile(_SOFTWARE_TILE_Y, _TILE_X, GROUP)
    tiles = (ConvTile(rows, columns, GROUP) for rows, columns in _TILES)
    return min(tiles, key=partial(_seconds, conv))


def _seconds(conv: Conv, tile: ConvTile) -> float:
    kernel = f"{conv.stored}depthwise {tile}"
    return hardware_table(conv.op.limits).seconds(kernel, _groups(conv, tile))


def least_seconds(conv: Conv) -> float:
    """Returns the modelled time of the fastest kernel of a depthwise convolution on hardware."""
    found = [direct_seconds(conv, default_direct_tile(conv))]
    if is_possible(conv):
        found.append(_seconds(conv, default_tile(conv)))
    return min(found)


def _groups(conv: Conv, tile: ConvTile) -> int:
    return -(-_threads(conv, tile) // tile.group)


def _threads(conv: Conv, tile: ConvTile) -> int:
    tiles_y, tiles_x = _tiles(conv, tile)
    return conv.shape.batch * conv.in_blocks * tiles_y * tiles_x


def _tiles(conv: Conv, tile: ConvTile) -> tuple[int, int]:
    rows, columns = conv.shape.narrow
    return -(-rows // tile.rows), -(-columns // tile.columns)


def lower_depthwise(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    shape = conv.shape
    x = yield from blocks_of(conv)
    tiles_y, tiles_x = _tiles(conv, tile)
    epilogue = epilogue_of(
        conv.op, 3, vector=conv.out_c4, appends_to_bias=has_multipliers_after_bias(conv)
    )
    bias = yield from pack_bias(conv, epilogue.after_bias)
    defines = {
        **store_defines(conv, epilogue, 3),
        **conv.vectors,
        **conv.border,
        "KERNEL_Y": shape.axes[0].size,
        "KERNEL_X": shape.axes[1].size,
        "TILE_Y": tile.rows,
        "TILE_X": tile.columns,
        "GROUP": tile.group,
    }
    yield Dispatch(
        groups=_groups(conv, tile),
        tensors=(x, packed_depthwise(conv), bias, *epilogue.tensors, conv.op.out_names[0]),
        params={
            **epilogue.params,
            "threads": _threads(conv, tile),
            "tiles_y": tiles_y,
            "tiles_x": tiles_x,
            "blocks": conv.in_blocks,
            "out_c": shape.out_channels,
            "height": shape.wide[0],
            "width": shape.wide[1],
            "before_y": shape.axes[0].before,
            "before_x": shape.axes[1].before,
            "out_height": shape.narrow[0],
            "out_width": shape.narrow[1],
        },
        defines=defines | wide_defines(conv, defines, "INPUT", "OUTPUT"),
    )


CONV.add(
    KernelVariant(
        name="depthwise",
        about="tiles of results, rows by columns, whose windows overlap",
        kernel=engine_kernel(
            "conv/depthwise.hlsl",
            "threads:u tiles_y:u tiles_x:u blocks:u out_c:u height:i width:i before_y:i "
            f"before_x:i out_height:i out_width:i {EPILOGUE_PARAMS}",
            group=GROUP,
        ),
        lower=lower_depthwise,
        default_tile=default_tile,
        is_possible=is_possible,
        before=("tile",),
        tiles=lambda conv: [ConvTile(*size, GROUP) for size in _TILES],
        examples=(("conv", conv_case((1, 10, 9, 7), (10, 1, 3, 3), groups=0, note="3x3")),),
    )
)
