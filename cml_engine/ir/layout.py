"""The memory layouts of a tensor on the GPU.

``plain`` is NNEF's row-major order. ``c4`` is for feature maps ``[N, C, spatial…]``: it stores
four neighbouring channels in one ``float4``, as ``[N, ceil(C/4), spatial…, 4]``; lanes past C
hold zeros. Kernels that work on channels then compute a quarter of the addresses.

Four channels may be *packed* into fewer 32-bit words, the first in the lowest bits. ``c4h`` has
16 bits per element (IEEE binary16): half of the memory, and 11 significant bits. The feature
maps and filters of integer networks hold integers exactly in as few bits as possible: ``c4i8``
and ``c4u8`` (-128 to 127, 0 to 255) in one word, ``c4i16`` and ``c4u16`` in two. ``half`` is for
weight matrices, which their kernels pack in 16 bits in an order of their own.
"""

from __future__ import annotations

from math import prod

import numpy as np

from cml_engine.ir.graph import Array, Fact

PLAIN = "plain"
C4 = "c4"
C4H = "c4h"
C4I8, C4U8, C4I16, C4U16 = "c4i8", "c4u8", "c4i16", "c4u16"
HALF = "half"
#: the NumPy type of one element in each packed layout of integers, from the smallest
_INTEGERS: dict[str, type[np.integer]] = {
    C4I8: np.int8,
    C4U8: np.uint8,
    C4I16: np.int16,
    C4U16: np.uint16,
}
#: the same for all packed layouts
STORED: dict[str, type[np.number]] = {C4H: np.float16, **_INTEGERS}
#: the layouts of integers
WHOLE = tuple(_INTEGERS)
#: the layouts in blocks of four channels
BLOCKED = (C4, *STORED)

#: the HLSL type of an element. Every element is a 32-bit word; ``logical`` is 0 or 1
HLSL_TYPE = {"scalar": "float", "integer": "int", "logical": "uint"}
#: the HLSL type that a shader loads and stores at once from a feature map, by layout
VECTOR_TYPE = {
    PLAIN: "float",
    C4: "float4",
    C4H: "Half4",
    C4I8: "Char4",
    C4U8: "Byte4",
    C4I16: "Short4",
    C4U16: "UShort4",
}
#: types of packed4.hlsli; ``Fixed8`` is for weights that are stored with the size of a step
FIXED8 = "Fixed8"
PACKED_TYPES = (*(VECTOR_TYPE[layout] for layout in STORED), FIXED8)


def block_words(layout: str) -> int:
    """Returns the number of 32-bit words of a block of four channels in a layout."""
    return int(np.dtype(STORED.get(layout, np.float32)).itemsize)


def words(fact: Fact, layout: str) -> int:
    """Returns the number of 32-bit words that a tensor occupies in a layout."""
    if layout in (PLAIN, HALF):
        return fact.size if layout == PLAIN else -(-fact.size // 2)
    return prod(stored_shape(fact, layout)) * block_words(layout)


def stored_shape(fact: Fact, layout: str) -> tuple[int, ...]:
    """Returns a tensor's shape in elements of its layout: channels count in blocks of four."""
    if layout not in BLOCKED:
        return fact.shape
    batch, channels, *spatial = fact.shape
    return (batch, -(-channels // 4), *spatial)


def whole_layout(low: float, high: float) -> str | None:
    """Returns the smallest packed layout for integers from ``low`` to ``high``, or None."""
    for layout, dtype in _INTEGERS.items():
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return layout
    return None


def stored_bytes(array: Array) -> int:
    """Returns the size of a constant on the device in bytes.

    An element of 16 bits takes 2 bytes, any other 4.
    """
    return (2 if array.itemsize == 2 else 4) * array.size


def to_half(array: Array) -> Array:
    """Returns an array converted to float16 as in ``c4h``, in row-major order.

    Values are rounded to nearest, ties to even; values beyond 65504 become infinite.
    """
    with np.errstate(over="ignore"):
        return array.astype(np.float16, order="C")


def packed_words(array: Array, layout: str) -> Array:
    """Converts an array to the element type of a packed layout and returns its bytes as flat int32.

    The last axis has blocks of four numbers.
    """
    stored = to_half(array) if layout == C4H else array.astype(STORED[layout], order="C")
    return stored.reshape(-1).view(np.int32)
