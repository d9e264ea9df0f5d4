"""``conv`` and ``deconv`` on the GPU: by one of the kernels of ``conv_variants.py``."""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ops.conv.node import Conv
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Dispatch


def lower_conv(op: Lowering) -> Iterator[Dispatch]:
    conv = Conv(op, conv_shape(op.attrs, *op.inputs), transposed=False)
    if op.outputs[0].size:
        yield from CONV.lower(conv)


def lower_deconv(op: Lowering) -> Iterator[Dispatch]:
    conv = Conv(op, deconv_shape(op.attrs, *op.inputs), transposed=True)
    if op.outputs[0].size:
        yield from CONV.lower(conv)
