"""Functions shared by the kernels of conv_line.hlsli, whose threads compute along a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cml_engine.ir.graph import AttrValue
from cml_engine.ops.conv.kernels.tile import product_defines, store_defines
from cml_engine.ops.conv.node import Conv, ConvTile, band_of, phases_of
from cml_engine.ops.conv.packing import blocks_of, has_beside, pack_bias, packed_filter
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.spec import Dispatch

#: rows, and steps along a line (results of one phase), of a thread
Size = tuple[int, int]
#: products of a line of taps with a thread's steps, per input: code of more leaves the nearest
#: cache; even more takes long to build
MOST_PRODUCTS, MOST_BUILT = 256, 512


def fastest(conv: Conv, speeds: Mapping[Size, float]) -> Size:
    """Returns the size in ``speeds`` with the least time, including results beyond the edge.

    A size is (rows, columns); ``speeds`` are a software driver's relative speeds of each size.
    """
    line = phases_of(conv)[0][2]

    def time(size: Size) -> float:
        rows = -(-conv.shape.out_channels // size[0]) * size[0]
        steps = -(-line // size[1]) * size[1]
        return rows * max(band_of(conv, size[0]), 1) * steps / speeds[size]

    return min(speeds, key=time)


def lower_line(
    conv: Conv, tile: ConvTile, defines: Mapping[str, int | str], fused: int = 1
) -> Iterator[Dispatch]:
    """Yields the dispatches of a convolution by a line kernel, and packs its operands.

    A plain input is copied to blocks of four channels. ``fused`` is the number of phases that are
    computed together.
    """
    op = conv.op
    x = yield from blocks_of(conv)
    groups, params = line_params(conv, tile, fused)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4, sums=conv.sums, beside=has_beside(conv))
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from pack_bias(conv, epilogue.beside)
    yield Dispatch(
        groups=groups,
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **epilogue.params},
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **conv.vectors,
            **conv.border,
            "TAPS": conv.shape.axes3[2].kernel,
            "TRANSPOSED": int(conv.transposed),
            **defines,
        },
    )


def line_params(conv: Conv, tile: ConvTile, fused: int = 1) -> tuple[int, dict[str, AttrValue]]:
    """Returns the number of workgroups and the parameters of conv_line.hlsli.

    ``fused`` is the number of phases that are computed together.
    """
    shape = conv.shape
    steps, phases = phases_of(conv)
    runs = shape.batch * steps[0] * steps[1] * -(-steps[2] * fused // tile.columns)
    row_blocks, tiles = -(-shape.out_channels // tile.rows), -(-runs // tile.group)
    return phases // fused * tiles * row_blocks, {
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
