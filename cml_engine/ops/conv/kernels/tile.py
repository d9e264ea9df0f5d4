"""Register tiles of output channels by positions, for any ``conv`` or ``deconv``.

Shader: ``shaders_hlsl/conv/conv.hlsl``. The variant ``long`` is for more products per result than a
thread's loops may run: each launch computes some of the taps and input blocks. The module also has
the tiles, parameters and defines that other kernels share with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from cml_engine.ir.layout import C4, VECTOR_TYPE
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    POSITION,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    band_of,
    block_format,
    blocks_of,
    default_group,
    has_finite_filter,
    has_multipliers_after_bias,
    is_depthwise,
    overlaps_groups,
    pack_bias,
    packed_filter,
    phases_of,
)
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import EpilogueArgs, epilogue_of
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS
from cml_engine.ops.declaration.packing import BlockFormat
from cml_engine.ops.declaration.spec import Cost, Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

PARAMS = (
    "batch:u out_c:u in_blocks:u band:u group_in:u group_out:u row_blocks:u tiles:u steps3:i3 "
    f"{POSITION} {EPILOGUE_PARAMS}"
)

#: rows per thread -> GFLOPS of a software driver's tile of that size, per computed row (32 rows
#: gain little, but take the driver long to build, and hardware has not the registers)
_ROWS_SPEED = {4: 23, 8: 38, 16: 54}
#: the relative time of products that leave out the inputs of other groups
_GUARD_COST = 2
_COLUMNS = 4
#: positions per thread if each lane of a software driver loads the filter itself
_COLUMNS_APART = 8
#: rows and columns of the tiles for the tuner; a CPU holds more sums than a GPU's registers do
_SOFTWARE_TILES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8), (32, 4))
_TILES = ((4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4))
#: the same of depthwise convolutions
_DEPTHWISE_TILES = ((4, 1), (4, 2), (4, 4))
#: sizes of workgroups for the tuner on hardware, with the default tile
_GROUPS = (32, 128)
#: rows of the tiles that meet most inputs, and inputs of a plain conv's loop over a tap
_MOST_ROWS, _PLAIN_INPUTS = 32, 8


def software_tile(conv: Conv) -> ConvTile:
    """Returns the tile for a software driver: as many rows as gain, but few that are padding.

    It runs a small workgroup as fast as a large one and wastes less.
    """
    rows = 4 if is_depthwise(conv) else min(_ROWS_SPEED, key=lambda r: _rows_cost(conv, r))
    return ConvTile(rows, _COLUMNS if shares_loads(conv) else _COLUMNS_APART, SOFTWARE_GROUP)


def direct_seconds(conv: Conv, tile: ConvTile) -> float:
    """Returns the modelled time of this kernel on hardware."""
    groups, params = tile_params(conv, tile)
    *outer, line = params["k_size"]
    # a phase of a deconv meets every up-th tap
    turns = [*outer, line / prod(params["up"])]
    kind = "depthwise " if is_depthwise(conv) else "transposed " if conv.transposed else ""
    if not is_depthwise(conv):
        # TURN of conv.hlsl: the first block stands before the loop, whose turns are one or two
        turns.append(max(params["band"] - 1, 0) // (1 if tile.columns > 2 else 2))
    return hardware_table().seconds(f"{kind}tile {tile}", groups, turns)


def _rows_cost(conv: Conv, rows: int) -> float:
    """Returns the relative time with ``rows`` rows per thread, padding included."""
    row_blocks = -(-conv.shape.out_channels // rows)
    return row_blocks * rows * cost_per_result(conv, rows) / _ROWS_SPEED[rows]


def cost_per_result(conv: Conv, rows: int) -> int:
    """Returns the relative time of a result by a tile with so many rows: its blocks of inputs, and
    the zeros of other groups that it leaves out."""
    return max(band_of(conv, rows), 1) * (_GUARD_COST if overlaps_groups(conv, rows) else 1)


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile; on hardware the one with the least modelled time."""
    if conv.op.limits.software:
        return software_tile(conv)
    sizes = _DEPTHWISE_TILES if is_depthwise(conv) else _TILES
    tiles = (ConvTile(rows, columns, GROUP) for rows, columns in sizes)
    return min(tiles, key=lambda tile: direct_seconds(conv, tile))


