"""Small graphs as networks have them, and random ones, to optimize and compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.graph import Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.passes.infer import infer_facts, infer_node
from cml_engine.testing import full_attrs

load_families()
Array = np.ndarray[Any, Any]


class Net:
    """A graph in the making: ``net.op(...)`` adds a node and returns its result's name."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.facts = {"x": Fact("scalar", shape)}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        node = Node(op, inputs, (name,), full_attrs(op, attrs))
        (self.facts[name],) = infer_node(node, self.facts)
        self.nodes.append(node)
        return name

    def split(self, x: str, axis: int, ratios: list[int]) -> list[str]:
        names = [f"t{len(self.nodes)}_{i}" for i in range(len(ratios))]
        node = Node(
            "split", (x,), tuple(names), full_attrs("split", {"axis": axis, "ratios": ratios})
        )
        self.facts |= zip(names, infer_node(node, self.facts), strict=True)
        self.nodes.append(node)
        return names

    def moments(self, x: str, axes: list[int]) -> tuple[str, str]:
        names = (f"t{len(self.nodes)}_m", f"t{len(self.nodes)}_v")
        node = Node("moments", (x,), names, full_attrs("moments", {"axes": axes}))
        self.facts |= zip(names, infer_node(node, self.facts), strict=True)
        self.nodes.append(node)
        return names

    def group_norm(self, x: str, groups: int) -> str:
        """As exporters write it: of the reshaped map, and every channel scaled and moved."""
        batch, channels, *size = self.shape(x)
        rest = channels // groups * int(np.prod(size))
        parts = self.op("reshape", x, shape=[batch, groups, rest])
        mean, variance = self.moments(parts, [2])
        offset, scale = self.random(1, groups), self.random(1, groups)
        even = self.op("batch_normalization", parts, mean, variance, offset, scale, epsilon=1e-3)
        y = self.op("reshape", even, shape=[batch, channels, *size])
        each = [1, channels, *[1] * len(size)]
        return self.op("add", self.op("mul", y, self.random(*each)), self.random(*each))

    def constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value, np.float32)
        self.facts[name] = Fact("scalar", self.constants[name].shape)
        return name

    def random(self, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        return self.constant(self.rng.uniform(low, high, shape))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.facts[name].shape

    def conv(self, x: str, channels: int, size: int = 3, groups: int = 1, **attrs: Any) -> str:
        inside = self.shape(x)[1]
        per_group = 1 if groups == 0 else inside // groups
        filter = self.random(channels, per_group, size, size, low=-0.5, high=0.5)
        return self.op("conv", x, filter, self.random(1, channels), groups=groups, **attrs)

    def deconv(self, x: str, channels: int, groups: int = 1) -> str:
        filter = self.random(self.shape(x)[1], channels // groups, 2, 2)
        bias = self.random(1, channels)
        return self.op("deconv", x, filter, bias, stride=[2, 2], groups=groups)

    def batch_norm(self, x: str) -> str:
        channels = self.shape(x)[1]
        mean, offset, scale = (self.random(1, channels) for _ in range(3))
        variance = self.random(1, channels, low=0.2, high=2.0)
        return self.op("batch_normalization", x, mean, variance, offset, scale, epsilon=1e-3)

    def graph(self, *outputs: str) -> Graph:
        facts = {n: f for n, f in self.facts.items() if n == "x" or n in self.constants}
        graph = Graph("net", ("x",), outputs, tuple(self.nodes), facts, self.constants)
        return infer_facts(graph)

    def input(self) -> dict[str, Array]:
        return {"x": self.rng.standard_normal(self.shape("x")).astype(np.float32)}


def mobilenet_block(size: int = 12, channels: int = 8) -> Net:
    """1x1, depthwise and 1x1, each with its batch normalization, around a residual."""
    net = Net(1, channels, size, size)
    six, zero = net.constant(6.0), net.constant(0.0)
    h = net.op("clamp", net.batch_norm(net.conv("x", 4 * channels, 1)), zero, six)
    h = net.op("pad", h, padding=[(0, 0), (0, 0), (1, 1), (1, 1)], border="constant", value=0.0)
    h = net.conv(h, 4 * channels, 3, groups=0, padding=[(0, 0), (0, 0)])
    h = net.op("clamp", net.batch_norm(h), zero, six)
    net.op("add", net.batch_norm(net.conv(h, channels, 1)), "x")
    return net


def unet_block(size: int = 12, channels: int = 8) -> Net:
    """Down, up, and the two joined."""
    net = Net(1, channels, size, size)
    left = net.op("relu", net.batch_norm(net.conv("x", channels)))
    low = net.conv(left, 2 * channels, 2, stride=[2, 2], padding=[(0, 0), (0, 0)])
    up = net.op("relu", net.batch_norm(net.deconv(net.batch_norm(low), channels)))
    joined = net.op("mul", up, left)
    net.op("relu", net.batch_norm(net.conv(joined, channels)))
    return net


def se_block(size: int = 12, channels: int = 8) -> Net:
    """Squeeze and excitation: channels scaled by what their means say."""
    net = Net(1, channels, size, size)
    h = net.batch_norm(net.conv("x", channels))
    mean = net.op("mean_reduce", h, axes=[2, 3])
    squeezed = net.op("relu", net.conv(mean, 4, 1))
    scale = net.op("sigmoid", net.conv(squeezed, channels, 1))
    net.op("relu", net.op("add", net.op("mul", h, scale), "x"))
    return net


def layer_norm(rows: int = 24, width: int = 20) -> Net:
    """Written out as an exporter does, and a GELU (its tanh form)."""
    net = Net(1, rows, width)
    mean = net.op("mean_reduce", "x", axes=[2])
    centred = net.op("sub", "x", mean)
    again = net.op("sub", "x", mean)
    variance = net.op("mean_reduce", net.op("mul", again, again), axes=[2])
    deviation = net.op("rsqrt", net.op("add", variance, net.constant(1e-5)))
    scaled = net.op("mul", net.op("mul", centred, deviation), net.random(1, 1, width))
    h = net.op("add", scaled, net.random(1, 1, width))
    cubed = net.op("mul", net.op("mul", net.op("sqr", h), h), net.constant(0.044715))
    inside = net.op("tanh", net.op("mul", net.op("add", h, cubed), net.constant(0.7978846)))
    half = net.op("mul", h, net.constant(0.5))
    net.op("mul", half, net.op("add", inside, net.constant(1.0)))
    return net


def dense_block(size: int = 12, channels: int = 8) -> Net:
    """Every convolution's result joined to all before it; then halves that gate each other."""
    net = Net(1, channels, size, size)
    h = net.op("relu", net.conv("x", channels))
    for _ in range(3):
        h = net.op("concat", h, net.op("relu", net.conv(h, channels)), axis=1)
    value, gate = net.split(net.op("tanh", net.conv(h, 4 * channels, 1)), 1, [1, 1])
    net.op("mul", value, net.op("sigmoid", net.conv(gate, 2 * channels, 1)))
    return net


def styled_block(size: int = 12, channels: int = 8) -> Net:
    """Two convolutions by a style, as in StyleGAN2: their inputs scaled by it, their results
    divided by what it makes of the weights, with noise for each position."""
    net = Net(1, channels, size, size)
    w = net.op("reshape", net.op("mean_reduce", "x", axes=[2, 3]), shape=[1, channels])
    h = "x"
    for _ in range(2):
        style = net.op(
            "sigmoid", net.op("linear", w, net.random(channels, channels), net.constant(0.0))
        )
        squares = net.random(channels, channels, low=0.5)
        variance = net.op("linear", net.op("sqr", style), squares, net.constant(0.0))
        conv = net.conv(net.op("mul", h, style), channels)
        noise, mean = net.random(1, 1, size, size), net.op("sqrt", variance)
        h = net.op(
            "batch_normalization", conv, mean, variance, noise, net.constant(1.5), epsilon=1e-3
        )
        h = net.op("leaky_relu", h, alpha=0.2)
    return net


def gate(size: int = 12, channels: int = 8) -> Net:
    """``h * sigmoid(h)`` of ``h = x * a + b``."""
    net = Net(1, channels, size, size)
    a, b = net.random(1, channels, size, size), net.random(1, channels, size, size)
    h = net.op("add", net.op("mul", "x", a), b)
    net.op("mul", h, net.op("sigmoid", h))
    return net


def sum_of_products(rows: int = 24, width: int = 20) -> Net:
    """``x * a + b * x``."""
    net = Net(1, rows, width)
    a, b = net.random(1, rows, width), net.random(1, rows, width)
    net.op("add", net.op("mul", "x", a), net.op("mul", b, "x"))
    return net


def gated_slices(size: int = 12, channels: int = 8) -> Net:
    """The slices of a convolution's result, one of which gates the other."""
    net = Net(1, channels, size, size)
    h = net.conv("x", 2 * channels)
    value, gate = (
        net.op("slice", h, axes=[1], begin=[i * channels], end=[(i + 1) * channels], stride=[1])
        for i in range(2)
    )
    net.conv(net.op("mul", net.op("tanh", value), net.op("sigmoid", gate)), channels)
    return net


def stacked_rows(rows: int = 24, width: int = 20) -> Net:
    """Four tensors, stacked and summed."""
    net = Net(rows, width)
    parts = [net.op("exp", net.op("mul", "x", net.random(rows, width))) for _ in range(4)]
    net.op("sum_reduce", net.op("stack", *parts, axis=0), axes=[0])
    return net


BLOCKS = {
    "styled": styled_block,
    "gate": gate,
    "sum of products": sum_of_products,
    "gated slices": gated_slices,
    "stacked rows": stacked_rows,
    "dense": dense_block,
    "mobilenet": mobilenet_block,
    "unet": unet_block,
    "se": se_block,
    "layer_norm": layer_norm,
}

_UNARY = ("relu", "sigmoid", "tanh", "neg", "abs", "copy", "sqr", "sin")
_BINARY = ("add", "sub", "mul", "min", "max")


def random_graph(seed: int, nodes: int = 14) -> tuple[Graph, dict[str, Array]]:
    """Any of what the passes look for, in any order, with any of its results as outputs."""
    rng = np.random.default_rng(seed)
    net = Net(int(rng.integers(1, 3)), int(rng.choice([3, 4, 8])), 5, 4, seed=seed)
    maps = ["x"]
    for _ in range(nodes):
        maps.append(random_node(net, maps, rng))
    names = [name for name in maps if name != "x"]
    extra: Any = rng.choice(names, 2) if rng.random() < 0.5 else []
    return net.graph(*dict.fromkeys([names[-1], *map(str, extra)])), net.input()


def random_node(net: Net, maps: list[str], rng: np.random.Generator) -> str:
    """One more node on feature maps; its result. Others that it makes are appended to them."""
    x = maps[-1] if rng.random() < 0.7 else str(rng.choice(maps))
    shape = net.shape(x)
    match rng.integers(10):
        case 0:
            return net.op(str(rng.choice(_UNARY)), x)
        case 1 | 2:
            alike = [n for n in maps if net.shape(n) == shape]
            pair = [x, str(rng.choice(alike))]
            return net.op(str(rng.choice(_BINARY)), *(pair if rng.random() < 0.5 else pair[::-1]))
        case 3:
            operand = net.random(*((1, shape[1]), (), (1, 1, shape[2]))[rng.integers(3)])
            pair = [x, operand] if rng.random() < 0.5 else [operand, x]
            return net.op(str(rng.choice(_BINARY)), *pair)
        case 4:
            return net.batch_norm(x)
        case 5:
            attrs: dict[str, Any] = {"padding": [(0, 1), (1, 1)]} if rng.random() < 0.5 else {}
            return net.conv(x, int(rng.choice([3, 4, 8])), int(rng.choice([1, 2])), **attrs)
        case 6:
            padding = [(0, 0), (0, 0), *((int(a), int(b)) for a, b in rng.integers(0, 2, (2, 2)))]
            return net.op("pad", x, padding=padding, border="constant", value=0.0)
        case 7:
            like = [n for n in maps if net.shape(n)[:1] + net.shape(n)[2:] == shape[:1] + shape[2:]]
            parts = [x, *map(str, rng.choice(like, 2))]
            return net.op("concat", *parts, axis=1) if shape[1] < 17 else net.op("exp", x)
        case 8:
            half = shape[1] // 2
            if 2 * half != shape[1]:
                return net.op("abs", x)
            names = net.split(x, 1, [1, 1])
            maps.append(names[0])
            return names[1]
        case _:
            axes = ([0, 1, 3, 2], [0, 1, 2, 3], [1, 0, 2, 3])[rng.integers(3)]
            return net.op("transpose", x, axes=axes)


def random_maps(seed: int, nodes: int = 12) -> tuple[Graph, dict[str, Array]]:
    """Operators that take feature maps in blocks of four channels, in any order, between two
    convolutions."""
    rng = np.random.default_rng(seed)
    net = Net(int(rng.integers(1, 3)), 3, 6, 8, seed=seed)
    maps = [net.conv("x", int(rng.choice([8, 12, 16])))]
    for _ in range(nodes):
        x = maps[-1] if rng.random() < 0.7 else str(rng.choice(maps))
        maps.append(random_map(net, x, maps, rng))
    return net.graph(net.conv(maps[-1], 3)), net.input()


def random_map(net: Net, x: str, maps: list[str], rng: np.random.Generator) -> str:
    """One more operator that takes ``x`` in blocks of four channels; its result."""
    batch, channels, *size = net.shape(x)
    pool: dict[str, Any] = {"size": [1, 1, 2, 3], "border": "ignore", "stride": [1, 1, 1, 2]}
    match rng.integers(12):
        case 0 | 1:
            groups = int(rng.choice([1, 1, 0, 2])) if channels % 2 == 0 else 1
            count = channels if groups != 1 else int(rng.choice([4, 6, 8, 12]))
            stride = [int(rng.integers(1, 3))] * 2
            return net.conv(x, count, int(rng.choice([1, 3])), groups=groups, stride=stride)
        case 2 if max(size) < 20:
            return net.deconv(x, int(rng.choice([4, 8])))
        case 3:
            return net.op(str(rng.choice(_UNARY)), x)
        case 4 | 5:
            alike = [n for n in maps if net.shape(n) == net.shape(x)]
            return net.op(str(rng.choice(_BINARY)), x, str(rng.choice(alike)))
        case 6:
            mean = net.op("mean_reduce", x, axes=[2, 3])
            return net.op("mul", x, net.op("sigmoid", net.conv(mean, channels, 1)))
        case 7 if min(size) > 1:
            return net.op(str(rng.choice(["max_pool", "avg_pool"])), x, **pool)
        case 8 if max(size) < 20:
            return net.op("nearest_upsample", x, factor=[2, 1])
        case 9 if max(size) < 20:
            linear = {"method": "symmetric", "border": "replicate"}
            return net.op("multilinear_upsample", x, factor=[1, 2], **linear)
        case 10 if channels % 8 == 0:
            maps.append(net.split(x, 1, [1, 1])[0])
            begin = {"axes": [1], "begin": [int(rng.integers(4, 6))], "end": [channels]}
            return net.op("slice", x, **begin, stride=[])
        case 11 if channels < 30:
            like = [n for n in maps if net.shape(n)[2:] == tuple(size)]
            return net.op("concat", x, str(rng.choice(like)), axis=1)
        case _:
            return net.op("prelu", x, net.random(1, channels))
