"""``conv`` of bytes: four products and their sum in one operation.

The 8-bit feature maps and filters of an integer network are packed four channels per word
(``cml_engine/ir/layout.py``). The kernel is that of ``tile.py`` with integer sums.

Hardware has an instruction for this operation. A software driver unpacks the bytes and
multiplies them one by one. For overlapping windows it is faster with floats, which the row tiles
of ``line.py`` unpack from the same bytes once for many lanes.
"""

from __future__ import annotations

from dataclasses import replace

from cml_engine.ir.layout import C4I8, C4U8
from cml_engine.ops.conv.kernels import tile
from cml_engine.ops.conv.kernels.line import rows_are_possible
from cml_engine.ops.conv.node import CONV, GROUP, Conv, ConvTile, is_depthwise
from cml_engine.ops.declaration.spec import engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: positions of a thread on a software driver
_SOFTWARE_COLUMNS = 8


def is_possible(conv: Conv) -> bool:
    """Returns True for an integer conv of 8-bit inputs and constant 8-bit weights.

    A depthwise convolution is not possible. Neither is a deconv of unsigned inputs with strides:
    the bias that makes signed bytes of them has all taps of the filter, a result only some.
    """
    if not conv.op.attrs.get("exact", False) or not conv.constant or is_depthwise(conv):
        return False
    skips_taps = conv.transposed and any(axis.stride > 1 for axis in conv.shape.axes)
    layouts = (C4I8,) if skips_taps else (C4I8, C4U8)
    return conv.in_layout in layouts and conv.filter_layout == C4I8


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile of ``tile.py``; on a software driver with more columns.

    More positions then share a weight.
    """
    found = tile.default_tile(conv)
    return replace(found, columns=_SOFTWARE_COLUMNS) if conv.op.limits.software else found


CONV.add(
    KernelVariant(
        name="dot4 tile",
        about="register tiles of bytes, four products at once",
        kernel=engine_kernel("conv/conv.hlsl", tile.PARAMS, group=GROUP),
        lower=lambda conv, size: tile.lower_tile(replace(conv, dot4=True), size),
        default_tile=default_tile,
        is_possible=is_possible,
        # on a software driver if the row tiles of floats are not possible
        is_faster=lambda conv: not conv.op.limits.software or not rows_are_possible(conv),
        before=("row tile", "tile"),
        tiles=tile.tiles,
    )
)
