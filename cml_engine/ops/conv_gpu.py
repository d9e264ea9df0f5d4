"""``conv`` and ``deconv`` on the GPU: which kernel a node gets.

Winograd tiles where they gain (3x3, stride 1, constant filter), tiles of positions for depthwise
windows that overlap, else a register tile of output channels by positions: a run of neighbours
where that saves loads, any positions where not.
"""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ops import conv_slide, depthwise, winograd
from cml_engine.ops.conv_shapes import conv_shape, deconv_shape
from cml_engine.ops.conv_tile import Conv, lower_tile
from cml_engine.ops.lowering import Lowering
from cml_engine.ops.spec import Dispatch


def lower_conv(op: Lowering) -> Iterator[Dispatch]:
    conv = Conv(op, conv_shape(op.attrs, *op.inputs), transposed=False)
    if op.outputs[0].size == 0:
        return
    if winograd.fits(conv):
        yield from winograd.lower_winograd(conv)
    elif depthwise.fits(conv):
        yield from depthwise.lower_depthwise(conv)
    else:
        yield from _lower_direct(conv)


def lower_deconv(op: Lowering) -> Iterator[Dispatch]:
    conv = Conv(op, deconv_shape(op.attrs, *op.inputs), transposed=True)
    if op.outputs[0].size:
        yield from _lower_direct(conv)


def _lower_direct(conv: Conv) -> Iterator[Dispatch]:
    if conv_slide.fits(conv):
        yield from conv_slide.lower_slide(conv)
    else:
        yield from lower_tile(conv)
