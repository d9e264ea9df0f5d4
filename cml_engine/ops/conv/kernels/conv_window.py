"""``conv`` with a small window, whose inputs are all loaded before they are multiplied.

For hardware: a wave has every input of a turn under way while it multiplies those of the turn
before, and positions one below the other share inputs. A plain input needs no copy in blocks.
Shader: ``shaders_hlsl/conv/conv_window.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.conv import as_bytes, direct_seconds
from cml_engine.ops.conv.kernels.conv import default_tile as default_direct_tile
from cml_engine.ops.conv.kernels.conv import is_dot4_possible as can_use_dot4
from cml_engine.ops.conv.kernels.conv_pack import (
    block_format,
    keeps_order,
    pack_bytes,
    pack_filter,
)
from cml_engine.ops.conv.kernels.conv_product import PARAMS, launch_product, tile_params
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    Conv,
    ConvTile,
    band_of,
    is_depthwise,
)
from cml_engine.ops.conv.shapes import RECIPROCALS, reciprocals
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

KERNEL = engine_kernel("conv/conv_window.hlsl", f"{PARAMS} {RECIPROCALS}", group=GROUP)
_TILES = ((4, 1), (8, 1), (16, 1), (4, 2), (8, 2), (16, 2), (4, 4), (8, 4))
#: those of bytes, whose inputs take a fourth of the registers
_BYTE_TILES = (*_TILES, (16, 4), (32, 1), (32, 2))
#: parts of a sum for waves of their own, and the most registers of the groupshared sums of a lane:
#: 16 KB for the 64 lanes of the other parts
PARTS, MOST_SHARED = (1, 2, 3, 4), 64
#: what the time of several parts counts for: a wave of each computes the same addresses
_COST = 1.05
#: the taps of the table's kernel
_TABLE_TAPS = 9
#: blocks of a turn where there is one tap, of floats and of bytes
_BLOCKS, _BYTE_BLOCKS = (4, 2, 1), (8, 4, 2, 1)


def is_possible(conv: Conv) -> bool:
    """Returns True for a conv of two axes or one, with few taps and a constant filter; in an
    integer network the input must be in blocks."""
    if not conv.constant or is_depthwise(conv):
        return False
    if conv.op.attrs.get("exact") and _is_plain(conv):
        return False
    return _is_small(conv)


def is_dot4_possible(conv: Conv) -> bool:
    """Returns True for a conv with few taps, 8-bit inputs in blocks and an 8-bit filter."""
    return can_use_dot4(conv) and not _is_plain(conv) and _is_small(as_bytes(conv))


def _is_small(conv: Conv) -> bool:
    if conv.transposed:
        return False
    return len(conv.shape.axes) <= 2 and conv.in_blocks > 0 and bool(_fitting_tiles(conv))


def _is_plain(conv: Conv) -> bool:
    return not conv.op.is_blocked(conv.op.in_names[0])


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles that an autotuner should try; a software driver is too slow to build more
    than the smallest."""
    fitting = _fitting_tiles(conv)
    if not conv.op.limits.software:
        return fitting
    return [tile for tile in fitting if (tile.rows, tile.columns) == _TILES[0]]


