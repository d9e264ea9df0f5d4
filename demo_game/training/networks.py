"""The three agents, each written once against :class:`Ops`.

One implementation trains, another exports. Nothing is padded: a result depends on the numbers
around its place and not on where the tile ends, so neighbours agree where they overlap. Heights
enter as differences to the neighbouring samples, in units of the cell, and land high above the
sea looks like land near it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from demo_game.training.data import catmull_rom

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Ops(Protocol):
    """The interface of the operators in the agents, with NNEF's meaning, on any tensor type."""

    def conv(self, x: Any, name: str, channels: int, size: int, *, stride: int = 1,
             dilation: int = 1, last: bool = False) -> Any:  # fmt: skip
        """Returns a convolution with the weights and bias of that name.

        With ``last`` they start at 0.
        """
        ...

    def fixed(self, x: Any, name: str, weights: Array, bias: Array | None = None) -> Any: ...
    def add(self, x: Any, y: Any) -> Any: ...
    def mul(self, x: Any, y: Any) -> Any: ...
    def div(self, x: Any, y: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def clamp(self, x: Any, low: float, high: float) -> Any: ...
    def log2(self, x: Any) -> Any: ...
    def wave(self, x: Any) -> Any:
        """Returns a triangle wave of ``x``, of period 1 and height 0.5."""
        ...

    def concat(self, *xs: Any) -> Any: ...
    def crop(self, x: Any, before: int, after: int) -> Any: ...
    def depth_to_space(self, x: Any, scale: int) -> Any: ...


def differences(neighbours: tuple[int, ...]) -> Array:
    """Returns convolution weights (N, 1, 3, 3): each neighbour less the middle.

    ``neighbours`` counts the nine samples row by row.
    """
    weights = np.zeros((len(neighbours), 1, 3, 3), np.float32)
    weights[:, :, 1, 1] = -1
    for channel, at in enumerate(neighbours):
        weights[channel, 0, at // 3, at % 3] = 1
    return weights


#: north, west, east, south; and all eight
CROSS, AROUND = (1, 3, 5, 7), (0, 1, 2, 3, 5, 6, 7, 8)


def upres(o: Ops, inputs: Mapping[str, Any], channels: int = 40) -> dict[str, Any]:
    """Applies the upres agent: coarse heights and noise to eroded ``heights``, four times finer."""
    coarse, detail, cell = inputs["coarse"], inputs["detail"], inputs["cell"]
    around = o.fixed(coarse, "differences", differences(AROUND))
    slopes = o.div(around, o.mul(cell, 4.0))
    # how many cells above the sea: rain cuts nothing below it
    above = o.clamp(o.div(coarse, o.mul(cell, 16.0)), -1.0, 1.0)
    level = o.conv(o.mul(o.add(o.log2(cell), -5.0), 0.33), "level", channels, 1)
    x = o.add(o.conv(slopes, "slopes", channels, 1), level)
    x = o.add(o.conv(above, "above", channels, 3), x)
    x = o.relu(o.add(o.conv(detail, "detail", channels, 3), x))
    for layer in range(2, 6):
        x = o.relu(o.conv(x, f"conv{layer}", channels, 3))
    # a shortcut past all layers for linear work such as smoothing
    straight = o.conv(o.crop(detail, 5, 5), "straight", 16, 3, last=True)
    cut = o.add(o.conv(x, "conv6", 16, 3, last=True), straight)
    smooth = o.fixed(o.crop(coarse, 5, 4), "bicubic", catmull_rom())
    heights = o.add(o.mul(cut, cell), smooth)
    return {"heights": o.depth_to_space(heights, 4)}


def _surroundings(o: Ops, slopes: Any, channels: int = 12) -> Any:
    """Returns features of the land around each second inner sample, from slopes at 94 x 94."""
    x = o.relu(o.conv(slopes, "wide1", channels, 4, stride=2))
    x = o.relu(o.conv(x, "wide2", channels, 3))
    x = o.relu(o.conv(x, "wide3", channels, 3, dilation=2))
    x = o.relu(o.conv(x, "wide4", channels, 3, dilation=2))
    x = o.relu(o.conv(x, "wide5", channels, 3))
    return x


def texture(o: Ops, inputs: Mapping[str, Any], channels: int = 24) -> dict[str, Any]:
    """Applies the texture agent: heights, moisture and grain to ``albedo`` (colours and roughness).

    The result has two texels per sample.
    """
    given = near(o, inputs)
    wide = _surroundings(o, given["slopes"])
    wide = o.depth_to_space(o.conv(wide, "wide6", 4 * channels, 3), 2)
    x = o.relu(o.conv(given["all"], "near1", channels, 3))
    x = o.relu(o.add(o.conv(x, "near2", channels, 3), wide))
    x = o.relu(o.conv(x, "mix1", 32, 1))
    x = o.relu(o.conv(x, "mix2", 32, 1))
    x = o.conv(x, "albedo", 16, 1, last=True)
    return {"albedo": o.clamp(o.depth_to_space(x, 2), 0.0, 1.0)}


#: factors per metre and offsets of the altitude features: beaches, foothills, mountains
ALTITUDES = ((0.01, 0.002, 0.0015), (0.0, 0.0, -1.5))
#: factors per cell of height: the shore's two scales, and two periodic layers of rock
SHORES = (0.5, 0.0625)
STRATA = (0.31, 0.117)


def _column(values: tuple[float, ...]) -> Array:
    return np.array(values, np.float32).reshape(-1, 1, 1, 1)


def near(o: Ops, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns untrained features: ``slopes`` at 94 x 94, and ``all`` 16 channels at 68 x 68."""
    heights, cell = inputs["heights"], inputs["cell"]
    slopes = o.div(o.fixed(heights, "differences", differences(CROSS)), cell)
    inner = o.crop(heights, 14, 14)
    cells = o.div(inner, cell)
    factors, offsets = ALTITUDES
    altitude = o.fixed(inner, "altitudes", _column(factors), np.array([offsets], np.float32))
    everything = o.concat(
        o.crop(slopes, 13, 13),
        o.crop(inputs["grain"], 14, 14),
        o.crop(inputs["moisture"], 14, 14),
        o.clamp(altitude, -1.0, 1.0),
        o.clamp(o.fixed(cells, "shores", _column(SHORES)), -1.0, 1.0),
        o.wave(o.fixed(cells, "strata", _column(STRATA))),
    )
    return {"slopes": slopes, "all": everything}


def population(o: Ops, inputs: Mapping[str, Any], channels: int = 32) -> dict[str, Any]:
    """Applies the population agent: heights, moisture and grain to ``density`` of plants, rocks.

    Inside it works at half the resolution.
    """
    given = near(o, inputs)
    wide = _surroundings(o, given["slopes"])
    x = o.relu(o.conv(given["all"], "near1", channels, 4, stride=2))
    x = o.conv(x, "near2", channels, 2)
    x = o.relu(o.add(x, o.conv(wide, "wide6", channels, 3)))
    x = o.relu(o.conv(x, "mix1", channels, 1))
    x = o.conv(x, "density", 12, 1, last=True)
    return {"density": o.clamp(o.depth_to_space(x, 2), 0.0, 1.0)}


_SEEN: Mapping[str, Shape] = {
    "heights": (1, 1, 96, 96),
    "moisture": (1, 1, 96, 96),
    "grain": (1, 4, 96, 96),
    "cell": (1, 1, 1, 1),
}
#: each agent's network and the shapes of its inputs, by name
AGENTS: Mapping[str, tuple[Callable[..., dict[str, Any]], Mapping[str, Shape]]] = {
    "upres": (
        upres,
        {"coarse": (1, 1, 36, 36), "detail": (1, 16, 36, 36), "cell": (1, 1, 1, 1)},
    ),
    "texture": (texture, _SEEN),
    "population": (population, _SEEN),
}
