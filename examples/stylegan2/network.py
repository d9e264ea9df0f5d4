"""The generator as a graph of NNEF's standard operators.

It computes what the paper's formulas say, in an order that leaves every large weight a constant:

- A modulated convolution scales its weights by the style ``s``, ``w'[o,i] = w[o,i] s[i]``, and
  divides by ``sigma[o] = sqrt(sum of w'[o,i]^2 + 1e-8)``. Convolution is linear: the same comes of
  scaling the input by ``s`` and dividing the output by ``sigma``, and ``sigma^2`` is the product of
  ``s^2`` with the matrix of ``sum over taps of w^2``.
- Division, bias, noise and the gain of sqrt(2) are one ``batch_normalization``: its variance is
  ``sigma^2 - 1e-8``, its mean ``-bias sigma``, its scale the gain, its offset the noise times the
  gain. The leaky ReLU comes after the gain, for ``f(g x) = g f(x)`` where g > 0.
- An upsampling layer is ``deconv`` with stride 2, then the filter [1,3,3,1] as a depthwise
  ``conv``, in the paper's order.
- The RGB image is upsampled by ``multilinear_upsample`` with a border of zeros, whose weights 3/4
  and 1/4 are that filter.
- ``toRGB`` has few weights: they are scaled themselves, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from cml_engine import Graph
from cml_engine.formats import ImportBuilder
from examples.stylegan2.parameters import Array, Config

_GAIN = sqrt(2)
_EPSILON = 1e-8


def build(config: Config, parameters: Mapping[str, Array]) -> Graph:
    """Returns the graph ``z [1, latent] -> image [1, 3, resolution, resolution]``.

    The image is in [-1, 1]. The parameters are named as in
    :func:`examples.stylegan2.parameters.random_parameters`.
    """
    return _Network(config, parameters).graph()


class _Network:
    def __init__(self, config: Config, parameters: Mapping[str, Array]) -> None:
        self.config, self.parameters = config, parameters
        self.make = ImportBuilder()
        self.filters: dict[int, str] = {}

    def graph(self) -> Graph:
        z = self.make.input("z", (1, self.config.latent))
        w = self.mapping(z)
        x = self.variable("synthesis.b4.const", self.parameters["synthesis.b4.const"][None])
        image = ""
        for resolution in self.config.resolutions:
            block = f"synthesis.b{resolution}"
            for layer in self.config.layers(resolution):
                x = self.layer(f"{block}.{layer}", x, w, up=layer == "conv0")
            image = self.to_rgb(f"{block}.torgb", x, w, image)
        return self.make.graph("stylegan2", [image])

    def variable(self, name: str, values: Array) -> str:
        return self.make.variable(name, values)

    def node(self, op: str, name: str, *inputs: str | float, **attrs: object) -> str:
        """Adds one operator and returns its result's name; input numbers become literals."""
        names = [x if isinstance(x, str) else self.make.literal(x) for x in inputs]
        return self.make.node(op, names, name, **attrs)

    def mapping(self, z: str) -> str:
        """Adds the mapping network from the latent ``z`` to ``w`` and returns the name of ``w``.

        It normalizes ``z`` and applies eight layers. The multiplier of the learning rate,
        1/sqrt(inputs) and the gain are part of the stored weights.
        """
        square = self.node("mean_reduce", "z_square", self.node("sqr", "z_sqr", z), axes=[1])
        norm = self.node("rsqrt", "z_norm", self.node("add", "z_safe", square, _EPSILON))
        x = self.node("mul", "z_unit", z, norm)
        for i in range(self.config.mapping_layers):
            name = f"mapping.fc{i}"
            x = self.linear(name, f"{name}.sum", x, gain=self.config.mapping_rate * _GAIN)
            x = self.node("leaky_relu", name, x, alpha=0.2)
        return x

    def linear(self, name: str, result: str, x: str, gain: float) -> str:
        """Adds the linear layer ``name`` of ``x`` and returns ``result``, the name of its output.

        Weights of variance 1 are scaled to keep the variance of ``x``, times ``gain``.
        """
        values = self.parameters[f"{name}.weight"]
        weight = self.variable(f"{name}.weight", values * (gain / sqrt(values.shape[1])))
        bias = self.variable(f"{name}.bias", self.parameters[f"{name}.bias"][None] * gain)
        return self.node("linear", result, x, weight, bias)

    def style(self, name: str, w: str, gain: float = 1.0) -> str:
        """Adds the affine layer of ``w`` that yields a convolution's style; returns its name.

        The style, ``[1, channels]``, scales the convolution's inputs.
        """
        return self.linear(f"{name}.affine", f"{name}.style", w, gain)

    def layer(self, name: str, x: str, w: str, up: bool) -> str:
        """Adds a modulated 3x3 convolution with noise, bias, activation; returns the result's name.

        With ``up`` the resolution is doubled.
        """
        weight = self.parameters[f"{name}.weight"]
        style = self.style(name, w)
        square = self.node("sqr", f"{name}.style2", style)
        strength = self.parameters[f"{name}.noise_strength"] * _GAIN
        noise = self.parameters[f"{name}.noise_const"][None, None] * strength
        offset = self.variable(f"{name}.noise", noise)
        scaled = self.node("mul", f"{name}.scaled", x, style)
        convolved = (self.upsampled if up else self.conv)(name, scaled, weight)
        statistics = self.statistics(name, square, weight, self.parameters[f"{name}.bias"])
        normal = self.node(
            "batch_normalization", f"{name}.normal", convolved, *statistics, offset, _GAIN,
            epsilon=_EPSILON,
        )  # fmt: skip
        return self.node("leaky_relu", name, normal, alpha=0.2)

    def statistics(self, name: str, square: str, weight: Array, bias: Array) -> tuple[str, str]:
        """Adds the mean and variance of a layer's normalization and returns their names.

        With them, the normalization divides by ``sigma`` and adds the bias (module text).
        """
        squares = self.variable(f"{name}.squares", np.square(weight).sum((2, 3)))
        variance = self.node("linear", f"{name}.variance", square, squares, 0.0)
        safe = self.node("add", f"{name}.safe", variance, _EPSILON)
        sigma = self.node("sqrt", f"{name}.sigma", safe)
        mean = self.node("mul", f"{name}.mean", self.variable(f"{name}.bias", -bias[None]), sigma)
        return mean, variance

    def conv(self, name: str, x: str, weight: Array) -> str:
        filter = self.variable(f"{name}.weight", weight)
        return self.node("conv", f"{name}.conv", x, filter, 0.0, padding=[(1, 1), (1, 1)])

    def upsampled(self, name: str, x: str, weight: Array) -> str:
        """Adds a convolution that doubles the resolution and returns the result's name.

        This is a ``deconv``, whose filter is (in, out, …), then the filter [1,3,3,1] on each
        channel.
        """
        filter = self.variable(f"{name}.weight", weight.swapaxes(0, 1))
        padding = [(0, 0), (0, 0)]
        x = self.node("deconv", f"{name}.deconv", x, filter, 0.0, stride=[2, 2], padding=padding)
        smooth = self.filter(len(weight))
        padding = [(1, 1), (1, 1)]
        return self.node("conv", f"{name}.smooth", x, smooth, 0.0, padding=padding, groups=0)

    def filter(self, channels: int) -> str:
        """Returns the name of a constant: the filter [1,3,3,1] on both axes, for each channel.

        It is added once per number of channels. The filter's sum is 4, because upsampling
        inserts three zeros for every value.
        """
        if channels not in self.filters:
            row = np.array([1, 3, 3, 1], np.float32) / np.float32(4)
            filter = np.tile(np.outer(row, row), (channels, 1, 1, 1))
            self.filters[channels] = self.variable(f"smooth{channels}", filter)
        return self.filters[channels]

    def to_rgb(self, name: str, x: str, w: str, image: str) -> str:
        """Adds the block's RGB image to the upsampled ``image`` so far; returns the sum's name.

        The first block's image, for which ``image`` is "", is returned as it is.
        """
        values = self.parameters[f"{name}.weight"]
        style = self.style(name, w, gain=1 / sqrt(values.shape[1]))
        weight = self.variable(f"{name}.weight", values)
        filter = self.node("mul", f"{name}.filter", weight, style)
        bias = self.variable(f"{name}.bias", self.parameters[f"{name}.bias"][None])
        rgb = self.node("conv", name, x, filter, bias, padding=[(0, 0), (0, 0)])
        if not image:
            return rgb
        larger = self.node(
            "multilinear_upsample", f"{name}.image2", image, factor=[2, 2], method="symmetric",
            border="constant",
        )  # fmt: skip
        is_last = self.make.facts[larger].shape[3] == self.config.resolution
        return self.node("add", "image" if is_last else f"{name}.image", rgb, larger)
