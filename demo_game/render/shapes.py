"""The vertices of the plants' shapes, a few triangles each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def shapes(vertices: int) -> Array:
    """Returns the vertices, float32 (vertices, 6): x, y, z in a tree, then in a bush or rock.

    Radius and height are 1, the ground is at y = 0. ``vertices`` is 12 or 36.
    """
    tree = _fir(layers=vertices // 12, sides=4)
    clump = _double_pyramid(sides=vertices // 6) if vertices >= 18 else _fir(layers=1, sides=4)
    return np.concatenate([tree, clump], 1).astype(np.float32)


def _fir(layers: int, sides: int) -> Array:
    """Returns the triangle corners (n, 3) of stacked pyramids, the lowest the widest."""
    corners = []
    for layer in range(layers):
        share = layer / layers
        top = 1.0 if layer == layers - 1 else share + 0.75 * (1 - share)
        for side in range(sides):
            corners.append((0.0, top, 0.0))
            for end in (side, side + 1):
                angle = math.tau * (end / sides + 0.13 * layer)
                radius = 1 - 0.8 * share
                corners.append(
                    (radius * math.cos(angle), 0.1 + 0.82 * share, radius * math.sin(angle))
                )
    return np.array(corners)


def _double_pyramid(sides: int) -> Array:
    """Returns the triangle corners (n, 3) of two pyramids, one upside down, on an uneven ring."""
    corners = []
    for side in range(sides):
        for tip in (0.0, 1.0):
            corners.append((0.0, tip, 0.0))
            for end in (side, side + 1):
                angle = math.tau * end / sides
                corners.append((math.cos(angle), 0.42 + 0.1 * math.sin(3 * angle), math.sin(angle)))
    return np.array(corners)
