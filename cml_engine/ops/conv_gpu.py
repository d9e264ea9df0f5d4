"""``conv`` and ``deconv`` on the GPU: which kernel a node gets, and what that kernel is given.

Three ways, from the fastest that fits: Winograd tiles (3x3, stride 1), a register tile of output
channels by positions (constant filter, wide groups), and a general kernel for all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.layout import C4
from cml_engine.ops.conv_shapes import conv_shape, deconv_shape
from cml_engine.ops.conv_tile import GROUP, POSITION, Conv, bindings, can_tile, lower_tile
from cml_engine.ops.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.epilogue import epilogue_of
from cml_engine.ops.lowering import Lowering
from cml_engine.ops.spec import Dispatch
from cml_engine.ops.winograd import fits, lower_winograd

GENERAL_PARAMS = (
    "batch:u in_c:u out_c:u group_in:u group_out:u in_shift:u out_shift:u bias_step:u "
    f"w_group:u w_out:u w_in:u {POSITION} {EPILOGUE_PARAMS}"
)


def lower_conv(op: Lowering) -> Iterator[Dispatch]:
    return _lower(Conv(op, conv_shape(op.attrs, *op.inputs), transposed=False))


def lower_deconv(op: Lowering) -> Iterator[Dispatch]:
    return _lower(Conv(op, deconv_shape(op.attrs, *op.inputs), transposed=True))


def _lower(conv: Conv) -> Iterator[Dispatch]:
    if conv.op.outputs[0].size == 0:
        return
    if can_tile(conv) and fits(conv):
        yield from lower_winograd(conv)
    elif can_tile(conv):
        yield from lower_tile(conv)
    else:
        yield _lower_general(conv)


def _lower_general(conv: Conv) -> Dispatch:
    op, shape = conv.op, conv.shape
    x, filter, bias = op.in_names
    blocks = -(-shape.out_channels // 4)
    threads = shape.batch * blocks * prod(conv.out_size)
    epilogue = epilogue_of(op, 3)
    weights = shape.group_in * shape.group_out * shape.taps
    steps = (shape.taps, shape.group_out * shape.taps)
    w_out, w_in = steps if conv.transposed else (shape.group_in * shape.taps, shape.taps)
    return Dispatch(
        groups=-(-threads // GROUP),
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={
            **conv.position(),
            **epilogue.params,
            "batch": shape.batch,
            "in_c": shape.in_channels,
            "out_c": shape.out_channels,
            "group_in": shape.group_in,
            "group_out": shape.group_out,
            "in_shift": 2 if op.layout(x) == C4 else 0,
            "out_shift": 2 if conv.out_c4 else 0,
            "bias_step": int(op.fact(bias).size > 1),
            "w_group": weights,
            "w_out": w_out,
            "w_in": w_in,
        },
        defines={"BORDER": conv.border, **bindings(epilogue, 3)},
    )
