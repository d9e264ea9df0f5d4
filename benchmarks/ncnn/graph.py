"""Writes a graph of this engine as ncnn's .param and .bin.

It supports the operators of the bench's networks. ncnn has no batch axis: a tensor [1, C, H, W]
has three axes there, [1, W] has one. Activations are fused into the convolution before them. A
filter that is scaled along its inputs becomes a scaled input, because ncnn's GPU convolutions
require constant filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

import numpy as np

from benchmarks.ncnn.model import Array, NcnnParts
from cml_engine.ir.graph import Graph, Node

_UNARY = {"abs": 0, "floor": 2, "sqr": 4, "sqrt": 5, "rsqrt": 6, "log2": 8}
_BINARY = {"add": 0, "sub": 1, "mul": 2, "div": 3}
#: ncnn's names of - and / with a number on the left
_REVERSED = {"sub": 7, "div": 8}
#: the permutation of the axes of [1, C, r, r, H, W] in a pixel shuffle
_SHUFFLE = [0, 1, 4, 2, 5, 3]


class CannotWrite(Exception):
    """Raised for an operator or a value that ncnn's format cannot express."""


def graph_to_ncnn(graph: Graph, param: Path, weights: Path) -> None:
    """Writes the graph to the files ``param`` and ``weights``.

    Raises :class:`CannotWrite` if an operator has no counterpart in ncnn.
    """
    writer = _Writer(graph)
    for name in graph.inputs:
        writer.parts.input(name, graph.facts[name].shape)
    for node in graph.nodes:
        if not writer.written.issuperset(node.outputs):
            writer.node(node)
    writer.parts.save(param, weights)


