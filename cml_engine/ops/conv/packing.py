"""Packs the inputs, filters and biases of ``conv`` and ``deconv`` for the kernels.

Constants are packed at load; computed tensors are packed on the GPU.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ir.layout import C4, C4I8, C4U8, STORED, VECTOR_TYPE, block_words
from cml_engine.ops.conv.node import GROUP, Conv, band_of, first_block, is_depthwise
from cml_engine.ops.declaration.epilogue import per_channel
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.packing import Packing, pack_unchanged
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel

_BLOCKS = Kernel(
    "conv/conv_blocks.hlsl", "images:u channels:u volume:u step:u", group=GROUP, trusted=True
)
_PACK = Kernel(
    "conv/conv_pack.hlsl",
    "total:u rows:u band:u taps:u in_blocks:u out_c:u group_in:u group_out:u w_group:u w_out:u "
    "w_in:u",
    group=GROUP,
    trusted=True,
)


def blocks_of(conv: Conv) -> Generator[Dispatch, None, str]:
    """Returns the name of the input in blocks of four channels; a plain input is copied first.

    Yields the dispatch of the copy.
    """
    op, shape = conv.op, conv.shape
    if op.is_blocked(op.in_names[0]):
        return op.in_names[0]
    volume = prod(conv.in_size)
    return (
        yield from _blocked(
            op, op.in_names[0], shape.batch, shape.in_channels, volume, 1, conv.in_layout
        )
    )


def _blocked(
    op: Lowering,
    name: str,
    images: int,
    channels: int,
    volume: int,
    step: int,
    layout: str = C4,
) -> Generator[Dispatch, None, str]:
    threads = images * -(-channels // 4) * volume
    size = block_words(layout) * threads
    copy = op.scratch(size)
    yield Dispatch(
        groups=-(-threads // GROUP),
        tensors=(name, copy),
        params={"images": images, "channels": channels, "volume": volume, "step": step},
        defines={"T1_TYPE": VECTOR_TYPE[layout]},
        kernel=_BLOCKS,
        cost=Cost(0, 4 * images * channels * volume, 4 * size),
    )
    return copy


def has_beside(conv: Conv) -> bool:
    """Returns True if an integer network's multipliers may be stored after the bias.

    A small constant of its own would have to begin at an offset that a device can bind.
    """
    return bool(conv.op.graph.words) and conv.op.constant(conv.op.in_names[2]) is not None


def pack_bias(conv: Conv, beside: Sequence[str] = ()) -> Generator[Dispatch, None, str]:
    """Returns the name of the packed bias, one value per channel in whole blocks of four.

    The constants ``beside`` follow it. A computed bias is packed by a dispatch, which is yielded.
    """
    op, name, channels = conv.op, conv.op.in_names[2], conv.shape.out_channels
    value = op.constant(name)
    if value is None:
        return (yield from _blocked(op, name, 1, channels, 1, int(op.fact(name).size > 1)))
    bias, more = value, [_constant(op, other) for other in beside]
    moved = 128 * (conv.dot4 and conv.in_layout == C4U8)
    whole = conv.sums == "int"
    key = ".".join(
        [f"{name}.bias{channels}", *["whole"] * whole, *[op.in_names[1]] * bool(moved), *beside]
    )

    def make() -> Array:
        first = _whole_bias(conv, bias, moved) if whole else per_channel(bias, channels)
        others = [per_channel(array, channels).astype(first.dtype) for array in more]
        return np.concatenate([first, *others])

    return op.pack(key, make)


def _constant(op: Lowering, name: str) -> Array:
    value = op.constant(name)
    assert value is not None  # it was asked before
    return value


def _whole_bias(conv: Conv, bias: Array, moved: int) -> Array:
    """Returns the bias as int32 in whole blocks of four, corrected for unsigned inputs.

    An input word of 0 to 255 is multiplied as a signed byte, ``moved`` (128) smaller; the bias
    adds the difference.
    """
    channels = conv.shape.out_channels
    found = np.zeros(-(-channels // 4) * 4, np.int64)
    found[:channels] = bias.reshape(-1)
    if moved:
        found[:channels] += moved * conv.filter_rows().astype(np.int64).sum((1, 2))
    return found.astype(np.int32)  # wraps around, and so do the sums, back to what they are


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
            return op.pack(key, lambda: _pack_bytes(conv, rows))
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
        kernel=_PACK,
        cost=Cost(0, op.fact(name).nbytes, 4 * total),
    )
    return packed


def pack_filter(conv: Conv, rows: int) -> Packing:
    """Returns the packing of a filter as [row block][tap][band][4 in][rows].

    Inputs that a row does not use have weights of zero.
    """
    shape, band = conv.shape, band_of(conv, rows)
    row_blocks = -(-shape.out_channels // rows)
    in_own_blocks = shape.group_out % rows == 0 and shape.group_in % 4 == 0 and not conv.transposed
    if shape.groups > 1 and not in_own_blocks:
        return pack_unchanged(_pack_groups(conv, rows))
    source, out, inner = conv.filter_source()
    row = (row_blocks, out, rows), (rows, out, 1)
    return Packing(source, (row[0], (shape.taps, 2, 1), (4 * band, inner, 1), row[1]))


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


def _pack_bytes(conv: Conv, rows: int) -> Packing:
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
