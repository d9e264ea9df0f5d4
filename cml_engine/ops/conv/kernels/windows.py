"""``conv`` of one channel by long windows, such as a short-time Fourier transform.

It is a product of the filter and the matrix of overlapping windows, which are read in place. In
blocks of four channels, three quarters of the products would be with zeros. Shader:
``shaders_hlsl/matmul/matmul.hlsl``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from cml_engine.ir.layout import PLAIN
from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.kernels.conv_row_tile import rows_are_faster
from cml_engine.ops.conv.node import CONV, Conv
from cml_engine.ops.declaration.spec import Cost, Dispatch
from cml_engine.ops.declaration.variant import KernelVariant
from cml_engine.ops.matmul.kernels.matmul import (
    KERNEL,
    MatmulTile,
    Matrix,
    MatrixProduct,
    default_tile,
    lower_tiles,
    shares_rows,
    tiles_for,
)
from cml_engine.ops.movement.padding import pad_dispatch


def is_possible(conv: Conv) -> bool:
    """Returns True for a plain map of one channel under windows along its last axis."""
    op, shape = conv.op, conv.shape
    if conv.transposed or shape.in_channels != 1 or shape.groups != 1 or op.graph.words:
        return False
    if any(axis.wide != 1 or axis.narrow != 1 or axis.size != 1 for axis in shape.axes3[:2]):
        return False
    return op.layout(op.in_names[0]) == PLAIN and not conv.out_c4 and not conv.half


def is_faster(conv: Conv) -> bool:
    """Returns True on a device that shares rows, if the row tiles are not faster.

    Measured on llvmpipe only.
    """
    return shares_rows(conv.op.limits) and not rows_are_faster(conv)


def lower_windows(conv: Conv, tile: MatmulTile) -> Iterator[Dispatch]:
    x, row = yield from _input(conv)
    yield from lower_tiles(_product(conv, x, row), tile)


def _input(conv: Conv) -> Generator[Dispatch, None, tuple[str, int]]:
    """Returns the name of the input and the numbers in one of its rows, after a copy if necessary.

    The copy adds the border that windows reach into, or lets each image's row begin at a vector.
    """
    op, shape, line = conv.op, conv.shape, conv.shape.axes3[2]
    width = (line.narrow - 1) * line.stride + line.reach
    aligned = shape.batch == 1 or line.wide % 4 == 0
    if line.before == 0 and width <= line.wide and aligned:
        return op.in_names[0], line.wide
    width = -(-width // 4) * 4
    copy = op.scratch(shape.batch * width)
    padding = [(0, 0), (line.before, width - line.wide - line.before)]
    cost = Cost(0, 4 * shape.batch * line.wide, 4 * shape.batch * width)
    rows = (shape.batch, line.wide)
    yield pad_dispatch(op, op.in_names[0], copy, rows, padding, shape.border, cost=cost)
    return copy, width


def _product(conv: Conv, x: str, row: int) -> MatrixProduct:
    shape, line, (_, filter, bias) = conv.shape, conv.shape.axes3[2], conv.op.in_names
    return MatrixProduct(
        conv.op,
        a=Matrix(filter, line.size, 1, (0,), k_last=True),
        b=Matrix(x, line.stride, line.dilation, (row,)),
        batch=(shape.batch,),
        rows=shape.out_channels,
        columns=line.narrow,
        inner=line.size,
        bias=bias,
        windows=True,
    )


def _default_tile(conv: Conv) -> MatmulTile:
    return default_tile(_product(conv, conv.op.in_names[0], 0))


def _tiles(conv: Conv) -> Iterable[MatmulTile]:
    return tiles_for(conv.op.limits)


CONV.add(
    KernelVariant(
        name="windows",
        about="one channel under long windows: a product of matrices, no copy of the windows",
        kernel=KERNEL,
        lower=lower_windows,
        default_tile=_default_tile,
        is_possible=is_possible,
        is_faster=is_faster,
        before=("dot4 tile", "plain", "row tile", "tile"),
        tiles=_tiles,
        examples=tuple(
            ("conv", conv_case((images, 1, 1, wide), (channels, 1, 1, taps), note=note, **attrs))
            for images, wide, channels, taps, note, attrs in (
                (1, 400, 18, 48, "aligned", {"stride": [1, 16], "padding": [(0, 0), (0, 0)]}),
                (2, 123, 5, 36, "two, padded", {"stride": [1, 4]}),
                (2, 95, 9, 37, "odd", {"stride": [1, 5], "dilation": [1, 2], "border": "reflect"}),
                (1, 90, 3, 40, "cropped", {"padding": [(0, 0), (-3, 7)]}),
            )
        ),
    )
)
