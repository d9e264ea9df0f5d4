"""``conv`` and ``deconv`` whose windows slide by one input along a line.

Neighbouring results of a line need mostly the same inputs, so a thread that computes a run of them
loads each input once for all taps of the line. Shader: ``shaders_hlsl/conv_slide.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cml_engine.ops.conv_tile import (
    GROUP,
    PARAMS,
    Conv,
    Tile,
    band_of,
    blocks_of,
    is_depthwise,
    packed_bias,
    packed_filter,
    phases_of,
    product_defines,
    rows_of,
    store_defines,
)
from cml_engine.ops.epilogue import epilogue_of
from cml_engine.ops.spec import Dispatch, Kernel

_KERNEL = Kernel("conv_slide.hlsl", PARAMS, group=GROUP, trusted=True)
#: neighbouring results per thread: with more, sums leave the nearest cache
_COLUMNS = 4
#: threads of a workgroup: a software driver wastes less with few
_GROUP = 16
#: products of a line of taps with a run of results, per input: more take long to build
_MOST_PRODUCTS = 512


def gains(conv: Conv) -> bool:
    """Whether it should be faster than ``conv_tile.py``: on a software driver only. There a load
    costs the same at any address, and this saves half of them; hardware reads neighbouring
    addresses by neighbouring threads, which this gives up."""
    return conv.op.limits.software and is_possible(conv) and takes(conv, usual_tile(conv))


def is_possible(conv: Conv) -> bool:
    """Whether the node's windows overlap along a line."""
    if is_depthwise(conv):
        return False
    line = conv.shape.axes3[2]
    step = 1 if conv.transposed else line.stride
    if step != 1 or line.dilation != 1:
        return False
    if conv.transposed and line.kernel % line.stride:
        return False
    return _taps(conv) > 1


def takes(conv: Conv, tile: Tile) -> bool:
    """Whether a driver builds the kernel of that tile in reasonable time."""
    return _taps(conv) * tile.rows * tile.columns <= _MOST_PRODUCTS


def usual_tile(conv: Conv) -> Tile:
    """The tile that the rules take: as many rows as the registers hold."""
    return Tile(rows_of(conv), _COLUMNS, _GROUP)


def _taps(conv: Conv) -> int:
    """Taps along a line that one result meets."""
    line = conv.shape.axes3[2]
    return line.kernel // line.stride if conv.transposed else line.kernel


def lower_slide(conv: Conv, tile: Tile) -> Iterator[Dispatch]:
    op = conv.op
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
            "TAPS": _taps(conv),
            "TRANSPOSED": int(conv.transposed),
        },
        kernel=_KERNEL,
    )


def run_params(conv: Conv, tile: Tile) -> tuple[int, dict[str, Any]]:
    """Workgroups, and the parameters of conv_line.hlsli."""
    shape = conv.shape
    steps, phases = phases_of(conv)
    runs = shape.batch * steps[0] * steps[1] * -(-steps[2] // tile.columns)
    row_blocks, tiles = -(-shape.out_channels // tile.rows), -(-runs // tile.group)
    return phases * tiles * row_blocks, {
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
