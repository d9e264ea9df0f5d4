"""Networks made by the bench, as a list of layers that is written for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
Kind = Literal["conv", "max_pool", "upsample", "add", "concat", "mean", "linear"]
Activation = Literal["", "relu", "relu6"]


@dataclass(frozen=True)
class NetworkLayer:
    """A layer that computes ``output`` from ``inputs``.

    ``numbers`` are the parameters of its type: ``kernel``, ``stride``, ``pad`` and ``groups`` of a
    conv. ``filter`` [O, I/groups, k, k] or [O, I] and ``bias`` [O] are weights.
    """

    kind: Kind
    inputs: tuple[str, ...]
    output: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    activation: Activation = ""
    filter: Array | None = None
    bias: Array | None = None


class LayeredNetwork:
    """A network under construction; each method adds a layer and returns the name of its result.

    A method's arguments name the results that the new layer reads; the network's input is "data".
    Weights are random and keep the magnitude of the values from layer to layer (He et al., 2015).
    """

    def __init__(self, shape: tuple[int, int, int, int], seed: int = 1) -> None:
        self.shape = shape
        self.layers: list[NetworkLayer] = []
        self.channels = {"data": shape[1]}
        self._random = np.random.default_rng(seed)

    def conv(
        self, source: str, out: int, kernel: int, *, stride: int = 1, groups: int = 1,
        activation: Activation = "relu",
    ) -> str:  # fmt: skip
        """Adds a convolution with bias and activation to ``out`` channels.

        ``stride`` divides the size.
        """
        taken = self.channels[source] // groups
        numbers = {"kernel": kernel, "stride": stride, "pad": kernel // 2, "groups": groups}
        gain = 2.0 if activation else 1.0
        weights = self._weights((out, taken, kernel, kernel), gain / (taken * kernel * kernel))
        return self._add("conv", (source,), out, numbers, activation, weights, self._bias(out))

    def max_pool(self, source: str) -> str:
        """Adds a 2x2 max pooling of stride 2."""
        return self._add("max_pool", (source,), self.channels[source])

    def upsample(self, source: str) -> str:
        """Adds a 2x nearest-neighbour upsampling."""
        return self._add("upsample", (source,), self.channels[source])

    def add(self, a: str, b: str) -> str:
        """Adds the elementwise sum of two results."""
        return self._add("add", (a, b), self.channels[a])

    def concat(self, a: str, b: str) -> str:
        """Adds the concatenation of two results along the channels."""
        return self._add("concat", (a, b), self.channels[a] + self.channels[b])

    def mean(self, source: str) -> str:
        """Adds the mean over all positions of each channel."""
        return self._add("mean", (source,), self.channels[source])

    def linear(self, source: str, out: int) -> str:
        """Adds a fully connected layer with bias and ``out`` outputs."""
        taken = self.channels[source]
        weights = self._weights((out, taken), 1 / taken)
        return self._add("linear", (source,), out, filter=weights, bias=self._bias(out))

    def _weights(self, shape: tuple[int, ...], variance: float) -> Array:
        values: Array = self._random.standard_normal(shape).astype(np.float32)
        return values * np.float32(variance**0.5)

    def _bias(self, count: int) -> Array:
        return (0.1 * self._random.standard_normal(count)).astype(np.float32)

    def _add(
        self,
        kind: Kind,
        inputs: tuple[str, ...],
        channels: int,
        numbers: Mapping[str, int] | None = None,
        activation: Activation = "",
        filter: Array | None = None,
        bias: Array | None = None,
    ) -> str:
        name = f"{kind}{len(self.layers)}"
        self.layers.append(
            NetworkLayer(kind, inputs, name, numbers or {}, activation, filter, bias)
        )
        self.channels[name] = channels
        return name

    @property
    def output(self) -> str:
        """The name of the last layer's result."""
        return self.layers[-1].output


def mobilenet(side: int) -> LayeredNetwork:
    """Returns a network like MobileNetV2 (Sandler et al., 2018), with fewer blocks and 100 classes.

    It has inverted residuals with depthwise convolutions and ReLU6; the input is [1, 3, side,
    side].
    """
    net = LayeredNetwork((1, 3, side, side))
    x = net.conv("data", 32, 3, stride=2, activation="relu6")
    for out, stride, repeats in ((16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 3), (96, 1, 2)):
        for index in range(repeats):
            x = _inverted_residual(net, x, out, stride if index == 0 else 1)
    x = net.conv(x, 320, 1, activation="relu6")
    net.linear(net.mean(x), 100)
    return net


def _inverted_residual(net: LayeredNetwork, source: str, out: int, stride: int) -> str:
    wide = 4 * net.channels[source]
    x = net.conv(source, wide, 1, activation="relu6")
    x = net.conv(x, wide, 3, stride=stride, groups=wide, activation="relu6")
    x = net.conv(x, out, 1, activation="")
    return net.add(x, source) if stride == 1 and net.channels[source] == out else x


def unet(side: int) -> LayeredNetwork:
    """Returns a U-Net of three levels with skip connections (Ronneberger et al., 2015).

    It has 32 channels at the top and nearest-neighbour upsampling; the input is [1, 3, side, side].
    """
    net = LayeredNetwork((1, 3, side, side))
    x, skips = "data", []
    for channels in (32, 64, 128):
        x = net.conv(net.conv(x, channels, 3), channels, 3)
        skips.append(x)
        x = net.max_pool(x)
    x = net.conv(net.conv(x, 256, 3), 128, 3)
    for channels, skip in zip((128, 64, 32), reversed(skips), strict=True):
        x = net.concat(net.upsample(x), skip)
        x = net.conv(net.conv(x, channels, 3), max(32, channels // 2), 3)
    net.conv(x, 4, 1, activation="")
    return net
