"""``conv`` 3x3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the products in three stages.

The transforms' points are 0, ±2/3, ±3/2 and infinity. Shader: ``shaders_hlsl/conv/winograd.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ir.layout import FIXED8
from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels import conv_window
from cml_engine.ops.conv.kernels.conv import default_tile as default_direct_tile
from cml_engine.ops.conv.kernels.conv import direct_seconds, software_tile
from cml_engine.ops.conv.kernels.conv_blocks import blocks_of, pack_bias
from cml_engine.ops.conv.kernels.conv_pack import block_format
from cml_engine.ops.conv.kernels.conv_product import (
    fitting_tiles,
    loads_ahead,
    moves_wide,
    product_defines,
    shares_loads,
    store_defines,
    wide_defines,
)
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    Conv,
    ConvTile,
)
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.spec import Dispatch, engine_kernel, word
from cml_engine.ops.declaration.variant import KernelVariant

_PARAMS = (
    "first_tile:u tiles:u tiles_y:u tiles_x:u in_blocks:u out_blocks:u out_c:u row_blocks:u "
    "parts:u height:i width:i before_y:i before_x:i out_height:i out_width:i "
)
KERNEL = engine_kernel("conv/winograd.hlsl", _PARAMS + EPILOGUE_PARAMS, group=GROUP)
_INPUT, _PRODUCT, _OUTPUT = (word("stage", name) for name in ("input", "product", "output"))
_POINTS = 36
#: bytes of one scratch tensor; further tiles are computed in another round
_MAX_SCRATCH = 16 << 20
#: fewer channels leave a software driver's transforms dearer than the saved products: where
#: it shares loads, so that its direct way (row tiles) is fast; where not
_SHARED_LEAST_CHANNELS, _SOFTWARE_LEAST_CHANNELS = 32, 12
#: fewer tiles leave the filter, four times as large as it was, dearer to read than to multiply
_LEAST_TILES = 64
#: the largest ratio of computed to needed results (due to whole tiles and workgroups) by default,
#: and of the tiles for the tuner
_MOST_WASTE, _MOST_TRIED_WASTE = 1.8, 4.0
#: rows and columns of the products' tiles for the tuner
_SOFTWARE_TILES = ((8, 4), (16, 4), (16, 8), (32, 4))
_TILES = ((8, 1), (16, 1), (8, 2), (8, 4), (16, 2), (16, 4))
#: rows of a thread of the products, if they divide the channels, and threads of a workgroup, where
#: eight lanes share loads
_SHARED_ROWS, _SHARED_GROUP = 32, 8
#: RUN and Eight of winograd.hlsl: neighbouring tiles in scratch memory, and channels of a load
_RUN, _EIGHT = 32, 8


def is_possible(conv: Conv) -> bool:
    """Returns True for a 3x3 float convolution of stride 1 and one group with constant filter."""
    attrs = conv.op.attrs
    if attrs.get("exact"):  # an integer network's: the transforms have fractions
        return False
    if attrs.get("direct"):  # CompileOptions(winograd=False)
        return False
    return conv.shape.takes_tiles and conv.constant and not conv.transposed


def is_faster(conv: Conv) -> bool:
    """Returns True if Winograd should be the fastest: enough channels and tiles, and little waste.

    The node must satisfy :func:`is_possible`. A filter in few bits stays in few bits instead.
    """
    shape = conv.shape
    if block_format(conv, 4):
        return False
    if not conv.op.limits.software:
        direct = direct_seconds(conv, default_direct_tile(conv))
        return seconds(conv) < min(direct, conv_window.best_seconds(conv))
    least = _SHARED_LEAST_CHANNELS if shares_loads(conv) else _SOFTWARE_LEAST_CHANNELS
    if min(shape.in_channels, shape.out_channels) < least:
        return False
    tiles = _count_tiles(conv)
    if tiles < _LEAST_TILES:
        return False
    return _waste(conv, default_tile(conv)) <= _MOST_WASTE


def _waste(conv: Conv, tile: ConvTile) -> float:
    """Returns computed over needed results; whole tiles and workgroups compute too many."""
    whole = -(-_count_tiles(conv) // tile.positions) * tile.positions
    return whole * 16 / (conv.shape.batch * prod(conv.shape.narrow))


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile of the stage that multiplies; on hardware the one with the least
    modelled time."""
    if not conv.op.limits.software:
        tiles = [ConvTile(rows, columns, GROUP) for rows, columns in _TILES]
        return min(tiles, key=lambda tile: _product_seconds(conv, tile, _tiles_of_round(conv)))
    tile = software_tile(conv)
    rows = max(tile.rows, _EIGHT)
    if shares_loads(conv) and -conv.shape.out_channels % _SHARED_ROWS < _EIGHT:
        rows = _SHARED_ROWS
    return _grouped(conv, replace(tile, rows=rows))


