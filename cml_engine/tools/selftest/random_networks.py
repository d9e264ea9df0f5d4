"""Networks with random weights, written as ncnn's files: convolutions and transformer blocks.

``.param`` is text with a line per layer, ``.bin`` has the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cml_engine.io.atomic_write import write_atomically

Array = NDArray[np.float32]
_MAGIC = 7767517
#: the flag before 32-bit float weights
_FLAG = np.uint32(0).tobytes()


@dataclass(frozen=True)
class _Layer:
    type: str
    inputs: tuple[str, ...]
    output: str
    numbers: str
    weights: bytes


def flagged(values: Array) -> bytes:
    """Returns the values as bytes of 32-bit floats, after ncnn's flag for that type."""
    return _FLAG + plain(values)


def plain(*arrays: Array) -> bytes:
    """Returns the arrays as bytes of 32-bit floats, one after the other, without a flag."""
    return b"".join(np.ascontiguousarray(array, np.float32).tobytes() for array in arrays)


def extents(shape: Sequence[int]) -> str:
    """Returns a shape with a batch of one as ncnn's parameters: ``0=width 1=height 2=channels``."""
    return " ".join(f"{key}={extent}" for key, extent in enumerate(reversed(shape[1:])))


def _reader(name: str, readers: Mapping[str, int], served: dict[str, int]) -> str:
    """Returns the name of the split layer's output for the tensor's next reader.

    ``served`` counts the readers served so far and is changed. A tensor with one reader keeps its
    name.
    """
    if readers[name] == 1:
        return name
    served[name] += 1
    return f"{name}_{served[name] - 1}"


def _split(name: str, count: int) -> Iterator[str]:
    if count > 1:
        copies = " ".join(f"{name}_{i}" for i in range(count))
        yield f"Split split_{name} 1 {count} {name} {copies}"


_EPSILON = 1e-5
#: added to the scores of later tokens (the causal mask)
_NEVER = -1e4
#: ncnn's parameters of activations that are fused into a convolution
_RELU, _LEAKY, _RELU6 = " 9=1", " 9=2 -23310=1,0.2", " 9=3 -23310=2,0.0,6.0"


class NcnnNetwork:
    """The layers of a network for ncnn's files. A layer has the name of its one output."""

    def __init__(self) -> None:
        self._layers: list[_Layer] = []

    def layer(
        self,
        type: str,
        inputs: Sequence[str],
        output: str,
        numbers: str = "",
        filter: Array | None = None,
        bias: Array | None = None,
        stored: bytes = b"",
    ) -> str:
        """Adds a layer and returns ``output``, the name of its result.

        ``numbers`` are ncnn's parameters as text. The weights in the .bin are the ``filter``
        after a flag, the ``bias`` without one, then the bytes in ``stored``.
        """
        weights = b"" if filter is None else flagged(filter)
        weights += b"" if bias is None else plain(bias)
        self._layers.append(_Layer(type, tuple(inputs), output, numbers, weights + stored))
        return output

    def save(self, param: Path, weights: Path) -> None:
        """Writes the network to the files ``param`` and ``weights``.

        A tensor that is read more than once goes through a split layer, as ncnn requires.
        """
        readers = Counter(name for layer in self._layers for name in layer.inputs)
        served: dict[str, int] = dict.fromkeys(readers, 0)
        lines: list[str] = []
        for layer in self._layers:
            names = [_reader(name, readers, served) for name in layer.inputs]
            fields = [layer.type, layer.output, len(names), 1, *names, layer.output, layer.numbers]
            lines.append(" ".join(map(str, fields)).rstrip())
            lines += _split(layer.output, readers[layer.output])
        tensors = sum(int(line.split()[3]) for line in lines)
        head = f"{_MAGIC}\n{len(lines)} {tensors}\n"
        write_atomically(param, head + "\n".join(lines) + "\n")
        write_atomically(weights, b"".join(layer.weights for layer in self._layers))