def fitting_tiles(conv: Conv, sizes: Iterable[tuple[int, int]]) -> list[ConvTile]:
    """Returns a tile for each (rows, columns), without those that are at least half padding."""
    most = 2 * max(conv.shape.out_channels, 4)
    group = default_group(conv)
    return [ConvTile(rows, columns, group) for rows, columns in sizes if rows < most]


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles that an autotuner should try."""
    if is_depthwise(conv):
        return [ConvTile(*size, default_group(conv)) for size in _DEPTHWISE_TILES]
    if conv.op.limits.software:
        return fitting_tiles(conv, _SOFTWARE_TILES)
    usual = default_tile(conv)
    other = [ConvTile(usual.rows, usual.columns, threads) for threads in _GROUPS]
    return fitting_tiles(conv, _TILES) + other


def lower_tile(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    x = yield from blocks_of(conv)
    filter = yield from packed_filter(conv, tile.rows)
    form = block_format(conv, tile.rows)
    defines = {"DEPTHWISE": int(is_depthwise(conv)), **loads_ahead(conv)}
    yield from launch_product(conv, tile, x, filter, tile_params(conv, tile), defines, form)


def launch_product(
    conv: Conv,
    tile: ConvTile,
    x: str,
    filter: str,
    launch: tuple[int, Mapping[str, object]],
    defines: Mapping[str, int | str],
    form: BlockFormat | None = None,
) -> Iterator[Dispatch]:
    """Yields the dispatch that computes the node from a packed filter, and that of its bias.

    ``x`` is the input, in blocks of four channels or plain; ``launch`` is the result of
    :func:`tile_params`. ``form`` is the format of a filter in few bits.
    """
    epilogue = epilogue_of(
        conv.op,
        3,
        vector=conv.out_c4,
        sums=conv.sums,
        appends_to_bias=has_multipliers_after_bias(conv),
    )
    bias = yield from pack_bias(conv, epilogue.after_bias)
    types = {
        **store_defines(conv, epilogue, 3),
        **product_defines(conv, tile),
        **window_defines(conv),
        **defines,
        **(form.defines if form else {}),
    }
    # eight numbers of the filter at once: plain and depthwise ones have fewer, and it may be empty
    has_blocks = types["T0_TYPE"] != "float" and not types.get("DEPTHWISE") and conv.in_blocks > 0
    by_eights = has_blocks and types["SHARE"]
    yield Dispatch(
        groups=launch[0],
        tensors=(x, filter, bias, *epilogue.tensors, conv.op.out_names[0]),
        params={**launch[1], **epilogue.params, **(form.params if form else {})},
        defines=types
        | wide_defines(conv, types, "INPUT", "OUTPUT", *(["FILTER"] if by_eights else [])),
    )


def tile_params(conv: Conv, tile: ConvTile, fused: int = 0) -> tuple[int, dict[str, Any]]:
    """Returns the number of workgroups and the parameters of :data:`PARAMS` without an epilogue's.

    ``fused`` is for kernels whose threads compute neighbours along a line: the number of phases
    that are computed together.
    """
    shape, (steps, phases) = conv.shape, phases_of(conv)
    lines = shape.batch * steps[0] * steps[1]
    if fused:
        phases //= fused
        tiles = -(-lines * -(-steps[2] * fused // tile.columns) // tile.group)
    else:
        tiles = -(-lines * steps[2] // tile.positions)
    row_blocks = -(-shape.out_channels // tile.rows)
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


def store_defines(conv: Conv, epilogue: EpilogueArgs, first: int) -> Defines:
    """Returns the defines of conv_store.hlsli, which applies epilogues and stores results.

    ``first`` is the slot of the first epilogue tensor; the output's slot follows them.
    """
    out = f"T{first + len(epilogue.tensors)}"
    kind = conv.op.vector_type(conv.op.out_names[0])
    stored: Defines = {"OUT": out, f"{out}_TYPE": kind, "OUT_C4": int(conv.out_c4), "GROUP": GROUP}
    return epilogue.defines | stored


def shares_loads(conv: Conv) -> bool:
    """Returns True if eight lanes load the filter together: on a software driver with enough lanes.

    Hardware reads an address that all lanes share at no cost.
    """
    return conv.op.limits.software and conv.op.limits.subgroup_size >= 8


def loads_ahead(conv: Conv) -> Defines:
    """Returns the define that loads inputs before they are needed, on hardware.

    A software driver runs no other waves while it waits, and it does not wait for loads.
    """
    return {} if conv.op.limits.software else {"AHEAD": 1}


def moves_wide(conv: Conv) -> bool:
    """Returns True if floats should move as 64-bit integers: on a software driver that has them.

    It loads and stores lane by lane, and a 64-bit integer costs it as much as a float.
    """
    return shares_loads(conv) and conv.op.limits.int64


def wide_defines(conv: Conv, defines: Defines, *roles: str) -> Defines:
    """Returns the defines that make vectors of floats 64-bit integers where these are faster.

    ``roles`` are ``INPUT`` (slot 0), ``FILTER`` (slot 1) and ``OUTPUT``, whose types are in
    ``defines``.
    """
    keys = {"INPUT": "T0_TYPE", "FILTER": "T1_TYPE", "OUTPUT": f"{defines.get('OUT')}_TYPE"}
    wide: Defines = {}
    for role in roles if moves_wide(conv) and conv.sums == "float" else ():
        if defines[keys[role]] == VECTOR_TYPE[C4]:
            wide |= {keys[role]: "uint64_t4" if role == "FILTER" else "uint64_t2"}
            wide |= {f"WIDE_{role}": 1}
    return wide


def product_defines(conv: Conv, tile: ConvTile) -> Defines:
    """Returns the defines of conv_product.hlsli: the tile, and whether lanes share loads."""
    share = int(shares_loads(conv))
    made: Defines = {"ROWS": tile.rows, "COLUMNS": tile.columns, "GROUP": tile.group}
    made |= {"SHARE": share}
    if conv.sums == "float" and overlaps_groups(conv, tile.rows):
        made["OVERLAPPING"] = 1
    if conv.transposed and not has_finite_filter(conv):
        made["OPEN_FILTER"] = 1
    return made


def window_defines(conv: Conv) -> Defines:
    """Returns the defines of conv_position.hlsli, and the types of the tensors."""
    return {**conv.vectors, **conv.border, "TRANSPOSED": int(conv.transposed)}


CONV.add(
    KernelVariant(
        name="tile",
        about="register tiles: output channels by positions, in any order of these",
        kernel=engine_kernel("conv/conv.hlsl", PARAMS, group=GROUP),
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


# --- long: a part of the sum in each launch -----------------------------------------------------


def _is_long(conv: Conv) -> bool:
    """Returns True if a thread may need more than ``MAX_ITERATIONS`` loop iterations.

    The number is estimated for the kernel that needs the most iterations.
    """
    inputs = max(band_of(conv, _MOST_ROWS), _PLAIN_INPUTS)
    # the taps may be three nested loops of one iteration
    return conv.shape.taps * (inputs + 3 * LOOP_ITERATIONS) > MAX_ITERATIONS


def _lower_long(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    op, taps = conv.op, conv.shape.taps
    x = yield from blocks_of(conv)
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from pack_bias(conv)
    groups, params = tile_params(conv, tile)
    params |= {"groups": groups, "tap_begin": 0, "tap_end": 0, "block_begin": 0, "block_end": 0}
    defines = {
        **product_defines(conv, tile),
        **window_defines(conv),
        "DEPTHWISE": int(is_depthwise(conv)),
        **loads_ahead(conv),
    }
    form = block_format(conv, tile.rows)
    few_bits = (form.params, form.defines) if form else ({}, {})
    results = tile.rows * tile.positions
    sums, read = op.scratch(groups * results), 4.0 * tile.rows
    for part in _parts(taps, params["band"]):
        done = (part["tap_end"] - part["tap_begin"]) * (part["block_end"] - part["block_begin"])
        yield Dispatch(
            groups=groups,
            tensors=(x, filter, sums),
            params={**params, **part, "epi_value": [0.0], **few_bits[0]},
            defines={**defines, "PART": "SUMS", **few_bits[1]},
            cost=Cost(8.0 * groups * results * done, read * done, read * groups),
        )
    sums_type = f"{conv.sums}4"
    epilogue = epilogue_of(op, 2, vector=conv.out_c4, sums=conv.sums)
    types = {"T0_TYPE": sums_type, "T1_TYPE": sums_type, "T2_TYPE": "float"}
    yield Dispatch(
        groups=groups,
        tensors=(sums, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **epilogue.params},
        defines=defines
        | types
        | store_defines(conv, epilogue, 2)
        | {"PART": "FINISH", "GROUP": tile.group},
        cost=Cost(0, 4.0 * results * groups, op.outputs[0].nbytes),
    )


def _parts(taps: int, band: int) -> Iterator[dict[str, int]]:
    """Yields the taps and the input blocks of each launch."""
    blocks = min(band, MAX_ITERATIONS // 2)
    step = MAX_ITERATIONS // (blocks + LOOP_ITERATIONS)
    for tap in range(0, taps, step):
        for block in range(0, band, blocks):
            yield {
                "tap_begin": tap,
                "tap_end": min(tap + step, taps),
                "block_begin": block,
                "block_end": min(block + blocks, band),
            }


CONV.add(
    KernelVariant(
        name="long",
        about="register tiles, a part of the sum in each launch",
        kernel=engine_kernel(
            "conv/conv.hlsl",
            PARAMS + " groups:u tap_begin:u tap_end:u block_begin:u block_end:u",
            group=GROUP,
        ),
        lower=_lower_long,
        default_tile=default_tile,
        is_possible=_is_long,
        always_used=True,
    )
)
