"""The network file from the published package, and terrain of any size computed with it.

The network is a consistency model: one step from noise to heights, for squares of 128. A larger
map is one canvas of noise, cut into overlapping squares whose results are blended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from examples.upscale.assets import Asset, Wheel

Array: TypeAlias = NDArray[np.float32]
#: the network as a function from ``{"noisy", "sigma", "difficulty"}`` to ``denoised``
Denoise: TypeAlias = Callable[[dict[str, Array]], Array]

MODEL = Asset(
    Wheel(
        "adaptive-terrain-diffusion==0.4.2",
        ("--python-version=311", "--implementation=py", "--abi=none", "--platform=any"),
        "network: the one-step terrain model of the package adaptive-terrain-diffusion 0.4.2 (MIT)",
    ),
    "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
    "95be54b4a39d58320e187a7ec533351c957f16a00be58773c86074828ee67887",
)

SIZE = 128
#: the network's shapes: one square at a time
SHAPES = {"noisy": (1, 1, SIZE, SIZE), "sigma": (1,), "difficulty": (1,)}

#: the noise level of unknown terrain
_SIGMA = np.float32(80)
_OVERLAP = 32
_DIFFICULTIES = 100
#: the network's -1 and 1 are 0 and this height, on a scale that is linear up to about the second
_HIGHEST, _LINEAR = 22.16864013671875, 0.1
_LEAST_WEIGHT = 1e-3


def inputs_of(noisy: Array, difficulty: int) -> dict[str, Array]:
    """Returns the network's inputs by name for a square of noise [1, 1, SIZE, SIZE].

    ``difficulty`` is 1 (calm) to 100 (rough).
    """
    label = (difficulty - 1) / (_DIFFICULTIES - 1)
    return {
        "noisy": np.ascontiguousarray(noisy, np.float32),
        "sigma": np.full(1, _SIGMA, np.float32),
        "difficulty": np.full(1, label, np.float32),
    }


def canvas(shape: tuple[int, int], seed: int) -> Array:
    """Returns the noise [1, 1, H, W] for a map of that height and width, at least one square.

    The random numbers are drawn as in the published package.
    """
    height, width = (max(extent, SIZE) for extent in shape)
    noise = np.random.default_rng(seed).standard_normal((1, 1, height, width), np.float32)
    return noise * _SIGMA


def terrain(denoise: Denoise, shape: tuple[int, int], seed: int, difficulty: int) -> Array:
    """Returns heights in metres as an array of ``shape``; the lowest is 0.

    ``denoise`` runs once for each overlapping square. The map equals that of the published
    package for the same arguments.
    """
    noise = canvas(shape, seed)
    total, weights = np.zeros_like(noise[0, 0]), np.zeros_like(noise[0, 0])
    weight = _weight()
    for area in squares(noise.shape[2], noise.shape[3]):
        square = denoise(inputs_of(noise[:, :, *area], difficulty))[0, 0]
        total[area] += square * weight
        weights[area] += weight
    return heights((total / weights)[: shape[0], : shape[1]])


def squares(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yields the slices (rows, columns) of the overlapping squares of a map, row by row."""
    for y in _starts(height):
        for x in _starts(width):
            yield slice(y, y + SIZE), slice(x, x + SIZE)


def _starts(length: int) -> list[int]:
    """Returns the starts of the squares along one side; the last square ends at its end."""
    last = length - SIZE
    return [*range(0, last, SIZE - _OVERLAP), last]


def _weight() -> Array:
    """Returns the blending weight of each place in a square [SIZE, SIZE], largest in the middle."""
    line = np.maximum(np.hanning(SIZE).astype(np.float32), np.float32(_LEAST_WEIGHT))
    return np.outer(line, line)


def heights(denoised: Array) -> Array:
    """Returns the network's output converted to metres; the lowest height is 0."""
    unit = np.clip((denoised + 1) / 2, 0, 1)
    metres = _LINEAR * np.sinh(unit * np.arcsinh(_HIGHEST / _LINEAR))
    return np.asarray(metres - metres.min(), np.float32)
