"""``deconv`` whose windows overlap or touch: a thread computes neighbouring results of all phases.

A phase (result modulo stride) meets only some of the taps, unequally many where the kernel is no
multiple of the stride, and all phases meet the same inputs. Together they need every tap once and
every input once. Shader: ``shaders_hlsl/conv/conv_phases.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.ops.conv.cases import deconv_case
from cml_engine.ops.conv.kernels.line import MOST_BUILT, MOST_PRODUCTS, Size, fastest, lower_line
from cml_engine.ops.conv.kernels.tile import PARAMS
from cml_engine.ops.conv.node import (
    GROUP,
    SOFTWARE_GROUP,
    Conv,
    ConvTile,
    default_group,
    is_depthwise,
)
from cml_engine.ops.conv.variants import CONV
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

#: the largest padding, in strides, for which the shader's integer division is right
_MOST_BEFORE = 8
#: sums of a thread at most
_MOST_SUMS = 128
#: rows and steps along a line -> speed of a software driver's products with them
_SPEED = {(16, 4): 1.0, (16, 2): 0.83, (8, 4): 0.84, (8, 2): 0.66, (4, 2): 0.42, (4, 1): 0.3}


def is_faster(conv: Conv) -> bool:
    """Returns True on a software driver if the code of some tile fits the instruction cache.

    The reason is that of ``row_tile.is_faster``.
    """
    return conv.op.limits.software and bool(_fast_speeds(conv))


def is_possible(conv: Conv) -> bool:
    """Returns True for a deconv whose windows overlap or touch along the last axis.

    It must not be depthwise; its dilation along that axis is 1.
    """
    line = conv.shape.axes3[2]
    return (
        conv.transposed
        and not is_depthwise(conv)
        and line.dilation == 1
        and line.stride <= line.kernel
        and line.kernel > 1
        and line.before <= _MOST_BEFORE * line.stride
    )


def tiles(conv: Conv) -> list[ConvTile]:
    """Returns the tiles whose kernels a driver builds in reasonable time."""
    return [_tile(conv, size, default_group(conv)) for size in _sizes(conv, MOST_BUILT)]


def default_tile(conv: Conv) -> ConvTile:
    """Returns the fastest tile on a software driver, including results beyond the edge."""
    return _tile(conv, fastest(conv, _fast_speeds(conv)), SOFTWARE_GROUP)


def _fast_speeds(conv: Conv) -> dict[Size, float]:
    """Returns the speeds by size of the sizes whose code fits the first instruction cache."""
    return {size: _SPEED[size] for size in _sizes(conv, MOST_PRODUCTS)}


def _sizes(conv: Conv, most: int) -> list[Size]:
    line = conv.shape.axes3[2]
    fitting = [size for size in _SPEED if prod(size) * line.stride <= _MOST_SUMS]
    return [size for size in fitting if prod(size) * line.kernel <= most]


def _tile(conv: Conv, size: Size, group: int) -> ConvTile:
    return ConvTile(size[0], size[1] * conv.shape.axes3[2].stride, group)


def lower_phases(conv: Conv, tile: ConvTile) -> Iterator[Dispatch]:
    line = conv.shape.axes3[2]
    defines: dict[str, int | str] = {"PHASES": line.stride, "ORIGIN": f"({line.before})"}
    return lower_line(conv, tile, defines, line.stride)


CONV.add(
    KernelVariant(
        name="phases",
        about="phase-fused deconvolution: neighbours of all phases along a line",
        kernel=Kernel("conv/conv_phases.hlsl", PARAMS, group=GROUP, trusted=True),
        lower=lower_phases,
        default_tile=default_tile,
        is_possible=is_possible,
        is_faster=is_faster,
        before=("tile",),
        tiles=tiles,
        examples=(
            (
                "deconv",
                deconv_case((2, 8, 5, 6), (8, 6, 3, 3), (6,), stride=[2, 2], note="strides"),
            ),
            (
                "deconv",
                deconv_case(
                    (1, 10, 5, 7),
                    (10, 3, 3, 4),
                    stride=[1, 3],
                    padding=[(1, 0), (2, 1)],
                    groups=5,
                    note="groups",
                ),
            ),
        ),
    )
)
