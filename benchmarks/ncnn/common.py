"""What the writers of other engines' files share."""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.graph import Node

Array = np.ndarray[Any, Any]


class CannotWrite(Exception):
    """Something that the other format cannot say; the message tells what."""


def bilinear(node: Node, channels: int) -> Array:
    """The filter [channels, 1, 4, 4] that a ``multilinear_upsample`` by two with a border of zeros
    is as a transposed depthwise convolution of stride 2 and padding 1."""
    a = node.attrs
    if (list(a.factor), a.method, a.border) != ([2, 2], "symmetric", "constant"):
        raise CannotWrite(f"{node.title}: other than by two, symmetric, with zeros outside")
    row = np.array([1, 3, 3, 1], np.float32) / 4
    return np.tile(np.outer(row, row), (channels, 1, 1, 1))