class RandomNetwork(NcnnNetwork):
    """A network under construction, with one input ``data`` of ``shape``.

    Each method adds layers and returns the name of their result; its arguments name the results
    that these layers read.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self._random = np.random.default_rng(1)
        self._channels = {"data": shape[1]}
        self.layer("Input", (), "data", extents(shape))

    def values(self, shape: tuple[int, ...], deviation: float) -> Array:
        normal: Array = self._random.standard_normal(shape).astype(np.float32)
        return normal * np.float32(deviation)

    def linear(self, x: str, name: str, in_features: int, out_features: int) -> str:
        filter = self.values((out_features, in_features), in_features**-0.5)
        numbers = f"0={out_features} 1=1 2={filter.size}"
        bias = self.values((out_features,), 0.1)
        return self.layer("InnerProduct", [x], name, numbers, filter, bias)

    # -- maps of channels

    def conv(
        self, x: str, out: int, kernel: int, *, stride: int = 1, groups: int = 1,
        activation: str = _RELU,
    ) -> str:  # fmt: skip
        """Adds a convolution to ``out`` channels, with bias and activation.

        The weights keep the magnitude of the values (He et al., 2015).
        """
        group_channels = self._channels[x] // groups
        gain = 2.0 if activation else 1.0
        filter = self.values(
            (out, group_channels, kernel, kernel),
            (gain / (group_channels * kernel * kernel)) ** 0.5,
        )
        numbers = f"0={out} 1={kernel} 3={stride} 4={kernel // 2} 5=1 6={filter.size}"
        numbers += f" 7={groups}" if groups > 1 else ""
        type = "ConvolutionDepthWise" if groups > 1 else "Convolution"
        return self._map(type, [x], out, numbers + activation, filter, self.values((out,), 0.1))

    def max_pool(self, x: str) -> str:
        return self._map("Pooling", [x], self._channels[x], "0=0 1=2 2=2 5=1")

    def mean(self, x: str) -> str:
        return self._map("Pooling", [x], self._channels[x], "0=1 4=1")

    def upsample(self, x: str) -> str:
        return self._map("Interp", [x], self._channels[x], "0=1 1=2.0 2=2.0")

    def concat(self, a: str, b: str) -> str:
        return self._map("Concat", [a, b], self._channels[a] + self._channels[b], "0=0")

    def add(self, a: str, b: str) -> str:
        return self._map("BinaryOp", [a, b], self._channels[a], "0=0")

    def dense_residual(self, x: str, growth: int) -> str:
        dense = x
        for _ in range(4):
            dense = self.concat(dense, self.conv(dense, growth, 3, activation=_LEAKY))
        return self.add(self.conv(dense, self._channels[x], 3, activation=""), x)

    def inverted_residual(self, x: str, out: int, stride: int) -> str:
        expanded = 4 * self._channels[x]
        y = self.conv(x, expanded, 1, activation=_RELU6)
        y = self.conv(y, expanded, 3, stride=stride, groups=expanded, activation=_RELU6)
        y = self.conv(y, out, 1, activation="")
        same = stride == 1 and self._channels[x] == out
        return self.add(y, x) if same else y

    def _map(
        self, type: str, inputs: list[str], channels: int, numbers: str,
        filter: Array | None = None, bias: Array | None = None,
    ) -> str:  # fmt: skip
        name = f"{type.lower()}{len(self._channels)}"
        self._channels[name] = channels
        return self.layer(type, inputs, name, numbers, filter, bias)

    # -- rows of tokens

    def norm(self, x: str, name: str, width: int) -> str:
        scale, offset = 1 + self.values((width,), 0.1), self.values((width,), 0.1)
        numbers = f"0={width} 1={_EPSILON} 2=1"
        return self.layer("LayerNorm", [x], name, numbers, stored=plain(scale, offset))

    def attention(self, x: str, name: str, width: int, heads: int, mask: list[str]) -> str:
        numbers = f"0={width} 1={heads} 2={width * width} 3={width} 4={width} 5={len(mask)}"
        stored = b"".join(
            flagged(self.values((width, width), width**-0.5)) + plain(self.values((width,), 0.1))
            for _ in range(4)
        )
        return self.layer("MultiHeadAttention", [x, *mask], name, numbers, stored=stored)


def mobilenet(side: int = 128) -> RandomNetwork:
    """Returns a network like MobileNetV2 (Sandler et al., 2018), with fewer blocks and 100 classes.

    It has inverted residuals with depthwise convolutions and ReLU6; the input is [1, 3, side,
    side].
    """
    net = RandomNetwork((1, 3, side, side))
    x = net.conv("data", 32, 3, stride=2, activation=_RELU6)
    for out, stride, repeats in ((16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 3), (96, 1, 2)):
        for index in range(repeats):
            x = net.inverted_residual(x, out, stride if index == 0 else 1)
    x = net.conv(x, 320, 1, activation=_RELU6)
    net.linear(net.mean(x), "classes", 320, 100)
    return net


def unet(side: int = 128) -> RandomNetwork:
    """Returns a U-Net of three levels with skip connections (Ronneberger et al., 2015).

    It has 32 channels at the top and nearest-neighbour upsampling; the input is [1, 3, side, side].
    """
    net = RandomNetwork((1, 3, side, side))
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


def rrdb(side: int = 64) -> RandomNetwork:
    """Returns a network with one residual in residual dense block (Wang et al., 2018, ESRGAN).

    It has 64 channels that grow by 32; the input is [1, 3, side, side].
    """
    net = RandomNetwork((1, 3, side, side))
    first = x = net.conv("data", 64, 3, activation="")
    for _ in range(3):
        x = net.dense_residual(x, 32)
    net.conv(net.add(x, first), 3, 3, activation="")
    return net


def transformer(tokens: int, width: int, heads: int, causal: bool = False) -> RandomNetwork:
    """Returns two transformer blocks: layer norm, attention, layer norm, matrices around GELU.

    Attention and matrices each have a residual (Vaswani et al., 2017); the norms come first, as
    in ViT and GPT-2. The input is [1, tokens, width].
    """
    net, x = RandomNetwork((1, tokens, width)), "data"
    layer, mask = net.layer, np.triu(np.full((1, tokens, tokens), _NEVER, np.float32), 1)
    masks = []
    if causal:
        masks = [layer("MemoryData", (), "mask", extents(mask.shape), bias=mask)]
    for b in ("b0", "b1"):
        mixed = net.attention(net.norm(x, f"{b}_n1", width), f"{b}_a", width, heads, masks)
        x = layer("BinaryOp", [x, mixed], f"{b}_r1", "0=0")
        expanded = net.linear(net.norm(x, f"{b}_n2", width), f"{b}_w", width, 4 * width)
        expanded = layer("GELU", [expanded], f"{b}_g", "0=0")
        projected = net.linear(expanded, f"{b}_v", 4 * width, width)
        x = layer("BinaryOp", [x, projected], f"{b}_r2", "0=0")
    return net


def vit() -> RandomNetwork:
    """Returns blocks of a tiny ViT (Touvron et al., 2021, DeiT-Ti): 14 x 14 patches and a class."""
    return transformer(197, 192, 3)


def gpt() -> RandomNetwork:
    """Returns blocks of a small GPT, whose attention is causal."""
    return transformer(128, 256, 8, causal=True)
