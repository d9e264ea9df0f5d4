"""How a tensor lies in GPU memory.

``plain`` is NNEF's own row-major order. ``c4`` is for feature maps ``[N, C, spatial…]``: four
neighbouring channels in one ``float4``, stored ``[N, ceil(C/4), spatial…, 4]``; lanes past C hold
zeros. Kernels that work on channels read a quarter of the addresses that way.
"""

from __future__ import annotations

from math import prod

from cml_engine.graph import Fact

PLAIN = "plain"
C4 = "c4"

#: what a shader calls one element: every element is a 32-bit word, ``logical`` is 0 or 1
HLSL_TYPE = {"scalar": "float", "integer": "int", "logical": "uint"}


def words(fact: Fact, layout: str) -> int:
    """32-bit words that the tensor takes in that layout."""
    if layout == PLAIN:
        return fact.size
    batch, channels, *spatial = fact.shape
    return batch * -(-channels // 4) * prod(spatial) * 4
