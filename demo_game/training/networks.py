"""The three agents, each written once against :class:`Ops`.

One implementation trains, another exports. Nothing is padded: a result depends on the numbers
around its place and not on where the tile ends, so neighbours agree where they overlap. Heights
enter as differences to the neighbouring samples, in units of the cell, and land high above the
sea looks like land near it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training.data import catmull_rom


class Arithmetic(Protocol):
    """The operators that tensors have themselves."""

    def __add__(self, other: Self | float, /) -> Self: ...
    def __sub__(self, other: Self | float, /) -> Self: ...
    def __mul__(self, other: Self | float, /) -> Self: ...
    def __truediv__(self, other: Self | float, /) -> Self: ...


T = TypeVar("T", bound=Arithmetic)


class Ops(Protocol[T]):
    """The interface of the operators in the agents, with NNEF's meaning, on tensors of type T."""

    def conv(self, x: T, name: str, channels: int, size: int, *, stride: int = 1,
             dilation: int = 1, last: bool = False) -> T:  # fmt: skip
        """Returns a convolution with the weights and bias of that name.

        With ``last`` they start at 0.
        """
        ...

    def fixed(self, x: T, name: str, weights: Array, bias: Array | None = None) -> T: ...
    def relu(self, x: T) -> T: ...
    def clamp(self, x: T, low: float, high: float) -> T: ...
    def log2(self, x: T) -> T: ...
    def wave(self, x: T) -> T:
        """Returns a triangle wave of ``x``, of period 1 and height 0.5."""
        ...

    def concat(self, *xs: T) -> T: ...
    def crop(self, x: T, before: int, after: int) -> T: ...
    def depth_to_space(self, x: T, scale: int) -> T: ...


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


def upres(o: Ops[T], inputs: Mapping[str, T]) -> T:
    """Applies the upres agent: coarse heights and noise to eroded heights, four times finer."""
    coarse, cell = inputs["coarse"], inputs["cell"]
    trained = {
        "around": o.fixed(coarse, "differences", differences(AROUND)) / (cell * 4.0),
        # how many cells above the sea: rain cuts nothing below it
        "above": o.clamp(coarse / (cell * 16.0), -1.0, 1.0),
        "size": o.log2(cell),
        "detail": inputs["detail"],
    }
    smooth = o.fixed(o.crop(coarse, 5, 4), "bicubic", catmull_rom())
    return o.depth_to_space(_residual(o, trained) * cell + smooth, 4)


def trained_upres(o: Ops[T], inputs: Mapping[str, T]) -> T:
    """Applies the trained part of the upres agent: the residual to bicubic heights, in cells."""
    return o.depth_to_space(_residual(o, inputs), 4)


def _residual(o: Ops[T], inputs: Mapping[str, T], channels: int = 40) -> T:
    level = o.conv((inputs["size"] + -5.0) * 0.33, "level", channels, 1)
    x = o.conv(inputs["around"], "slopes", channels, 1) + level
    x = o.conv(inputs["above"], "above", channels, 3) + x
    x = o.relu(o.conv(inputs["detail"], "detail", channels, 3) + x)
    for layer in range(2, 6):
        x = o.relu(o.conv(x, f"conv{layer}", channels, 3))
    # a shortcut past all layers for linear work such as smoothing
    straight = o.conv(o.crop(inputs["detail"], 5, 5), "straight", 16, 3, last=True)
    return o.conv(x, "conv6", 16, 3, last=True) + straight


#: factors per metre and offsets of the altitude features: beaches, foothills, mountains
ALTITUDES = ((0.01, 0.002, 0.0015), (0.0, 0.0, -1.5))
#: factors per cell of height: the shore's two scales, and two periodic layers of rock
SHORES = (0.5, 0.0625)
STRATA = (0.31, 0.117)


def _column(values: tuple[float, ...]) -> Array:
    return np.array(values, np.float32).reshape(-1, 1, 1, 1)


def near(o: Ops[T], inputs: Mapping[str, T]) -> dict[str, T]:
    """Returns untrained features: ``slopes`` at 94 x 94, and 16 ``features`` at 68 x 68."""
    heights, cell = inputs["heights"], inputs["cell"]
    slopes = o.fixed(heights, "differences", differences(CROSS)) / cell
    inner = o.crop(heights, 14, 14)
    cells = inner / cell
    factors, offsets = ALTITUDES
    altitude = o.fixed(inner, "altitudes", _column(factors), np.array([offsets], np.float32))
    features = o.concat(
        o.crop(slopes, 13, 13),
        o.crop(inputs["grain"], 14, 14),
        o.crop(inputs["moisture"], 14, 14),
        o.clamp(altitude, -1.0, 1.0),
        o.clamp(o.fixed(cells, "shores", _column(SHORES)), -1.0, 1.0),
        o.wave(o.fixed(cells, "strata", _column(STRATA))),
    )
    return {"slopes": slopes, "features": features}


