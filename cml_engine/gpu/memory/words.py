"""Conversions between host arrays and 32-bit words in a tensor's layout on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.compiler.plan import TensorPlace
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact
from cml_engine.ir.layout import BLOCKED, STORED, WHOLE, packed_words
from cml_engine.ops.common.integer_arrays import words_of


def to_words(array: Array, place: TensorPlace) -> Array:
    """Returns a host array as words in the tensor's layout and element type on the GPU.

    An input of an integer network is quantized first.
    """
    if place.conversion is not None:
        entry = place.conversion
        array = words_of(array, np.float32(entry.inverse), entry.low, entry.high)
    if place.layout in WHOLE:  # convert to the small type before elements are moved
        array = array.astype(STORED[place.layout])
    if place.layout in STORED:
        return packed_words(block(array), place.layout)
    logical = place.fact.dtype == "logical"
    dtype = np.dtype(np.uint32) if logical else NUMPY_DTYPE[place.fact.dtype]
    return np.ascontiguousarray(block(array) if place.layout in BLOCKED else array, dtype)


def from_words(data: Any, place: TensorPlace) -> Array:
    fact = place.fact
    dtype = np.dtype(np.uint32) if fact.dtype == "logical" else NUMPY_DTYPE[fact.dtype]
    words = np.frombuffer(data, STORED.get(place.layout, dtype))
    plain = unblock(words, fact.shape) if place.layout in BLOCKED else words[: fact.size]
    return np.array(plain.reshape(fact.shape), NUMPY_DTYPE[fact.dtype])


def empty(fact: Fact) -> Array:
    """Returns a host array of a shape without elements; such a tensor has no memory on the GPU."""
    return np.zeros(fact.shape, NUMPY_DTYPE[fact.dtype])


def block(array: Array) -> Array:
    """Returns a tensor ``[N, C, spatial…]`` in the c4 layout, with zeros for missing channels.

    The layout is described in ``cml_engine/ir/layout.py``.
    """
    batch, channels, *spatial = array.shape
    blocks = -(-channels // 4)
    padded = np.zeros((batch, blocks * 4, *spatial), array.dtype)
    padded[:, :channels] = array
    return np.moveaxis(padded.reshape(batch, blocks, 4, *spatial), 2, -1)


def unblock(words: Array, shape: tuple[int, ...]) -> Array:
    """Returns the tensor of NCHW ``shape`` from c4 elements (``cml_engine/ir/layout.py``)."""
    batch, channels, *spatial = shape
    blocks = -(-channels // 4)
    size = batch * blocks * int(np.prod(spatial)) * 4
    blocked = words[:size].reshape(batch, blocks, *spatial, 4)
    moved = np.moveaxis(blocked, -1, 2)
    return moved.reshape(batch, blocks * 4, *spatial)[:, :channels]