def seconds(conv: Conv) -> float:
    """Returns the modelled time of all stages on hardware, with the default tile."""
    table, tile = hardware_table(conv.op.limits), default_tile(conv)
    pairs, out_blocks = -(-conv.in_blocks // 2), -(-conv.shape.out_channels // 4)
    # bytes of a block of a tile, and of its results or inputs
    moved = _block_bytes(conv) * (_POINTS + 16)
    total = 0.0
    for _, tiles in _rounds_of(conv):
        total += _product_seconds(conv, tile, tiles)
        for stage, blocks in (("input", 2 * pairs), ("output", out_blocks)):
            groups = -(-tiles * blocks // GROUP)
            kernel = f"{conv.numbers}winograd {stage}"
            total += table.seconds(kernel, groups, nbytes=moved * tiles * blocks)
    return total


def _product_seconds(conv: Conv, tile: ConvTile, tiles: int) -> float:
    in_blocks, out_blocks = conv.in_blocks, -(-conv.shape.out_channels // 4)
    row_blocks = -(-conv.shape.out_channels // tile.rows)
    groups = _POINTS * -(-tiles // tile.positions) * row_blocks
    # the first pair stands before the loop
    turns = [max(-(-in_blocks // 2) - 1, 0)]
    blocks = _POINTS * (tiles * (in_blocks + out_blocks) + 4 * in_blocks * out_blocks)
    kernel = f"{conv.numbers}winograd {tile}"
    return hardware_table(conv.op.limits).seconds(
        kernel, groups, turns, _block_bytes(conv) * blocks
    )


def _block_bytes(conv: Conv) -> float:
    """Returns the bytes of four numbers between the stages."""
    return 8.0 if conv.halves else 16.0


def _grouped(conv: Conv, tile: ConvTile) -> ConvTile:
    return replace(tile, group=_SHARED_GROUP) if shares_loads(conv) else tile


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles that an autotuner should try, without those that waste too much."""
    fitting = fitting_tiles(conv, _SOFTWARE_TILES if conv.op.limits.software else _TILES)
    return [
        tile
        for tile in (_grouped(conv, tile) for tile in fitting)
        if _waste(conv, tile) <= _MOST_TRIED_WASTE
    ]


def _count_tiles(conv: Conv) -> int:
    return conv.shape.batch * prod(-(-n // 4) for n in conv.shape.narrow)


def _tiles_of_round(conv: Conv) -> int:
    tiles = _count_tiles(conv)
    channels = conv.shape.in_channels, conv.shape.out_channels
    words = max(_words_of_run(conv, count) for count in channels)
    runs, most = -(-tiles // _RUN), max(1, _MAX_SCRATCH // (4 * words))
    if conv.half and not conv.halves and tiles >= 2 * _LEAST_TILES:
        # sums in 16 bits would lose what the filter's exactness gains: fewer of them instead
        most = min(most, -(-runs // 2))
    return min(tiles, most * _RUN)


def _rounds_of(conv: Conv) -> Iterator[tuple[int, int]]:
    """Yields the first tile and the number of tiles of each round."""
    total, most = _count_tiles(conv), _tiles_of_round(conv)
    for first in range(0, total, most):
        yield first, min(most, total - first)


def _words_of_run(conv: Conv, channels: int) -> int:
    return _POINTS * _RUN * _EIGHT * -(-channels // _EIGHT) // (2 if conv.halves else 1)


def lower_winograd(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    shape = conv.shape
    x = yield from blocks_of(conv)
    bias = yield from pack_bias(conv)
    in_blocks, out_blocks = conv.in_blocks, -(-shape.out_channels // 4)
    tiles_y, tiles_x = (-(-n // 4) for n in shape.narrow)
    runs = -(-_tiles_of_round(conv) // _RUN)
    values = conv.op.scratch(_words_of_run(conv, shape.in_channels) * runs)
    sums = conv.op.scratch(_words_of_run(conv, shape.out_channels) * runs)
    params = {
        "tiles_y": tiles_y,
        "tiles_x": tiles_x,
        "in_blocks": in_blocks,
        "out_blocks": out_blocks,
        "out_c": shape.out_channels,
        "row_blocks": -(-shape.out_channels // tile.rows),
        "height": shape.wide[0],
        "width": shape.wide[1],
        "before_y": shape.axes[0].before,
        "before_x": shape.axes[1].before,
        "out_height": shape.narrow[0],
        "out_width": shape.narrow[1],
    }
    for first, tiles in _rounds_of(conv):
        parts = -(-tiles // tile.positions)
        stated = {**params, "first_tile": first, "tiles": tiles, "parts": parts}
        yield from _round(conv, (x, values, sums, bias), stated, tile)


def _round(
    conv: Conv, tensors: tuple[str, str, str, str], params: dict[str, Any], tile: ConvTile
) -> Iterator[Dispatch]:
    """Yields the three dispatches (input transform, products, output transform) of some tiles.

    ``tensors`` are the names of the input, the transformed values, their sums and the bias.
    """
    x, values, sums, bias = tensors
    epilogue = epilogue_of(conv.op, 2, vector=conv.out_c4)
    none = {"epi_value": [0.0]}
    wide, fixed = moves_wide(conv) and not conv.halves, conv.half and not conv.halves
    scratch = "half4" if conv.halves else "uint64_t4" if wide else "float4"
    halves = {"HALVES": 1} if conv.halves else {}
    pairs, out_blocks = -(-params["in_blocks"] // 2), params["out_blocks"]
    # a thread of the transforms does a block, or both of a pair
    in_units, out_units = (pairs, -(-out_blocks // 2)) if wide else (2 * pairs, out_blocks)
    yield Dispatch(
        groups=-(-params["tiles"] * in_units // GROUP),
        tensors=(x, values),
        params={**params, **none},
        defines={
            **conv.vectors,
            "T1_TYPE": scratch,
            "WIDE": int(wide),
            **halves,
            **wide_defines(conv, conv.vectors, "INPUT"),
            **_INPUT,
            **conv.border,
        },
    )
    filter = _filter(conv)
    yield Dispatch(
        groups=_POINTS * params["parts"] * params["row_blocks"],
        tensors=(values, *filter, sums),
        params={**params, **none},
        defines={
            "T0_TYPE": scratch,
            "T1_TYPE": FIXED8 if fixed else scratch,
            "T2_TYPE": "float4",
            f"T{1 + len(filter)}_TYPE": scratch,
            "SUMS": f"T{1 + len(filter)}",
            "WIDE": int(wide),
            "FIXED": int(fixed),
            **halves,
            **product_defines(conv, tile),
            **loads_ahead(conv),
            **_PRODUCT,
        },
    )
    stored = store_defines(conv, epilogue, 2)
    yield Dispatch(
        groups=-(-params["tiles"] * out_units // GROUP),
        tensors=(sums, bias, *epilogue.tensors, conv.op.out_names[0]),
        params={**params, **epilogue.params},
        defines={
            "T0_TYPE": scratch,
            "T1_TYPE": "float4",
            "WIDE": int(wide),
            **halves,
            **stored,
            **wide_defines(conv, stored, "OUTPUT"),
            **loads_ahead(conv),
            **_OUTPUT,
        },
    )


def _filter(conv: Conv) -> tuple[str, ...]:
    """Packs the transformed filter and returns its name.

    If it is stored in 16 bits, the name of its step sizes follows (:func:`in_steps`).
    """
    key = f"{conv.op.in_names[1]}.winograd"
    packing = transformed_filter(*conv.filter_source())
    if conv.halves:
        return (conv.op.pack(f"{key}.half", lambda: replace(packing, dtype=np.float16)),)
    if not conv.half:
        return (conv.op.pack(key, lambda: packing),)
    shape = [extent for extent, _, _ in packing.dims]
    counted = cache(lambda: in_steps(np.asarray(packing.array()).reshape(shape)))
    return (
        conv.op.pack(f"{key}.fixed", lambda: counted()[0]),
        conv.op.pack(f"{key}.steps", lambda: counted()[1]),
    )


def in_steps(filter: Array) -> tuple[Array, Array]:
    """Quantizes a transformed filter; returns int16 counts and float32 step sizes.

    There is one step size per point and row. The results are small compared to their terms, so
    rounding errors matter; they are a sixth of those of float16.
    """
    step = np.maximum(np.abs(filter).max((2, 3)) / 32767, np.finfo(np.float32).tiny)
    counts = np.rint(filter / step[:, :, None, None, :])
    return counts.astype(np.int16), step.astype(np.float32)


def transformed_filter(value: Array, out: int, inner: int) -> Packing:
    """Returns the packing of a 3x3 filter as [36][output group][input group][8 in][8 out],
    transformed.

    ``out`` and ``inner`` are the axes of its output and input channels.
    """
    groups = [(-(-value.shape[axis] // _EIGHT), axis, _EIGHT) for axis in (out, inner)]
    dims = ((_POINTS, 2, 1), *groups, (_EIGHT, inner, 1), (_EIGHT, out, 1))
    return Packing(value, dims, matrix=_filter_transform())


def _filter_transform() -> Array:
    """Returns the 6x3 matrix that transforms a filter's column to the six points.

    The row of a finite point p is (1, p, p²) divided by the product of its distances to the
    others. The last row is the point at infinity.
    """
    points = [0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2]
    finite = [[p**k / prod(p - q for q in points if q != p) for k in range(3)] for p in points]
    return np.array([*finite, [0.0, 0.0, 1.0]])


WINOGRAD = KernelVariant(
    name="winograd",
    about="3x3 of stride 1 by F(4x4, 3x3): transforms, products, transforms",
    kernel=KERNEL,
    lower=lower_winograd,
    default_tile=default_tile,
    is_possible=is_possible,
    is_faster=is_faster,
    before=("plain", "row tile", "tile", "window"),
    tiles=tiles,
    rows=4,
    examples=(("conv", conv_case((2, 48, 15, 30), (50, 48, 3, 3), note="48 channels")),),
)
CONV.add(WINOGRAD)