class _Writer:
    """Writes a graph's operators as ncnn layers; ``parts`` has the layers written so far.

    The functions below the class write one type of operator each.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.parts = graph, NcnnParts()
        self.facts, self.constants = graph.facts, graph.constants
        self.readers = graph.consumers()
        self.makers = {name: node for node in graph.nodes for name in node.outputs}
        #: names written so far: results, and constants that were read as tensors
        self.written: set[str] = set()

    def node(self, node: Node) -> None:
        """Writes one operator, and the following ones that are fused with it, to ``parts``.

        Raises :class:`CannotWrite` if there is no ncnn layer for it.
        """
        if node.op in _BINARY:
            self.binary(node)
        elif node.op in _UNARY:
            self.unary(node)
        else:
            write = _WRITERS.get(node.op)
            if write is None:
                raise CannotWrite(f"no ncnn layer is known for {node.title}")
            write(self, node)
        self.written.update(node.outputs)

    # -- names and numbers

    def blob(self, tensor: str) -> str:
        """Returns the name under which a layer reads the tensor.

        A constant is written at its first use.
        """
        if tensor in self.constants and tensor not in self.written:
            self.written.add(tensor)
            self.parts.constant(tensor, self.constants[tensor])
        return tensor

    def number(self, tensor: str) -> float | None:
        """Returns the value of a constant of rank 0, or None for any other tensor."""
        values = self.constants.get(tensor)
        return float(values) if values is not None and values.shape == () else None

    def weights(self, node: Node, index: int) -> Array:
        """Returns the array of the node's operand ``index``.

        Raises :class:`CannotWrite` if it is no constant.
        """
        found = self.constants.get(node.inputs[index])
        if found is None:
            raise CannotWrite(f"{node.title}: ncnn wants operand {index} to be constant")
        return found

    def bias(self, node: Node, channels: int) -> Array:
        return np.broadcast_to(self.weights(node, 2).reshape(-1), (channels,))

    def only_reader(self, tensor: str) -> Node | None:
        """Returns the operator that reads the tensor if it is the only one, otherwise None.

        Returns None for an output of the graph too.
        """
        readers = self.readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.graph.roots else None

    # -- elementwise

    def scalar(self, number: int, x: str, value: float, output: str) -> str:
        return self.parts.layer("BinaryOp", [x], output, f"0={number} 1=1 2={value!r}")

    def pair(self, op: str, a: str, b: str, output: str) -> str:
        return self.parts.layer("BinaryOp", [a, b], output, f"0={_BINARY[op]}")

    def binary(self, node: Node) -> None:
        (a, b), output = node.inputs, node.outputs[0]
        left, right = self.number(a), self.number(b)
        if right is not None:
            self.scalar(_BINARY[node.op], self.blob(a), right, output)
        elif left is not None:
            self.scalar(_REVERSED.get(node.op, _BINARY[node.op]), self.blob(b), left, output)
        elif not self.scales_filter(node):
            self.pair(node.op, self.blob(a), self.blob(b), output)

    def scales_filter(self, node: Node) -> bool:
        """Returns True if the node multiplies a filter by a scale, for convolutions only.

        :func:`conv` then scales the input instead, and the node is not written.
        """
        if node.op != "mul":
            return False
        filter, style = node.inputs
        readers = self.readers.get(node.outputs[0], [])
        return (
            filter in self.constants and self.facts[style].rank == 2
            and all(r.op == "conv" and r.inputs[1] == node.outputs[0] for r in readers)
        )  # fmt: skip

    def unary(self, node: Node) -> None:
        output = node.outputs[0]
        result = f"{output}_ln" if node.op == "log2" else output
        self.parts.layer("UnaryOp", [self.blob(node.inputs[0])], result, f"0={_UNARY[node.op]}")
        if node.op == "log2":
            self.scalar(_BINARY["mul"], result, 1 / log(2), output)

    # -- windows

    def window(self, type: str, node: Node, x: str, filter: Array, channels: int) -> None:
        """Adds a layer for a convolution or deconvolution of ``x``, with bias and activation.

        ``type`` is ncnn's name of the layer without "DepthWise"; ``channels`` are the outputs.
        """
        groups = node.attrs.groups or self.facts[node.inputs[0]].shape[1]
        (top, bottom), (left, right) = node.attrs.padding
        stride, dilation = node.attrs.stride or (1, 1), node.attrs.dilation or (1, 1)
        numbers = {
            0: channels, 1: filter.shape[3], 11: filter.shape[2], 2: dilation[1], 12: dilation[0],
            3: stride[1], 13: stride[0], 4: left, 15: right, 14: top, 16: bottom, 5: 1,
            6: filter.size,
        }  # fmt: skip
        if groups > 1:
            type, numbers[7] = f"{type}DepthWise", groups
        output, activation = self.activation(node)
        words = " ".join(f"{key}={value}" for key, value in numbers.items())
        bias = self.bias(node, channels)
        self.parts.layer(type, [x], output, f"{words} {activation}".rstrip(), filter, bias)
        self.written.add(output)

    def activation(self, node: Node) -> tuple[str, str]:
        """Returns the name of the node's result and ncnn's parameters of a fused activation.

        If an activation is the only reader of the node, the result is the activation's.
        Otherwise the parameters are "".
        """
        reader = self.only_reader(node.outputs[0])
        if reader and reader.op == "relu":
            return reader.outputs[0], "9=1"
        if reader and reader.op == "leaky_relu":
            return reader.outputs[0], f"9=2 -23310=1,{reader.attrs.alpha}"
        return node.outputs[0], ""


#: the functions that write an operator, by its name
_WRITERS: dict[str, Callable[[_Writer, Node], None]] = {}


def _writes(function: Callable[[_Writer, Node], None]) -> Callable[[_Writer, Node], None]:
    """Registers the decorated function as the writer of the operator of the same name."""
    _WRITERS[function.__name__] = function
    return function


@_writes
def clamp(w: _Writer, node: Node) -> None:
    low, high = (float(w.weights(node, i)) for i in (1, 2))
    w.parts.layer("Clip", [w.blob(node.inputs[0])], node.outputs[0], f"0={low} 1={high}")


@_writes
def relu(w: _Writer, node: Node) -> None:
    w.parts.layer("ReLU", [w.blob(node.inputs[0])], node.outputs[0])


@_writes
def leaky_relu(w: _Writer, node: Node) -> None:
    slope = f"0={node.attrs.alpha}"
    w.parts.layer("ReLU", [w.blob(node.inputs[0])], node.outputs[0], slope)


@_writes
def batch_normalization(w: _Writer, node: Node) -> None:
    """Writes ``x a - mean a + offset`` with ``a = scale / sqrt(variance + epsilon)``.

    All terms are computed at run time; ``scale`` is a number.
    """
    x, mean, variance, offset = map(w.blob, node.inputs[:4])
    scale, output = w.number(node.inputs[4]), node.outputs[0]
    if scale is None:
        raise CannotWrite(f"{node.title}: a scale that is no number")
    safe = w.scalar(_BINARY["add"], variance, node.attrs.epsilon, f"{output}_safe")
    root = w.parts.layer("UnaryOp", [safe], f"{output}_root", "0=6")
    factor = w.scalar(_BINARY["mul"], root, scale, f"{output}_factor")
    shift = w.pair("mul", mean, factor, f"{output}_shift")
    scaled = w.pair("mul", x, factor, f"{output}_scaled")
    shifted = w.pair("sub", scaled, shift, f"{output}_shifted")
    w.pair("add", shifted, offset, output)


@_writes
def conv(w: _Writer, node: Node) -> None:
    x, filter = w.blob(node.inputs[0]), w.constants.get(node.inputs[1])
    if filter is None:
        maker = w.makers.get(node.inputs[1])
        if maker is None or not w.scales_filter(maker):
            raise CannotWrite(f"{node.title}: a filter that is computed")
        filter = w.weights(maker, 0)
        x = w.pair("mul", x, w.blob(maker.inputs[1]), f"{node.outputs[0]}_scaled")
    w.window("Convolution", node, x, filter, len(filter))


@_writes
def deconv(w: _Writer, node: Node) -> None:
    filter = w.weights(node, 1)
    if node.attrs.groups != 1:
        raise CannotWrite(f"{node.title}: groups")
    kernel = filter.swapaxes(0, 1)
    w.window("Deconvolution", node, w.blob(node.inputs[0]), kernel, len(kernel))


@_writes
def linear(w: _Writer, node: Node) -> None:
    filter = w.weights(node, 1)
    output, activation = w.activation(node)
    numbers = f"0={len(filter)} 1=1 2={filter.size} {activation}".rstrip()
    x, bias = w.blob(node.inputs[0]), w.bias(node, len(filter))
    w.parts.layer("InnerProduct", [x], output, numbers, filter, bias)
    w.written.add(output)


@_writes
def copy(w: _Writer, node: Node) -> None:
    w.parts.layer("Noop", [w.blob(node.inputs[0])], node.outputs[0])


@_writes
def concat(w: _Writer, node: Node) -> None:
    if node.attrs.axis != 1:
        raise CannotWrite(f"{node.title}: along another axis than the channels")
    w.parts.layer("Concat", [w.blob(x) for x in node.inputs], node.outputs[0], "0=0")


@_writes
def slice(w: _Writer, node: Node) -> None:
    a, shape = node.attrs, w.facts[node.inputs[0]].shape
    ends = [end or shape[axis] for axis, end in zip(a.axes, a.end, strict=True)]
    lists = ((9, a.begin), (10, ends), (11, [axis - 1 for axis in a.axes]))
    numbers = " ".join(f"{-23300 - key}={_list(values)}" for key, values in lists)
    w.parts.layer("Crop", [w.blob(node.inputs[0])], node.outputs[0], numbers)


@_writes
def mean_reduce(w: _Writer, node: Node) -> None:
    if w.facts[node.inputs[0]].rank != 2 or node.attrs.axes != [1]:
        raise CannotWrite(f"{node.title}: a mean of other than all numbers")
    w.parts.layer("Reduction", [w.blob(node.inputs[0])], node.outputs[0], "0=3 1=1 4=1")


@_writes
def reshape(w: _Writer, node: Node) -> None:
    """Writes a reshape, the following transpose and the reshape after it as one PixelShuffle layer.

    Raises :class:`CannotWrite` for any other reshape.
    """
    turn = w.only_reader(node.outputs[0])
    back = w.only_reader(turn.outputs[0]) if turn else None
    shape = w.facts[node.outputs[0]].shape
    if not (turn and back and turn.op == "transpose" and back.op == "reshape"):
        raise CannotWrite(f"{node.title}: a reshape that is no shuffling of pixels")
    _, channels, r, _, height, width = shape
    shuffled = (1, channels, r * height, r * width)
    if turn.attrs.axes != _SHUFFLE or w.facts[back.outputs[0]].shape != shuffled:
        raise CannotWrite(f"{node.title}: a reshape that is no shuffling of pixels")
    w.parts.layer("PixelShuffle", [w.blob(node.inputs[0])], back.outputs[0], f"0={r}")
    w.written.update((*turn.outputs, *back.outputs))


@_writes
def multilinear_upsample(w: _Writer, node: Node) -> None:
    channels = w.facts[node.inputs[0]].shape[1]
    filter = bilinear(node, channels)
    numbers = f"0={channels} 1=4 3=2 4=1 5=0 6={filter.size} 7={channels}"
    x, output = w.blob(node.inputs[0]), node.outputs[0]
    w.parts.layer("DeconvolutionDepthWise", [x], output, numbers, filter)


def bilinear(node: Node, channels: int) -> Array:
    """Returns the filter [channels, 1, 4, 4] that computes the node, a 2x ``multilinear_upsample``.

    The node's border must be zeros. The upsampling is then a transposed depthwise convolution of
    stride 2 and padding 1.
    """
    a = node.attrs
    if (list(a.factor), a.method, a.border) != ([2, 2], "symmetric", "constant"):
        raise CannotWrite(f"{node.title}: other than by two, symmetric, with zeros outside")
    row = np.array([1, 3, 3, 1], np.float32) / 4
    return np.tile(np.outer(row, row), (channels, 1, 1, 1))


def _list(values: Sequence[int]) -> str:
    """Returns an array as text for the .param: its length, then its values."""
    return ",".join(map(str, (len(values), *values)))
