"""Inputs and biases of a ``conv`` or ``deconv`` in blocks of four channels.

Shader: ``shaders_hlsl/conv/conv_blocks.hlsl``, for a plain input or a computed bias.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import prod

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ir.layout import C4, C4U8, VECTOR_TYPE, block_words
from cml_engine.ops.conv.node import GROUP, Conv
from cml_engine.ops.declaration.epilogue import per_channel
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Cost, Dispatch, engine_kernel

_KERNEL = engine_kernel("conv/conv_blocks.hlsl", "images:u channels:u volume:u step:u", group=GROUP)


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
        kernel=_KERNEL,
        cost=Cost(0, 4 * images * channels * volume, 4 * size),
    )
    return copy


def has_multipliers_after_bias(conv: Conv) -> bool:
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
