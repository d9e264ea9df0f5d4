"""Kernels whose threads compute neighbouring results of a line, which share their inputs.

``row tile`` is for a ``conv`` whose windows overlap along a line: a thread loads each input once
for all taps of the line. ``phases`` is for a ``deconv`` whose windows overlap or touch: a phase
(result modulo stride) meets only some of the taps, and all phases meet the same inputs, so
together they need every tap once and every input once. ``plain`` is for a plain input of few
channels: in blocks of four channels it would be copied first, and mostly zeros would be multiplied.

Shaders: ``conv_row_tile.hlsl``, ``conv_phases.hlsl`` and ``conv_plain.hlsl`` in
``shaders_hlsl/conv/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from cml_engine.ir.layout import PLAIN
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.kernels.tile import (
    PARAMS,
    cost_per_result,
    fitting_tiles,
    launch_product,
    shares_loads,
    tile_params,
)
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    block_format,
    blocks_of,
    default_group,
    is_depthwise,
    packed_filter,
    phases_of,
)
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: rows, and steps along a line (results of one phase), of a thread
Size = tuple[int, int]
#: products of a line of taps with a thread's steps, per input: code of more leaves the nearest
#: cache; even more takes long to build
_MOST_PRODUCTS, _MOST_BUILT = 256, 512


def _fastest(conv: Conv, speeds: Mapping[Size, float]) -> Size:
    """Returns the size in ``speeds`` with the least time, including results beyond the edge.

    A size is (rows, columns); ``speeds`` are a software driver's relative speeds of each size.
    """
    line = phases_of(conv)[0][2]

    def time(size: Size) -> float:
        rows = -(-conv.shape.out_channels // size[0]) * size[0]
        steps = -(-line // size[1]) * size[1]
        return rows * cost_per_result(conv, size[0]) * steps / speeds[size]

    return min(speeds, key=time)


def _lower(
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


# --- row tile -----------------------------------------------------------------------------------

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
    if is_depthwise(conv) or conv.transposed or not _is_built(conv):
        return False
    span = (_LEAST_COLUMNS - 1) * line.stride + line.reach
    return span < _LEAST_COLUMNS * line.size


def _is_built(conv: Conv) -> bool:
    """Returns True if a driver builds the smallest tile in reasonable time."""
    return conv.shape.axes3[2].size * prod(_SMALLEST) <= _MOST_BUILT


def _row_tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles worth trying whose kernels a driver builds in reasonable time."""
    most = _MOST_BUILT // conv.shape.axes3[2].size
    return [tile for tile in fitting_tiles(conv, _TILES) if tile.rows * tile.columns <= most]


def _default_row_tile(conv: Conv) -> ConvTile:
    """Returns the fastest tile on a software driver; results beyond the edge count as work."""
    return ConvTile(*_fastest(conv, _fast_speeds(conv) or {_SMALLEST: 1.0}), SOFTWARE_GROUP)


def _fast_speeds(conv: Conv) -> dict[Size, float]:
    """Returns the speeds of the sizes whose code fits the first instruction cache."""
    shares, taps = shares_loads(conv), conv.shape.axes3[2].size
    speeds, most = (_SPEED, _MOST_PRODUCTS) if shares else (_SPEED_APART, _MOST_BUILT)
    return {size: speed for size, speed in speeds.items() if taps * prod(size) <= most}


def _lower_row_tile(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line = conv.shape.axes3[2]
    return _lower(conv, tile, {"STRIDE": line.stride, "DILATION": line.dilation})


CONV.add(
    KernelVariant(
        name="row tile",
        about="row tiles: neighbours along a line, which share their inputs",
        kernel=engine_kernel("conv/conv_row_tile.hlsl", PARAMS, group=GROUP),
        lower=_lower_row_tile,
        default_tile=_default_row_tile,
        is_possible=rows_are_possible,
        is_faster=rows_are_faster,
        before=("tile",),
        tiles=_row_tiles,
        examples=(
            ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), stride=[2, 1], note="a stride down")),
            ("conv", conv_case((2, 8, 9, 11), (10, 8, 3, 4), stride=[2, 2], note="strides")),
            ("conv", conv_case((1, 8, 9, 15), (5, 8, 3, 3), dilation=[2, 2], note="dilation")),
            ("conv", conv_case((1, 10, 9, 7), (15, 2, 3, 3), groups=5, note="groups")),
        ),
    )
)


