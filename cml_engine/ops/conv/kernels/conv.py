"""Register tiles of output channels by positions, for any ``conv`` or ``deconv``.

Shader: ``shaders_hlsl/conv/conv.hlsl``. The variant ``long`` is for more products per result than a
thread's loops may run: each launch computes some of the taps and input blocks. The variant ``dot4
tile`` is for bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from cml_engine.ir.layout import C4I8, C4U8
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.kernels.conv_blocks import blocks_of, pack_bias
from cml_engine.ops.conv.kernels.conv_pack import block_format, packed_filter
from cml_engine.ops.conv.kernels.conv_product import (
    PARAMS,
    cost_per_result,
    fitting_tiles,
    launch_product,
    loads_ahead,
    product_defines,
    shares_loads,
    store_defines,
    tile_params,
    window_defines,
)
from cml_engine.ops.conv.kernels.conv_row_tile import rows_are_possible
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    band_of,
    default_group,
    is_depthwise,
)
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS
from cml_engine.ops.declaration.spec import Cost, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

KERNEL = engine_kernel("conv/conv.hlsl", PARAMS, group=GROUP)

#: rows per thread -> GFLOPS of a software driver's tile of that size, per computed row (32 rows
#: gain little, but take the driver long to build, and hardware has not the registers)
_ROWS_SPEED = {4: 23, 8: 38, 16: 54}
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
    kind = "transposed " if conv.transposed else ""
    kind = f"{conv.stored}depthwise " if is_depthwise(conv) else kind + conv.numbers
    if not is_depthwise(conv):
        # TURN of conv.hlsl: the first block stands before the loop, whose turns are one or two
        turns.append(max(params["band"] - 1, 0) // (1 if tile.columns > 2 else 2))
    return hardware_table(conv.op.limits).seconds(f"{kind}tile {tile}", groups, turns)


def _rows_cost(conv: Conv, rows: int) -> float:
    """Returns the relative time with ``rows`` rows per thread, padding included."""
    row_blocks = -(-conv.shape.out_channels // rows)
    return row_blocks * rows * cost_per_result(conv, rows) / _ROWS_SPEED[rows]


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile; on hardware the one with the least modelled time."""
    if conv.op.limits.software:
        return software_tile(conv)
    sizes = _DEPTHWISE_TILES if is_depthwise(conv) else _TILES
    tiles = (ConvTile(rows, columns, GROUP) for rows, columns in sizes)
    return min(tiles, key=lambda tile: direct_seconds(conv, tile))


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


TILE = KernelVariant(
    name="tile",
    about="register tiles: output channels by positions, in any order of these",
    kernel=KERNEL,
    lower=lower_tile,
    default_tile=default_tile,
    tiles=tiles,
    examples=(
        ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), stride=[1, 3], note="a stride")),
        ("conv", conv_case((1, 10, 9, 7), (15, 2, 3, 3), stride=[1, 3], groups=5, note="groups")),
        (
            "conv",
            conv_case((1, 10, 9, 7), (10, 1, 3, 3), stride=[2, 1], groups=0, note="depthwise"),
        ),
        ("deconv", deconv_case((1, 8, 5, 6), (8, 6, 2, 2), (6,), stride=[3, 3], note="deconv")),
    ),
)
CONV.add(TILE)


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
        kernel=replace(
            KERNEL, params=PARAMS + " groups:u tap_begin:u tap_end:u block_begin:u block_end:u"
        ),
        lower=_lower_long,
        default_tile=default_tile,
        is_possible=_is_long,
        always_used=True,
    )
)


# --- dot4 tile: bytes, four products and their sum in one operation ------------------------------
#
# The 8-bit feature maps and filters of an integer network are packed four channels per word
# (``cml_engine/ir/layout.py``); the sums are integers. Hardware has an instruction for this
# operation. A software driver unpacks the bytes and multiplies them one by one. For overlapping
# windows it is faster with floats, which the row tiles unpack from the same bytes once for many
# lanes.

#: positions of a thread on a software driver
_SOFTWARE_COLUMNS = 8


def as_bytes(conv: Conv) -> Conv:
    """Returns the node for a kernel that multiplies four bytes by four at once."""
    return replace(conv, dot4=True)


def is_dot4_possible(conv: Conv) -> bool:
    """Returns True for an integer conv of 8-bit inputs and constant 8-bit weights.

    A depthwise convolution is not possible. Neither is a deconv of unsigned inputs with strides:
    the bias that makes signed bytes of them has all taps of the filter, a result only some.
    """
    if not conv.op.attrs.get("exact", False) or not conv.constant or is_depthwise(conv):
        return False
    skips_taps = conv.transposed and any(axis.stride > 1 for axis in conv.shape.axes)
    layouts = (C4I8,) if skips_taps else (C4I8, C4U8)
    return conv.in_layout in layouts and conv.filter_layout == C4I8


def _default_dot4_tile(conv: Conv) -> ConvTile:
    """Returns the default tile; on a software driver that of floats with more columns.

    More positions then share a weight.
    """
    found = default_tile(as_bytes(conv))
    return replace(found, columns=_SOFTWARE_COLUMNS) if conv.op.limits.software else found


CONV.add(
    TILE.of_changed(
        as_bytes,
        name="dot4 tile",
        about="register tiles of bytes, four products at once",
        default_tile=_default_dot4_tile,
        is_possible=is_dot4_possible,
        # on a software driver if the row tiles of floats are not possible
        is_faster=lambda conv: not conv.op.limits.software or not rows_are_possible(conv),
        before=("row tile", "tile"),
    )
)
