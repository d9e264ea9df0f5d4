"""``deconv`` whose windows overlap or touch along a line: all phases of the line together.

A phase (result modulo stride) meets only some of the taps, and all phases meet the same inputs, so
together they need every tap once and every input once.

Shader: ``shaders_hlsl/conv/conv_phases.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.ops.conv.cases import deconv_case
from cml_engine.ops.conv.kernels.conv_line import (
    MOST_BUILT,
    MOST_PRODUCTS,
    Size,
    fastest_size,
    lower_line,
)
from cml_engine.ops.conv.kernels.conv_product import PARAMS
from cml_engine.ops.conv.node import (
    CONV,
    GROUP,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    default_group,
    is_depthwise,
)
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: the largest padding, in strides, for which the shader's integer division is right
_MOST_BEFORE = 8
#: sums of a thread at most
_MOST_SUMS = 128
#: rows and steps along a line -> speed of a software driver's products with them
_SPEED = {
    (16, 4): 1.0, (16, 2): 0.83, (8, 4): 0.84, (8, 2): 0.66, (4, 2): 0.42, (4, 1): 0.3,
}  # fmt: skip


def _is_possible(conv: Conv) -> bool:
    """Returns True for a deconv whose windows overlap or touch along the last axis.

    It must not be depthwise; its dilation along that axis is 1.
    """
    line = conv.shape.axes3[2]
    return (
        conv.transposed
        and not is_depthwise(conv)
        and line.dilation == 1
        and line.stride <= line.size
        and line.size > 1
        and line.before <= _MOST_BEFORE * line.stride
    )


def _sizes(conv: Conv, most: int) -> list[Size]:
    line = conv.shape.axes3[2]
    fitting = [size for size in _SPEED if prod(size) * line.stride <= _MOST_SUMS]
    return [size for size in fitting if prod(size) * line.size <= most]


def _tile(conv: Conv, size: Size, group: int) -> ConvTile:
    return ConvTile(size[0], size[1] * conv.shape.axes3[2].stride, group)


def _default_tile(conv: Conv) -> ConvTile:
    """Returns the fastest tile on a software driver; results beyond the edge count as work."""
    speeds = {size: _SPEED[size] for size in _sizes(conv, MOST_PRODUCTS)}
    return _tile(conv, fastest_size(conv, speeds), SOFTWARE_GROUP)


def _lower(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line = conv.shape.axes3[2]
    defines: Defines = {"PHASES": line.stride, "ORIGIN": f"({line.before})"}
    return lower_line(conv, tile, defines, line.stride)


CONV.add(
    KernelVariant(
        name="phases",
        about="phase-fused deconvolution: neighbours of all phases along a line",
        kernel=engine_kernel("conv/conv_phases.hlsl", PARAMS, group=GROUP),
        lower=_lower,
        default_tile=_default_tile,
        is_possible=_is_possible,
        # for the reason of rows_are_faster
        is_faster=lambda conv: conv.op.limits.software and bool(_sizes(conv, MOST_PRODUCTS)),
        before=("tile",),
        # whose kernels a driver builds in reasonable time
        tiles=lambda conv: [
            _tile(conv, size, default_group(conv)) for size in _sizes(conv, MOST_BUILT)
        ],
        examples=tuple(
            ("deconv", deconv_case(x, filter, bias, **attrs))
            for x, filter, bias, attrs in (
                ((2, 8, 5, 6), (8, 6, 3, 3), (6,), {"stride": [2, 2], "note": "strides"}),
                ((1, 10, 5, 7), (10, 3, 3, 4), None,
                 {"stride": [1, 3], "padding": [(1, 0), (2, 1)], "groups": 5, "note": "groups"}),
            )
        ),
    )
)  # fmt: skip
