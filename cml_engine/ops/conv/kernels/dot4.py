"""``conv`` of bytes: four products and their sum in one operation.

The 8-bit feature maps and filters of an integer network are packed four channels per word
(``cml_engine/ir/layout.py``). The kernels are those of ``tile.py`` and ``row_tile.py`` with
integer sums.

Hardware has an instruction for this operation. A software driver unpacks the bytes and
multiplies them one by one. For overlapping windows it is faster with floats, which
``row_tile.py`` unpacks from the same bytes once for many lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cml_engine.ir.layout import C4I8, C4U8
from cml_engine.ops.conv.kernels import row_tile, tile
from cml_engine.ops.conv.node import GROUP, Conv, ConvTile, is_depthwise
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: positions of a thread on a software driver
_SOFTWARE_COLUMNS = 8
Lower = Callable[[Conv, ConvTile], Iterator[Dispatch]]


def is_possible(conv: Conv) -> bool:
    """Returns True for an integer conv of 8-bit inputs and constant 8-bit weights.

    A depthwise convolution is not possible.
    """
    if not conv.op.attrs.get("exact", False) or not conv.constant or is_depthwise(conv):
        return False
    return conv.in_layout in (C4I8, C4U8) and conv.filter_layout == C4I8


def is_faster(conv: Conv) -> bool:
    """Returns True on hardware, and on a software driver if ``row_tile.py`` is not possible."""
    return not conv.op.limits.software or not row_tile.is_possible(conv)


def default_tile(conv: Conv) -> ConvTile:
    """Returns the default tile of ``tile.py``; on a software driver with more columns.

    More positions then share a weight.
    """
    found = tile.default_tile(conv)
    return replace(found, columns=_SOFTWARE_COLUMNS) if conv.op.limits.software else found


def _by_bytes(lower: Lower) -> Lower:
    return lambda conv, tile: lower(replace(conv, dot4=True), tile)


CONV.add(
    KernelVariant(
        name="dot4 row tile",
        about="row tiles of bytes, four products at once",
        kernel=Kernel("conv/conv_row_tile.hlsl", tile.PARAMS, group=GROUP, trusted=True),
        lower=_by_bytes(row_tile.lower_row_tile),
        default_tile=row_tile.default_tile,
        is_possible=lambda conv: is_possible(conv) and row_tile.is_possible(conv),
        is_faster=lambda _: False,
        tiles=row_tile.tiles,
    )
)
CONV.add(
    KernelVariant(
        name="dot4 tile",
        about="register tiles of bytes, four products at once",
        kernel=Kernel("conv/conv.hlsl", tile.PARAMS, group=GROUP, trusted=True),
        lower=_by_bytes(tile.lower_tile),
        default_tile=default_tile,
        is_possible=is_possible,
        is_faster=is_faster,
        before=("row tile", "tile"),
        tiles=tile.tiles,
    )
)