# --- plain: a plain input of few channels -------------------------------------------------------

#: with more, blocks of four are worth their copy
_MOST_CHANNELS = 8


def _is_plain_possible(conv: Conv) -> bool:
    """Returns True for a plain input of few channels, one group and a constant filter."""
    shape = conv.shape
    if conv.transposed or not conv.constant or shape.groups != 1:
        return False
    if conv.op.layout(conv.op.in_names[0]) != PLAIN or shape.axes3[2].dilation != 1:
        return False
    return _is_built(conv) and 0 < shape.in_channels <= _MOST_CHANNELS


def _lower_plain(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
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
        lower=_lower_plain,
        default_tile=_default_row_tile,
        is_possible=_is_plain_possible,
        is_faster=rows_are_faster,
        before=("dot4 tile", "row tile", "tile"),
        tiles=_row_tiles,
        examples=(("conv", conv_case((2, 3, 9, 7), (10, 3, 3, 4), stride=[1, 2], note="strides")),),
    )
)


# --- phases: deconvolutions ---------------------------------------------------------------------

#: the largest padding, in strides, for which the shader's integer division is right
_MOST_BEFORE = 8
#: sums of a thread at most
_MOST_SUMS = 128
#: rows and steps along a line -> speed of a software driver's products with them
_PHASES_SPEED = {
    (16, 4): 1.0, (16, 2): 0.83, (8, 4): 0.84, (8, 2): 0.66, (4, 2): 0.42, (4, 1): 0.3,
}  # fmt: skip


def _is_phases_possible(conv: Conv) -> bool:
    """Returns True for a deconv whose windows overlap or touch along the last axis.

    It must not be depthwise; its dilation along that axis is 1.
    """
    line = conv.shape.axes3[2]
    return (
        conv.transposed
        and not is_depthwise(conv)
        and line.dilation == 1
        and line.stride <= line.size
        and line.size > 1
        and line.before <= _MOST_BEFORE * line.stride
    )


def _sizes(conv: Conv, most: int) -> list[Size]:
    line = conv.shape.axes3[2]
    fitting = [size for size in _PHASES_SPEED if prod(size) * line.stride <= _MOST_SUMS]
    return [size for size in fitting if prod(size) * line.size <= most]


def _phases_tile(conv: Conv, size: Size, group: int) -> ConvTile:
    return ConvTile(size[0], size[1] * conv.shape.axes3[2].stride, group)


def _default_phases_tile(conv: Conv) -> ConvTile:
    """Returns the fastest tile on a software driver; results beyond the edge count as work."""
    speeds = {size: _PHASES_SPEED[size] for size in _sizes(conv, _MOST_PRODUCTS)}
    return _phases_tile(conv, _fastest(conv, speeds), SOFTWARE_GROUP)


def _lower_phases(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line = conv.shape.axes3[2]
    defines: Defines = {"PHASES": line.stride, "ORIGIN": f"({line.before})"}
    return _lower(conv, tile, defines, line.stride)


CONV.add(
    KernelVariant(
        name="phases",
        about="phase-fused deconvolution: neighbours of all phases along a line",
        kernel=engine_kernel("conv/conv_phases.hlsl", PARAMS, group=GROUP),
        lower=_lower_phases,
        default_tile=_default_phases_tile,
        is_possible=_is_phases_possible,
        # for the reason of rows_are_faster
        is_faster=lambda conv: conv.op.limits.software and bool(_sizes(conv, _MOST_PRODUCTS)),
        before=("tile",),
        # whose kernels a driver builds in reasonable time
        tiles=lambda conv: [
            _phases_tile(conv, size, default_group(conv)) for size in _sizes(conv, _MOST_BUILT)
        ],
        examples=tuple(
            ("deconv", deconv_case(x, filter, bias, **attrs))
            for x, filter, bias, attrs in (
                ((2, 8, 5, 6), (8, 6, 3, 3), (6,), {"stride": [2, 2], "note": "strides"}),
                ((1, 10, 5, 7), (10, 3, 3, 4), None,
                 {"stride": [1, 3], "padding": [(1, 0), (2, 1)], "groups": 5, "note": "groups"}),
            )
        ),
    )
)  # fmt: skip
