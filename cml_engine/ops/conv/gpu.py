"""``conv`` and ``deconv`` on the GPU: by one of the kernels of ``variants.py``."""

from __future__ import annotations

from collections.abc import Iterator

from cml_engine.ops.conv.kernels.tile import PARAMS
from cml_engine.ops.conv.node import Conv
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Dispatch, Kernel


def conv_kernel(transposed: bool) -> Kernel:
    """Returns the kernel of ``conv`` or, if ``transposed``, of ``deconv``."""

    def lower(op: Lowering) -> Iterator[Dispatch]:
        shape = (deconv_shape if transposed else conv_shape)(op.attrs, *op.inputs)
        if op.outputs[0].size:
            yield from CONV.lower(Conv(op, shape, transposed))

    return Kernel(
        "conv/conv.hlsl", PARAMS, lower, layouts="any", half="each", epilogues="channels",
        trusted=True,
    )  # fmt: skip
