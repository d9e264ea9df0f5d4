"""The memory layouts of a tensor on the GPU.

``plain`` is NNEF's own row-major order. ``c4`` is for feature maps ``[N, C, spatial…]``: four
neighbouring channels in one ``float4``, stored ``[N, ceil(C/4), spatial…, 4]``; lanes past C hold
zeros. Kernels that work on channels read a quarter of the addresses that way.

Four channels may be *packed* into fewer 32-bit words, the first in the lowest bits. ``c4h`` has
16 bits per element (IEEE binary16): half of the memory, and 11 significant bits. The maps of
integer networks hold integers in as few bits as possible, exactly: ``c4i8`` and ``c4u8`` (-128
to 127, 0 to 255) in one word, ``c4i16`` and ``c4u16`` in two. So do filters. ``half`` is for
matrices of weights, which their kernels pack in an order of their own, in 16 bits.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array, Fact

PLAIN = "plain"
C4 = "c4"
C4H = "c4h"
C4I8, C4U8, C4I16, C4U16 = "c4i8", "c4u8", "c4i16", "c4u16"
HALF = "half"
#: what holds one number in the packed layouts; those of whole numbers from the smallest
STORED: dict[str, Any] = {
    C4H: np.float16,
    C4I8: np.int8,
    C4U8: np.uint8,
    C4I16: np.int16,
    C4U16: np.uint16,
}
#: the layouts of whole numbers
WHOLE = (C4I8, C4U8, C4I16, C4U16)
#: the layouts in blocks of four channels
BLOCKED = (C4, *STORED)

#: what a shader calls one element: every element is a 32-bit word, ``logical`` is 0 or 1
HLSL_TYPE = {"scalar": "float", "integer": "int", "logical": "uint"}
#: what a shader calls that which it loads and stores at once of a feature map
VECTOR_TYPE = {
    PLAIN: "float",
    C4: "float4",
    C4H: "Half4",
    C4I8: "Char4",
    C4U8: "Byte4",
    C4I16: "Short4",
    C4U16: "UShort4",
}
#: types of packed4.hlsli; ``Fixed4`` is for weights that come with the size of a step
FIXED4 = "Fixed4"
PACKED_TYPES = (*(VECTOR_TYPE[layout] for layout in STORED), FIXED4)


def block_words(layout: str) -> int:
    """32-bit words of a block of four channels."""
    return int(np.dtype(STORED.get(layout, np.float32)).itemsize)


def words(fact: Fact, layout: str) -> int:
    """32-bit words that the tensor takes in that layout."""
    if layout in (PLAIN, HALF):
        return fact.size if layout == PLAIN else -(-fact.size // 2)
    batch, channels, *spatial = fact.shape
    return batch * -(-channels // 4) * prod(spatial) * block_words(layout)


def whole_layout(low: float, high: float) -> str | None:
    """The packed layout that holds whole numbers of that range, if one does."""
    for layout in WHOLE:
        limits = np.iinfo(STORED[layout])
        if limits.min <= low and high <= limits.max:
            return layout
    return None


def stored_bytes(array: Array) -> int:
    """Returns the bytes of a constant on the device: two per 16-bit element, four per other
    element."""
    return (2 if array.itemsize == 2 else 4) * array.size


def to_half(array: Array) -> Array:
    """The array in 16 bits as ``c4h`` has it, in row-major order: rounded to the nearest number,
    ties to the even one; infinite beyond 65504."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16, order="C")


def packed_words(array: Array, layout: str) -> Array:
    """Blocks of four numbers along the last axes, packed, as 32-bit words."""
    stored = to_half(array) if layout == C4H else array.astype(STORED[layout], order="C")
    return stored.reshape(-1).view(np.int32)
