"""``deconv`` whose windows overlap or touch: a thread computes neighbouring results of all phases.

A phase (result modulo stride) meets only some of the taps, unequally many where the kernel is no
multiple of the stride, and all phases meet the same inputs. Together they need every tap once and
every input once. Shader: ``shaders_hlsl/conv_weave.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.ops.conv_node import GROUP, Conv, band_of, is_depthwise, phases_of
from cml_engine.ops.conv_pack import blocks_of, packed_bias, packed_filter
from cml_engine.ops.conv_slide import MOST_BUILT, MOST_PRODUCTS, run_params
from cml_engine.ops.conv_tile import PARAMS, Tile, product_defines, store_defines
from cml_engine.ops.epilogue import epilogue_of
from cml_engine.ops.spec import Dispatch, Kernel

_KERNEL = Kernel("conv_weave.hlsl", PARAMS, group=GROUP, trusted=True)
#: threads of a workgroup: a software driver wastes less with few
_GROUP = 16
#: the shader's integer division is for paddings up to so many strides
_MOST_BEFORE = 8
#: sums of a thread at most
_MOST_SUMS = 128
#: rows and steps along a line -> how fast a software driver's products are with them
_SPEED = {(16, 4): 1.0, (16, 2): 0.83, (8, 4): 0.84, (8, 2): 0.66, (4, 2): 0.42, (4, 1): 0.3}


def gains(conv: Conv) -> bool:
    """Whether it should be faster than ``conv_tile.py``: see ``conv_slide.gains``."""
    return conv.op.limits.software and is_possible(conv) and bool(_fast_sizes(conv))


def is_possible(conv: Conv) -> bool:
    """Whether the taps of a line follow each other, phase by phase."""
    line = conv.shape.axes3[2]
    return (
        conv.transposed
        and not is_depthwise(conv)
        and line.dilation == 1
        and line.stride <= line.kernel
        and line.kernel > 1
        and line.before <= _MOST_BEFORE * line.stride
    )


def tiles(conv: Conv, group: int) -> list[Tile]:
    """Those whose kernels are built in reasonable time, in workgroups of ``group``."""
    return [_tile(conv, size, group) for size in _sizes(conv, MOST_BUILT)]


def usual_tile(conv: Conv) -> Tile:
    """The tile that the rules take: the fastest with what it computes for nothing."""
    line = phases_of(conv)[0][2]

    def time(size: tuple[int, int]) -> float:
        rows = -(-conv.shape.out_channels // size[0]) * size[0]
        steps = -(-line // size[1]) * size[1]
        return rows * max(band_of(conv, size[0]), 1) * steps / _SPEED[size]

    return _tile(conv, min(_fast_sizes(conv), key=time))


def _fast_sizes(conv: Conv) -> list[tuple[int, int]]:
    """Rows and steps whose code stays in the nearest cache."""
    return _sizes(conv, MOST_PRODUCTS)


def _sizes(conv: Conv, most: int) -> list[tuple[int, int]]:
    line = conv.shape.axes3[2]
    fitting = [size for size in _SPEED if prod(size) * line.stride <= _MOST_SUMS]
    return [size for size in fitting if prod(size) * line.kernel <= most]


def _tile(conv: Conv, size: tuple[int, int], group: int = _GROUP) -> Tile:
    return Tile(size[0], size[1] * conv.shape.axes3[2].stride, group)


def lower_weave(conv: Conv, tile: Tile) -> Iterator[Dispatch]:
    op = conv.op
    line = conv.shape.axes3[2]
    x = yield from blocks_of(conv)
    groups, params = run_params(conv, tile, line.stride)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4)
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from packed_bias(conv)
    yield Dispatch(
        groups=groups,
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={**params, **epilogue.params},
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **conv.vectors,
            "BORDER": conv.border,
            "TAPS": line.kernel,
            "PHASES": line.stride,
            "ORIGIN": f"({line.before})",
            "TRANSPOSED": 1,
        },
        kernel=_KERNEL,
    )
