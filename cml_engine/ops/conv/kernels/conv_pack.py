"""Filters of a ``conv`` or ``deconv``, packed in the order in which kernels read them.

A constant filter is packed in NumPy. Shader: ``shaders_hlsl/conv/conv_pack.hlsl``, for a filter
that is computed during the run.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from math import gcd

import numpy as np

from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import C4I8, STORED
from cml_engine.ops.conv.node import (
    GROUP,
    Conv,
    band_of,
    first_block,
    is_depthwise,
    overlaps_groups,
)
from cml_engine.ops.declaration.packing import BlockFormat, Packing, pack_blocks, pack_unchanged
from cml_engine.ops.declaration.spec import Cost, Dispatch, engine_kernel

_KERNEL = engine_kernel(
    "conv/conv_pack.hlsl",
    "total:u rows:u band:u taps:u in_blocks:u out_c:u group_in:u group_out:u w_group:u w_out:u "
    "w_in:u",
    group=GROUP,
)


def packed_filter(conv: Conv, rows: int) -> Generator[Dispatch, None, str]:
    """Returns the name of the packed filter.

    A constant is packed now; a computed filter is packed by a dispatch, which is yielded.
    """
    op, shape = conv.op, conv.shape
    name = op.in_names[1]
    if is_depthwise(conv):
        return packed_depthwise(conv)
    if conv.constant:
        way = "deconv" if conv.transposed else "conv"
        if conv.dot4:
            key = f"{name}.{way}{shape.groups}.rows{rows}.dot4"
            return op.pack(key, lambda: pack_bytes(conv, rows))
        if block_format(conv, rows):
            key = f"{name}.{way}{shape.groups}.rows{rows}.few"
            return op.pack(key, lambda: _pack_few_bits(conv, rows))
        return conv.pack(f"{name}.{way}{shape.groups}.rows{rows}", lambda: pack_filter(conv, rows))
    band = band_of(conv, rows)
    total = -(-shape.out_channels // rows) * rows * shape.taps * band * 4
    packed = op.scratch(total)
    steps = (shape.group_in * shape.taps, shape.taps)  # of an output and of an input channel
    if conv.transposed:
        steps = (shape.taps, shape.group_out * shape.taps)
    yield Dispatch(
        groups=-(-total // GROUP),
        tensors=(name, packed),
        params={
            "w_group": shape.group_in * shape.group_out * shape.taps,
            "w_out": steps[0],
            "w_in": steps[1],
            "total": total,
            "rows": rows,
            "band": band,
            "taps": shape.taps,
            "in_blocks": conv.in_blocks,
            "out_c": shape.out_channels,
            "group_in": shape.group_in,
            "group_out": shape.group_out,
        },
        kernel=_KERNEL,
        cost=Cost(0, op.fact(name).nbytes, 4 * total),
    )
    return packed


def pack_filter(conv: Conv, rows: int) -> Packing:
    """Returns the packing of a filter as [row block][tap][band][4 in][rows].

    Inputs that a row does not use have weights of zero.
    """
    shape, band = conv.shape, band_of(conv, rows)
    row_blocks = -(-shape.out_channels // rows)
    if not keeps_order(conv, rows):
        return pack_unchanged(_pack_groups(conv, rows))
    source, out, inner = conv.filter_source()
    row = (row_blocks, out, rows), (rows, out, 1)
    return Packing(source, (row[0], (shape.taps, 2, 1), (4 * band, inner, 1), row[1]))


def keeps_order(conv: Conv, rows: int) -> bool:
    """Returns True if a packed filter has the elements of the filter at regular steps: there is one
    group, or no block of rows or of inputs overlaps two groups."""
    return conv.shape.groups == 1 or not (conv.transposed or overlaps_groups(conv, rows))


def block_format(conv: Conv, rows: int) -> BlockFormat | None:
    """Returns the format of a packed filter in few bits, or None if the kernels read floats."""
    blocks, shape = weight_blocks(conv.op.constant(conv.op.in_names[1])), conv.shape
    if blocks is None or blocks.axis != 1 - conv.transposed or not keeps_order(conv, rows):
        return None
    inputs = 4 * band_of(conv, rows)
    size = gcd(blocks.size, inputs) if blocks.scales.shape[blocks.axis] > 1 else inputs
    if size % 4 or not size or is_depthwise(conv):
        return None
    count = -(-shape.out_channels // rows) * rows * shape.taps * inputs
    return BlockFormat(blocks.bits, size, -(-count * blocks.bits // 128))


def _pack_few_bits(conv: Conv, rows: int) -> Array:
    """Returns a filter in blocks as codes in the order of :func:`pack_filter`, and their scales."""
    form, blocks = block_format(conv, rows), weight_blocks(conv.op.constant(conv.op.in_names[1]))
    assert form is not None and blocks is not None
    codes = pack_filter(conv, rows)
    row, taps, (inputs, axis, _), rest = codes.dims
    scales = np.repeat(blocks.scales, max(blocks.size // form.size, 1), blocks.axis)
    scales = np.take(scales, np.arange(inputs // form.size), blocks.axis)
    dims = (row, taps, (inputs // form.size, axis, 1), rest)
    return pack_blocks(
        replace(codes, source=blocks.codes.reshape(codes.source.shape), dtype=np.int8),
        Packing(scales.reshape(*scales.shape[:2], conv.shape.taps), dims),
        form.bits,
    )


def _pack_groups(conv: Conv, rows: int) -> Array:
    shape, value, band = conv.shape, conv.filter_rows(), band_of(conv, rows)
    row_blocks = -(-shape.out_channels // rows)
    packed = np.zeros((row_blocks, shape.taps, 4 * band, rows), np.float32)
    for row_block in range(row_blocks):
        first = min(first_block(conv, rows, row_block), conv.in_blocks - band)
        channels = range(row_block * rows, min((row_block + 1) * rows, shape.out_channels))
        for row, channel in enumerate(channels):
            begin = channel // shape.group_out * shape.group_in - 4 * first
            packed[row_block, :, begin : begin + shape.group_in, row] = value[channel].T
    return packed


def pack_bytes(conv: Conv, rows: int) -> Packing:
    """Returns the packing of a filter as [row block][tap][band][rows] of words.

    A word has the bytes of four inputs.
    """
    packing = pack_filter(conv, rows)
    if len(packing.dims) == 1:
        fours = packing.source.reshape(-1, 4, rows).swapaxes(1, 2)
        return replace(pack_unchanged(fours), dtype=STORED[C4I8])
    *outer, (inputs, axis, _), row = packing.dims
    dims = (*outer, (inputs // 4, axis, 4), row, (4, axis, 1))
    return replace(packing, dims=dims, dtype=STORED[C4I8])


def packed_depthwise(conv: Conv) -> str:
    """Packs the depthwise filter as [block][tap][4] and returns its name."""
    return conv.pack(f"{conv.op.in_names[1]}.depthwise", lambda: _pack_depthwise(conv))


def _pack_depthwise(conv: Conv) -> Packing:
    source, _, _ = conv.filter_source()
    blocks = -(-conv.shape.out_channels // 4)
    return Packing(source, ((blocks, 0, 4), (conv.shape.taps, 2, 1), (4, 0, 1)))
