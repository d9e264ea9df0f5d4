"""``conv`` and ``deconv`` with more products per result than a thread's loops may run.

It uses the register tiles of ``tile.py``; each launch computes some of the taps and input blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ops.conv.kernels.tile import (
    PARAMS,
    default_tile,
    store_defines,
    tile_defines,
    tile_params,
)
from cml_engine.ops.conv.node import GROUP, Conv, ConvTile, band_of
from cml_engine.ops.conv.packing import blocks_of, pack_bias, packed_filter
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.lowering import LOOP_TURNS, MOST_TURNS
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: rows of the tiles that meet most inputs, and inputs of a plain conv's loop over a tap
_MOST_ROWS, _PLAIN_INPUTS = 32, 8


def is_needed(conv: Conv) -> bool:
    """Returns True if a thread may need more than ``MOST_TURNS`` loop iterations.

    The number is estimated for the kernel that needs the most iterations.
    """
    inputs = max(band_of(conv, _MOST_ROWS), _PLAIN_INPUTS)
    # the taps may be three nested loops of one iteration
    return conv.shape.taps * (inputs + 3 * LOOP_TURNS) > MOST_TURNS


def lower_long(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    op, taps = conv.op, conv.shape.taps
    x = yield from blocks_of(conv)
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from pack_bias(conv)
    groups, params = tile_params(conv, tile)
    defines = tile_defines(conv, tile)
    sums = op.scratch(groups * tile.rows * tile.positions)
    idle = {"groups": groups, "tap_begin": 0, "tap_end": 0, "block_begin": 0, "block_end": 0}
    blocks = min(params["band"], MOST_TURNS // 2)
    step = MOST_TURNS // (blocks + LOOP_TURNS)
    product = 8.0 * groups * tile.rows * tile.positions
    for tap in range(0, taps, step):
        for block in range(0, params["band"], blocks):
            part = {
                "tap_begin": tap,
                "tap_end": min(tap + step, taps),
                "block_begin": block,
                "block_end": min(block + blocks, params["band"]),
            }
            done = (part["tap_end"] - tap) * (part["block_end"] - block)
            yield Dispatch(
                groups=groups,
                tensors=(x, filter, sums),
                params={**params, **idle, **part, "epi_value": [0.0]},
                defines={**defines, "PART": "SUMS"},
                cost=Cost(product * done, 4.0 * tile.rows * done, 4.0 * tile.rows * groups),
            )
    sums_type = f"{conv.sums}4"
    epilogue = epilogue_of(op, 2, vector=conv.out_c4, sums=conv.sums)
    stored = store_defines(conv, epilogue, 2)
    yield Dispatch(
        groups=groups,
        tensors=(sums, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **idle, **epilogue.params},
        defines={**defines, "T0_TYPE": sums_type, "T1_TYPE": sums_type, "T2_TYPE": "float"}
        | {**stored, "PART": "FINISH", "GROUP": tile.group},
        cost=Cost(0, 4.0 * tile.rows * tile.positions * groups, op.outputs[0].nbytes),
    )


CONV.add(
    KernelVariant(
        name="long",
        about="register tiles, a part of the sum in each launch",
        kernel=Kernel(
            "conv/conv.hlsl",
            PARAMS + " groups:u tap_begin:u tap_end:u block_begin:u block_end:u",
            group=GROUP,
            trusted=True,
        ),
        lower=lower_long,
        default_tile=default_tile,
        is_possible=is_needed,
        always_used=True,
    )
)
