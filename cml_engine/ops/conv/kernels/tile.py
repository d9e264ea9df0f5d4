"""Register tiles of output channels by positions, for any ``conv`` or ``deconv``.

Shader: ``shaders_hlsl/conv/conv.hlsl``. The module also has the tiles and the defines that other
kernels share with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.node import (
    GROUP,
    POSITION,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    band_of,
    default_group,
    is_depthwise,
    phases_of,
)
from cml_engine.ops.conv.packing import blocks_of, has_beside, pack_bias, packed_filter
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import EpilogueArgs, epilogue_of
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

PARAMS = (
    "batch:u out_c:u in_blocks:u band:u group_in:u group_out:u row_blocks:u tiles:u steps3:i3 "
    f"{POSITION} {EPILOGUE_PARAMS}"
)

#: rows per thread -> GFLOPS of a software driver's tile of that size, per computed row (32 rows
#: gain little, but take the driver long to build, and hardware has not the registers)
_ROWS_SPEED = {4: 23, 8: 38, 16: 54}
_COLUMNS = (4, 2, 1)
#: positions per thread if each lane of a software driver loads the filter itself
_COLUMNS_APART = 8
#: workgroups that keep hardware busy; with fewer, threads compute fewer positions each
_BUSY_GROUPS = 256
#: rows and columns of the tiles for the tuner; a CPU holds more sums than a GPU's registers do
_SOFTWARE_TILES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8), (32, 4))
_TILES = ((4, 4), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4))
#: sizes of workgroups for the tuner on hardware, with the default tile
_GROUPS = (32, 128)


def tile_of(conv: Conv, positions: int, batches: int = 1) -> ConvTile:
    """Returns the tile for ``batches`` products of all output channels by ``positions``.

    It has as many rows as the registers hold, but few that are padding. A software driver runs a
    small workgroup as fast as a large one and wastes less; hardware needs many of them.
    """
    shape = conv.shape
    rows = rows_of(conv)
    if conv.op.limits.software:
        return ConvTile(rows, _COLUMNS[0] if shares_loads(conv) else _COLUMNS_APART, SOFTWARE_GROUP)
    row_blocks = -(-shape.out_channels // rows)
    for columns in _COLUMNS:
        if batches * row_blocks * positions // (columns * GROUP) >= _BUSY_GROUPS:
            break
    return ConvTile(rows, columns, GROUP)


def rows_of(conv: Conv) -> int:
    """Returns the output channels per thread: as many as registers hold, with little padding."""
    return 4 if is_depthwise(conv) else min(_ROWS_SPEED, key=lambda r: _rows_cost(conv, r))


def _rows_cost(conv: Conv, rows: int) -> float:
    """Returns the relative time with ``rows`` rows per thread, padding included."""
    row_blocks = -(-conv.shape.out_channels // rows)
    return row_blocks * rows * max(band_of(conv, rows), 1) / _ROWS_SPEED[rows]


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile, :func:`tile_of` for the node's positions and phases."""
    steps, phases = phases_of(conv)
    return tile_of(conv, conv.shape.batch * prod(steps), phases)


def fitting_tiles(conv: Conv, sizes: Iterable[tuple[int, int]]) -> list[ConvTile]:
    """Returns a tile for each (rows, columns), without those that are at least half padding."""
    most = 2 * max(conv.shape.out_channels, 4)
    group = default_group(conv)
    return [ConvTile(rows, columns, group) for rows, columns in sizes if rows < most]


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles that an autotuner should try."""
    if is_depthwise(conv):
        return [ConvTile(4, columns, default_group(conv)) for columns in (1, 2, 4)]
    if conv.op.limits.software:
        return fitting_tiles(conv, _SOFTWARE_TILES)
    usual = default_tile(conv)
    other = [ConvTile(usual.rows, usual.columns, threads) for threads in _GROUPS]
    return fitting_tiles(conv, _TILES) + other


def lower_tile(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    op = conv.op
    x = yield from blocks_of(conv)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4, sums=conv.sums, beside=has_beside(conv))
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from pack_bias(conv, epilogue.beside)
    groups, params = tile_params(conv, tile)
    yield Dispatch(
        groups=groups,
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **epilogue.params},
        defines={**store_defines(conv, epilogue, 3), **tile_defines(conv, tile)},
    )


def tile_params(conv: Conv, tile: ConvTile) -> tuple[int, dict[str, Any]]:
    """Returns the number of workgroups and the parameters of conv.hlsl, without an epilogue's."""
    shape = conv.shape
    steps, phases = phases_of(conv)
    row_blocks = -(-shape.out_channels // tile.rows)
    tiles = -(-shape.batch * prod(steps) // tile.positions)
    return phases * tiles * row_blocks, {
        **conv.position(),
        "batch": shape.batch,
        "out_c": shape.out_channels,
        "in_blocks": conv.in_blocks,
        "band": 1 if is_depthwise(conv) else band_of(conv, tile.rows),
        "group_in": shape.group_in,
        "group_out": shape.group_out,
        "row_blocks": row_blocks,
        "tiles": tiles,
        "steps3": steps,
    }


def tile_defines(conv: Conv, tile: ConvTile) -> dict[str, int | str]:
    """Returns the defines of conv.hlsl, without those for storing results."""
    return {
        **product_defines(conv, tile),
        **conv.vectors,
        **conv.border,
        "DEPTHWISE": int(is_depthwise(conv)),
        "TRANSPOSED": int(conv.transposed),
    }


def store_defines(conv: Conv, epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """Returns the defines of conv_store.hlsli, which applies epilogues and stores results.

    ``first`` is the slot of the first epilogue tensor.
    """
    out = f"T{first + len(epilogue.tensors)}"
    kind = conv.op.vector_type(conv.op.out_names[0])
    return {**bindings(epilogue, first), "OUT_C4": int(conv.out_c4), f"{out}_TYPE": kind}


def bindings(epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """Returns the epilogue's defines, the slot of the output, and GROUP.

    The output's slot follows the epilogue's tensors.
    """
    return {**epilogue.defines, "OUT": f"T{first + len(epilogue.tensors)}", "GROUP": GROUP}


def shares_loads(conv: Conv) -> bool:
    """Returns True if eight lanes load the filter together: on a software driver with enough lanes.

    Hardware reads an address that all lanes share at no cost.
    """
    return conv.op.limits.software and conv.op.limits.subgroup_size >= 8


def product_defines(conv: Conv, tile: ConvTile) -> dict[str, int | str]:
    """Returns the defines of conv_product.hlsli: the tile, and whether lanes share loads."""
    share = int(shares_loads(conv))
    return {"ROWS": tile.rows, "COLUMNS": tile.columns, "GROUP": tile.group, "SHARE": share}


CONV.add(
    KernelVariant(
        name="tile",
        about="register tiles: output channels by positions, in any order of these",
        kernel=Kernel("conv/conv.hlsl", PARAMS, group=GROUP, trusted=True),
        lower=lower_tile,
        default_tile=default_tile,
        tiles=tiles,
        examples=(
            ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), stride=[1, 3], note="a stride")),
            (
                "conv",
                conv_case((1, 10, 9, 7), (15, 2, 3, 3), stride=[1, 3], groups=5, note="groups"),
            ),
            (
                "conv",
                conv_case((1, 10, 9, 7), (10, 1, 3, 3), stride=[2, 1], groups=0, note="depthwise"),
            ),
            ("deconv", deconv_case((1, 8, 5, 6), (8, 6, 2, 2), (6,), stride=[3, 3], note="deconv")),
        ),
    )
)