def _surroundings(o: Ops[T], slopes: T, channels: int = 12) -> T:
    """Returns features of the land around each second inner sample, from slopes at 94 x 94."""
    x = o.relu(o.conv(slopes, "wide1", channels, 4, stride=2))
    x = o.relu(o.conv(x, "wide2", channels, 3))
    x = o.relu(o.conv(x, "wide3", channels, 3, dilation=2))
    x = o.relu(o.conv(x, "wide4", channels, 3, dilation=2))
    return o.relu(o.conv(x, "wide5", channels, 3))


def trained_texture(o: Ops[T], inputs: Mapping[str, T], channels: int = 24) -> T:
    """Applies the trained part of the texture agent: colours and roughness, 2 texels a sample."""
    context = _surroundings(o, inputs["slopes"])
    context = o.depth_to_space(o.conv(context, "wide6", 4 * channels, 3), 2)
    x = o.relu(o.conv(inputs["features"], "near1", channels, 3))
    x = o.relu(o.conv(x, "near2", channels, 3) + context)
    x = o.relu(o.conv(x, "mix1", 32, 1))
    x = o.relu(o.conv(x, "mix2", 32, 1))
    x = o.conv(x, "albedo", 16, 1, last=True)
    return o.clamp(o.depth_to_space(x, 2), 0.0, 1.0)


def trained_population(o: Ops[T], inputs: Mapping[str, T], channels: int = 32) -> T:
    """Applies the trained part of the population agent: densities of plants and rocks.

    Inside it works at half the resolution.
    """
    context = _surroundings(o, inputs["slopes"])
    x = o.relu(o.conv(inputs["features"], "near1", channels, 4, stride=2))
    x = o.conv(x, "near2", channels, 2)
    x = o.relu(x + o.conv(context, "wide6", channels, 3))
    x = o.relu(o.conv(x, "mix1", channels, 1))
    x = o.conv(x, "density", 12, 1, last=True)
    return o.clamp(o.depth_to_space(x, 2), 0.0, 1.0)


def texture(o: Ops[T], inputs: Mapping[str, T]) -> T:
    """Applies the texture agent."""
    return trained_texture(o, near(o, inputs))


def population(o: Ops[T], inputs: Mapping[str, T]) -> T:
    """Applies the population agent."""
    return trained_population(o, near(o, inputs))


class Network(Protocol):
    """A function that applies a network to its inputs and returns its output."""

    def __call__(self, o: Ops[T], inputs: Mapping[str, T], /) -> T: ...


@dataclass(frozen=True)
class AgentNetwork:
    """An agent's network: the function that applies it, its inputs' shapes, its output's name."""

    apply: Network
    shapes: Mapping[str, tuple[int, ...]]
    output: str


_CELL = (1, 1, 1, 1)
_SEEN = {"heights": (1, 1, 96, 96), "moisture": (1, 1, 96, 96), "grain": (1, 4, 96, 96),
         "cell": _CELL}  # fmt: skip
_NEAR = {"slopes": (1, 4, 94, 94), "features": (1, 16, 68, 68)}
AGENTS: Mapping[str, AgentNetwork] = {
    "upres": AgentNetwork(
        upres, {"coarse": (1, 1, 36, 36), "detail": (1, 16, 36, 36), "cell": _CELL}, "heights"
    ),
    "texture": AgentNetwork(texture, _SEEN, "albedo"),
    "population": AgentNetwork(population, _SEEN, "density"),
}
#: the trained part of each agent, which is also an integer network
TRAINED: Mapping[str, AgentNetwork] = {
    "upres": AgentNetwork(
        trained_upres,
        {"around": (1, 8, 34, 34), "above": (1, 1, 36, 36), "size": _CELL,
         "detail": (1, 16, 36, 36)},
        "residual",
    ),
    "texture": AgentNetwork(trained_texture, _NEAR, "albedo"),
    "population": AgentNetwork(trained_population, _NEAR, "density"),
}  # fmt: skip
