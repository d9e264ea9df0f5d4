"""The picture of a map: coloured by height, lit from the north-west."""

from __future__ import annotations

import numpy as np

from examples.terrain_diffusion.network import Array

#: metres from one height to the next
_STEP = 0.1
#: colours from the lowest place to the highest: reed, meadow, earth, stone, snow
_COLOURS = np.array(
    [[0.30, 0.42, 0.33], [0.48, 0.56, 0.34], [0.62, 0.53, 0.38], [0.58, 0.55, 0.52], [0.96] * 3]
)
_LIGHT = np.array([-1.0, -1.0, 1.4]) / np.sqrt(1 + 1 + 1.4**2)
_AMBIENT = 0.25


def shaded(heights: Array) -> Array:
    """Returns the picture as ``[1, 3, height, width]`` in 0 to 1, at twice the size of the map."""
    large = _enlarged(heights)
    light = _AMBIENT + (1 - _AMBIENT) * np.clip(_normals(large, _STEP / 2) @ _LIGHT, 0, 1)
    colours = _coloured(large) * (light / light.max())[..., None]
    return np.ascontiguousarray(colours.transpose(2, 0, 1)[None], np.float32)


def _enlarged(heights: Array) -> Array:
    """Returns the heights at twice the size, interpolated linearly to avoid steps."""
    for axis in (0, 1):
        count = heights.shape[axis]
        at = np.linspace(0, count - 1, 2 * count)
        low = np.minimum(at.astype(int), max(count - 2, 0))
        part = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        high = np.minimum(low + 1, count - 1)
        heights = heights.take(low, axis) * (1 - part) + heights.take(high, axis) * part
    return heights


def _normals(heights: Array, step: float) -> Array:
    down, right = np.gradient(heights, step)
    normals = np.stack([-right, -down, np.ones_like(heights)], -1)
    length = np.linalg.norm(normals, axis=-1, keepdims=True)
    return np.asarray(normals / length, np.float32)


def _coloured(heights: Array) -> Array:
    low, high = np.percentile(heights, (1, 99.5))
    part = np.clip((heights - low) / max(high - low, 1e-6), 0, 1)
    stops = np.linspace(0, 1, len(_COLOURS))
    channels = [np.interp(part, stops, channel) for channel in _COLOURS.T]
    return np.stack(channels, -1).astype(np.float32)
