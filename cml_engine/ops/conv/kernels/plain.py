"""``conv`` of a plain input of few channels: the first layers of most networks.

In blocks of four channels such an input would be copied first, and mostly zeros would be
multiplied. Shader: ``shaders_hlsl/conv/conv_plain.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ir.layout import PLAIN
from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.line import line_params
from cml_engine.ops.conv.kernels.row_tile import default_tile, is_built, is_faster, tiles
from cml_engine.ops.conv.kernels.tile import PARAMS, product_defines, store_defines
from cml_engine.ops.conv.node import GROUP, Conv, ConvTile
from cml_engine.ops.conv.packing import has_beside, pack_bias
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: with more, blocks of four are worth their copy
_MOST_CHANNELS = 8


def is_possible(conv: Conv) -> bool:
    """Returns True for a plain input of few channels, one group and a constant filter."""
    shape = conv.shape
    if conv.transposed or not conv.constant or shape.groups != 1:
        return False
    if conv.op.layout(conv.op.in_names[0]) != PLAIN or shape.axes3[2].dilation != 1:
        return False
    if not is_built(conv):
        return False
    return 0 < shape.in_channels <= _MOST_CHANNELS


def lower_plain(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    op = conv.op
    line = conv.shape.axes3[2]
    groups, params = line_params(conv, tile)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4, sums=conv.sums, beside=has_beside(conv))
    bias = yield from pack_bias(conv, epilogue.beside)
    yield Dispatch(
        groups=groups,
        tensors=(
            op.in_names[0],
            _filter(conv, tile.rows),
            bias,
            *epilogue.tensors,
            op.out_names[0],
        ),
        params={**params, **epilogue.params},
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **{**conv.vectors, "T0_TYPE": "float"},
            **conv.border,
            "TAPS": line.kernel,
            "STRIDE": line.stride,
            "TRANSPOSED": 0,
        },
    )


def _filter(conv: Conv, rows: int) -> str:
    return conv.pack(f"{conv.op.in_names[1]}.plain.rows{rows}", lambda: _pack_lines(conv, rows))


def _pack_lines(conv: Conv, rows: int) -> Packing:
    """Packs the filter as [row block][line of taps][in][taps of a line][rows]."""
    (source, out, inner), shape = conv.filter_source(), conv.shape
    line = shape.axes3[2].kernel
    blocks = -(-shape.out_channels // rows)
    lines = (shape.taps // line, 2, line), (shape.group_in, inner, 1), (line, 2, 1)
    return Packing(source, ((blocks, out, rows), *lines, (rows, out, 1)))


CONV.add(
    KernelVariant(
        name="plain",
        about="a plain input of a few channels, as a network's first layer has it",
        kernel=Kernel("conv/conv_plain.hlsl", PARAMS, group=GROUP, trusted=True),
        lower=lower_plain,
        default_tile=default_tile,
        is_possible=is_possible,
        is_faster=is_faster,
        before=("dot4 tile", "row tile", "tile"),
        tiles=tiles,
        examples=(("conv", conv_case((2, 3, 9, 7), (10, 3, 3, 4), stride=[1, 2], note="strides")),),
    )
)
