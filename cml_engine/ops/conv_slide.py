"""``conv`` whose windows overlap along a line.

Neighbouring results of a line need mostly the same inputs, so a thread that computes a run of them
loads each input once for all taps of the line. Shader: ``shaders_hlsl/conv_slide.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from cml_engine.ops.conv_node import GROUP, Conv, band_of, is_depthwise, phases_of
from cml_engine.ops.conv_pack import blocks_of, packed_bias, packed_filter
from cml_engine.ops.conv_tile import (
    PARAMS,
    Tile,
    product_defines,
    shares_loads,
    store_defines,
)
from cml_engine.ops.epilogue import epilogue_of
from cml_engine.ops.spec import Dispatch, Kernel

_KERNEL = Kernel("conv_slide.hlsl", PARAMS, group=GROUP, trusted=True)
#: rows and columns -> how fast a software driver's products are with them, beside the best
_SPEED = {(16, 4): 1.0, (8, 8): 0.88, (8, 4): 0.77, (4, 4): 0.5}
#: the same where lanes load the filter each for themselves
_SPEED_APART = {(16, 8): 1.0, (8, 8): 0.85, (16, 4): 0.65, (8, 4): 0.6, (4, 4): 0.5}
_LEAST_COLUMNS = min(columns for _, columns in _SPEED)
#: threads of a workgroup: a software driver wastes less with few
_GROUP = 16
#: products of a line of taps with a run of results, per input: code of more leaves the nearest
#: cache; even more takes long to build
MOST_PRODUCTS, MOST_BUILT = 256, 512


def gains(conv: Conv) -> bool:
    """Whether it should be faster than ``conv_tile.py``: on a software driver only. There a load
    costs the same at any address, and this saves half of them; hardware reads neighbouring
    addresses by neighbouring threads, which this gives up."""
    return conv.op.limits.software and is_possible(conv) and bool(fast_tiles(conv))


def is_possible(conv: Conv) -> bool:
    """Whether the node's windows overlap along a line, so that a run of them needs fewer inputs
    than its windows have taps."""
    line = conv.shape.axes3[2]
    if is_depthwise(conv) or conv.transposed:
        return False
    span = (_LEAST_COLUMNS - 1) * line.stride + (line.kernel - 1) * line.dilation + 1
    return span < _LEAST_COLUMNS * line.kernel


def takes(conv: Conv, tile: Tile) -> bool:
    """Whether a driver builds the kernel of that tile in reasonable time."""
    return conv.shape.axes3[2].kernel * tile.rows * tile.columns <= MOST_BUILT


def usual_tile(conv: Conv) -> Tile:
    """The tile that the rules take: the fastest with what it computes for nothing."""
    line = phases_of(conv)[0][2]

    def time(tile: Tile) -> float:
        rows = -(-conv.shape.out_channels // tile.rows) * tile.rows
        columns = -(-line // tile.columns) * tile.columns
        speed = _speeds(conv)[tile.rows, tile.columns]
        return rows * max(band_of(conv, tile.rows), 1) * columns / speed

    return min(fast_tiles(conv), key=time)


def fast_tiles(conv: Conv) -> list[Tile]:
    """Those whose code stays in the nearest cache, as far as products wait for it."""
    taps = conv.shape.axes3[2].kernel
    most = MOST_PRODUCTS if shares_loads(conv) else MOST_BUILT
    sizes = [size for size in _speeds(conv) if taps * prod(size) <= most]
    return [Tile(rows, columns, _GROUP) for rows, columns in sizes]


def _speeds(conv: Conv) -> dict[tuple[int, int], float]:
    return _SPEED if shares_loads(conv) else _SPEED_APART


def lower_slide(conv: Conv, tile: Tile) -> Iterator[Dispatch]:
    op = conv.op
    line = conv.shape.axes3[2]
    x = yield from blocks_of(conv)
    groups, params = run_params(conv, tile)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4)
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from packed_bias(conv)
    yield Dispatch(
        groups=groups,
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **epilogue.params},
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **conv.vectors,
            "BORDER": conv.border,
            "TAPS": line.kernel,
            "STRIDE": line.stride,
            "DILATION": line.dilation,
            "TRANSPOSED": 0,
        },
        kernel=_KERNEL,
    )


def run_params(conv: Conv, tile: Tile, woven: int = 1) -> tuple[int, dict[str, Any]]:
    """Workgroups, and the parameters of conv_line.hlsli; ``woven`` phases of a line are one run."""
    shape = conv.shape
    steps, phases = phases_of(conv)
    runs = shape.batch * steps[0] * steps[1] * -(-steps[2] * woven // tile.columns)
    row_blocks, tiles = -(-shape.out_channels // tile.rows), -(-runs // tile.group)
    return phases // woven * tiles * row_blocks, {
        **conv.position(),
        "batch": shape.batch,
        "out_c": shape.out_channels,
        "in_blocks": conv.in_blocks,
        "band": band_of(conv, tile.rows),
        "group_in": shape.group_in,
        "group_out": shape.group_out,
        "row_blocks": row_blocks,
        "tiles": tiles,
        "steps3": steps,
    }