def _fitting_tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles whose code and inputs are small enough."""
    found, limits = [], hardware_table(conv.op.limits).limits
    # an input is a register if it is four bytes, two if it is four halves, else four
    share = 4 if conv.dot4 else 2 if conv.halves else 1
    cells = limits.window_cells * share
    most = limits.byte_window_products if conv.dot4 else limits.window_products * share
    for rows, columns in _BYTE_TILES if conv.dot4 else _TILES:
        tile = ConvTile(rows, columns, GROUP)
        products = rows * columns * conv.shape.taps * _blocks(conv, tile)
        few = products <= most and _cells(conv, tile) <= cells
        is_kept = keeps_order(conv, rows) and block_format(conv, rows) is None
        if few and is_kept and rows < 2 * max(conv.shape.out_channels, 4):
            found += [replace(tile, parts=n) for n in PARTS if _may_divide(conv, tile, n)]
    return found


def _may_divide(conv: Conv, tile: ConvTile, parts: int) -> bool:
    """Returns True if every part of the sums has a block, and a workgroup can hold all parts.

    It has to have room for their threads and their groupshared memory.
    """
    shared = (parts - 1) * tile.rows * tile.columns
    has_threads = parts * tile.group <= conv.op.limits.max_group_threads
    return parts <= _turns(conv, tile) and shared <= MOST_SHARED and has_threads


def _turns(conv: Conv, tile: ConvTile) -> int:
    return band_of(conv, tile.rows) // _blocks(conv, tile)


def _blocks(conv: Conv, tile: ConvTile) -> int:
    """Returns the blocks of inputs of a turn."""
    sizes = _BYTE_BLOCKS if conv.dot4 else _BLOCKS
    return blocks_of_turn(conv.shape.taps, band_of(conv, tile.rows), sizes)


def blocks_of_turn(taps: int, band: int, sizes: Sequence[int] = _BLOCKS) -> int:
    """Returns how many of ``band`` blocks of inputs a turn multiplies under a window of ``taps``
    taps."""
    return 1 if taps > 1 else next(n for n in sizes if band % n == 0)


def _cells(conv: Conv, tile: ConvTile) -> int:
    _, y, x = conv.shape.axes3
    return ((tile.columns - 1) * y.stride + y.reach) * x.size * _blocks(conv, tile)


def seconds(conv: Conv, tile: ConvTile) -> float:
    """Returns the modelled time of this kernel, without a copy that the others need."""
    groups, _ = _launch(conv, tile)
    kind, scale = row_of_table(conv.shape.taps, _blocks(conv, tile))
    turns, table = -(-_turns(conv, tile) // tile.parts), hardware_table(conv.op.limits)
    name = f"{conv.numbers}window {tile}"
    inside = table.kernels.get(f"{kind} inside {name}") if conv.shape.is_inside else None
    turn = inside or table.kernels.get(f"{kind} {name}")
    if turn is None:  # the table is being written
        return inf
    once = table.kernels.get(f"{kind} inside once {name}") if inside and turns == 1 else None
    if once:
        waves, more, busy, alone = once.waves, scale - 1, sum(once.busy), sum(once.alone)
    else:
        # the first turn stands before the loop
        more, waves = max(turns * scale - 1, 0), turn.waves
        busy, alone = sum(turn.busy[:-1]), sum(turn.alone[:-1])
    busy, alone = busy + more * turn.busy[-1], alone + more * turn.alone[-1]
    return table.seconds_of(busy, alone, waves, groups * tile.parts)


def row_of_table(taps: int, blocks: int) -> tuple[str, float]:
    """Returns the first word of the table's kernel that stands for a window, and how much longer
    than its turn one of ``blocks`` blocks is."""
    return (f"1x1x{blocks}", 1.0) if taps == 1 else ("3x3", taps / _TABLE_TAPS)


def default_tile(conv: Conv) -> ConvTile:
    """Returns the tile with the least modelled time; several parts must gain clearly.

    Three parts are for turns that only they share evenly: where two or four do, cards differ in
    which is faster.
    """
    fitting = [t for t in _fitting_tiles(conv) if t.parts != 3 or _turns(conv, t) % 6 == 3]
    return min(fitting, key=lambda tile: seconds(conv, tile) * (1 if tile.parts == 1 else _COST))


def is_faster(conv: Conv) -> bool:
    """Returns True on hardware if the model says so."""
    if conv.op.limits.software:
        return False
    return best_seconds(conv) < direct_seconds(conv, default_direct_tile(conv))


def _is_dot4_faster(conv: Conv) -> bool:
    """Returns True on hardware if the model says so."""
    if conv.op.limits.software:
        return False
    conv = as_bytes(conv)
    return seconds(conv, default_tile(conv)) < direct_seconds(conv, default_direct_tile(conv))


def best_seconds(conv: Conv) -> float:
    """Returns the modelled time with the default tile, infinity if it is not possible."""
    if not is_possible(conv):
        return inf
    saved = hardware_table(conv.op.limits).launch if _is_plain(conv) else 0.0  # the copy in blocks
    return seconds(conv, default_tile(conv)) - saved


def _launch(conv: Conv, tile: ConvTile) -> tuple[int, dict[str, Any]]:
    """Returns the workgroups and parameters; a thread's positions are one below the other."""
    groups, params = tile_params(conv, replace(tile, columns=1))
    _, y, x = params["steps3"]
    steps = [1, -(-y // tile.columns), x]
    tiles = -(-conv.shape.batch * prod(steps) // tile.group)
    groups = tiles * params["row_blocks"]
    divisors = reciprocals(groups, params["row_blocks"], x)
    return groups, {**params, "steps3": steps, "tiles": tiles, **divisors}


def lower_window(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    _, y, x = conv.shape.axes3
    key = f"{conv.op.in_names[1]}.window{conv.shape.groups}.rows{tile.rows}"
    if conv.dot4:
        filter = conv.op.pack(f"{key}.dot4", lambda: _pack_bytes(conv, tile.rows))
    else:
        filter = conv.pack(key, lambda: _pack(conv, tile.rows))
    groups, params = _launch(conv, tile)
    defines: Defines = {
        "TAPS_Y": y.size,
        "TAPS_X": x.size,
        "STRIDE_Y": y.stride,
        "STRIDE_X": x.stride,
        "DILATION_Y": y.dilation,
        "DILATION_X": x.dilation,
        "BLOCKS": _blocks(conv, tile),
        "PARTS": tile.parts,
        "LOOP": int(_turns(conv, tile) > tile.parts),
        "LANES": tile.group,
        "INSIDE": int(conv.shape.is_inside),
        "PLAIN": int(_is_plain(conv)),
        "WHOLE": int(conv.shape.in_channels % 4 == 0),
        "DEPTH": 1 if _is_plain(conv) and conv.shape.in_channels == 1 else 4,
        "FEW": int(conv.shape.is_few(groups)),
        "GROUPED": int(conv.shape.groups > 1),
        "AHEAD": 1,
        "SHARE": 0,
        **({"T0_TYPE": "float"} if _is_plain(conv) else {}),
    }
    name = conv.op.in_names[0]
    threads = replace(tile, group=tile.group * tile.parts, parts=1)
    yield from launch_product(conv, threads, name, filter, (groups, params), defines)


def _pack(conv: Conv, rows: int) -> Packing:
    """Returns the packing of the filter as [row block][band][tap][4 in][rows]."""
    packing = pack_filter(conv, rows)
    row_block, taps, (inputs, axis, _), row = packing.dims
    return replace(packing, dims=(row_block, (inputs // 4, axis, 4), taps, (4, axis, 1), row))


def _pack_bytes(conv: Conv, rows: int) -> Packing:
    """Returns the packing of the filter as [row block][band][tap][rows] of words of four bytes."""
    packing = pack_bytes(conv, rows)
    row_block, taps, inputs, row, four = packing.dims
    return replace(packing, dims=(row_block, inputs, taps, row, four))


_INSIDE = [(0, 0), (0, 0)]
WINDOW = KernelVariant(
    name="window",
    about="a small window, all of whose inputs are loaded a turn ahead",
    kernel=KERNEL,
    lower=lower_window,
    default_tile=default_tile,
    is_possible=is_possible,
    is_faster=is_faster,
    before=("plain", "row tile", "tile"),
    tiles=tiles,
    examples=(
        ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), note="a border")),
        ("conv", conv_case((2, 8, 9, 11), (10, 8, 3, 2), stride=[2, 3], padding=_INSIDE,
                           note="inside, strides")),
        ("conv", conv_case((1, 12, 9, 15), (5, 12, 3, 3), dilation=[2, 2], border="reflect",
                           note="dilation")),
        ("conv", conv_case((1, 24, 9, 7), (16, 12, 3, 1), groups=2, note="groups")),
        ("conv", conv_case((2, 32, 5, 7), (10, 32, 1, 1), note="1x1")),
    ),
)  # fmt: skip
CONV.add(WINDOW)
CONV.add(
    WINDOW.of_changed(
        as_bytes,
        name="dot4 window",
        about="a small window of bytes, all of whose inputs are loaded a turn ahead",
        is_possible=is_dot4_possible,
        is_faster=_is_dot4_faster,
        before=("dot4 tile", "row tile", "tile"),
    )
)
