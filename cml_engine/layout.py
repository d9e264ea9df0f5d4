"""How a tensor lies in GPU memory.

``plain`` is NNEF's own row-major order. ``c4`` is for feature maps ``[N, C, spatial…]``: four
neighbouring channels in one ``float4``, stored ``[N, ceil(C/4), spatial…, 4]``; lanes past C hold
zeros. Kernels that work on channels read a quarter of the addresses that way. ``c4h`` is the same
in 16 bits for each number (IEEE's binary16): half of the memory, and 11 significant bits.
``half`` is for matrices of weights, which their kernels pack in an order of their own, in 16 bits.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from cml_engine.graph import Fact

Array = np.ndarray[Any, Any]

PLAIN = "plain"
C4 = "c4"
C4H = "c4h"
HALF = "half"
#: the layouts in blocks of four channels
BLOCKED = (C4, C4H)

#: what a shader calls one element: every element is a 32-bit word, ``logical`` is 0 or 1
HLSL_TYPE = {"scalar": "float", "integer": "int", "logical": "uint"}
#: what a shader calls that which it loads and stores at once of a feature map
VECTOR_TYPE = {PLAIN: "float", C4: "float4", C4H: "Half4"}
#: types of packed4.hlsli; ``Fixed4`` is for weights that come with the size of a step
FIXED4 = "Fixed4"
PACKED_TYPES = ("Half4", FIXED4)


def words(fact: Fact, layout: str) -> int:
    """32-bit words that the tensor takes in that layout."""
    if layout in (PLAIN, HALF):
        return fact.size if layout == PLAIN else -(-fact.size // 2)
    batch, channels, *spatial = fact.shape
    return batch * -(-channels // 4) * prod(spatial) * (2 if layout == C4H else 4)


def stored_bytes(array: Array) -> int:
    """What a constant takes on the device: 16-bit numbers two bytes, all others a 32-bit word."""
    return (2 if array.itemsize == 2 else 4) * array.size


def to_half(array: Array) -> Array:
    """The array in 16 bits as ``c4h`` has it, in row-major order: rounded to the nearest number,
    ties to the even one; infinite beyond 65504."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16, order="C")
