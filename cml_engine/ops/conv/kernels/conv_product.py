"""Parameters, defines and dispatches of kernels that add products of a filter and inputs.

``conv_product.hlsli``, ``conv_position.hlsli`` and ``conv_store.hlsli`` read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cml_engine.ir.layout import C4, C4H, VECTOR_TYPE
from cml_engine.ops.conv.kernels.conv_blocks import has_multipliers_after_bias, pack_bias
from cml_engine.ops.conv.node import (
    GROUP,
    POSITION,
    Conv,
    ConvTile,
    band_of,
    default_group,
    has_finite_filter,
    is_depthwise,
    overlaps_groups,
    phases_of,
)
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import EpilogueArgs, epilogue_of
from cml_engine.ops.declaration.packing import BlockFormat
from cml_engine.ops.declaration.spec import Defines, Dispatch

PARAMS = (
    "batch:u out_c:u in_blocks:u band:u group_in:u group_out:u row_blocks:u tiles:u steps3:i3 "
    f"{POSITION} {EPILOGUE_PARAMS}"
)
#: the relative time of products that leave out the inputs of other groups
_GUARD_COST = 2


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
    if types.get("AHEAD") and conv.shape.out_channels % tile.rows == 0:
        types["FULL"] = 1
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
    if conv.halves and kind == VECTOR_TYPE[C4H]:
        kind = "half4"  # the device rounds
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
    share = int(shares_loads(conv) and not conv.halves)
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


def cost_per_result(conv: Conv, rows: int) -> int:
    """Returns the relative time of one result in a tile of ``rows``.

    It is the number of input blocks, times a factor if inputs of other groups must be left out.
    """
    return max(band_of(conv, rows), 1) * (_GUARD_COST if overlaps_groups(conv, rows) else 1)


def fitting_tiles(conv: Conv, sizes: Iterable[tuple[int, int]]) -> list[ConvTile]:
    """Returns a tile for each (rows, columns), without those that are at least half padding."""
    most = 2 * max(conv.shape.out_channels, 4)
    group = default_group(conv)
    return [ConvTile(rows, columns, group) for rows, columns in sizes if rows < most]
