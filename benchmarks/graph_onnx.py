"""A network of the engine's as an ONNX file, with the operators that the bench's networks have."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.export import CannotWrite, bilinear
from benchmarks.onnx_model import Array, Parts
from cml_engine.graph import Graph, Node

#: operators that are the same there
_SAME = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "relu": "Relu", "abs": "Abs",
    "floor": "Floor", "sqrt": "Sqrt", "copy": "Identity",
}  # fmt: skip


def graph_to_onnx(graph: Graph, target: Path) -> None:
    """The file; :class:`CannotWrite` where an operator has no counterpart here."""
    writer = _Writer(graph)
    for node in graph.nodes:
        writer.node(node)
    shapes = {name: graph.facts[name].shape for name in graph.inputs}
    writer.parts.save(shapes, graph.outputs[0], target)


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.parts, self.facts = graph, Parts(), graph.facts
        self.stored: set[str] = set()

    def node(self, node: Node) -> None:
        """One operator."""
        if node.op in _SAME:
            rank = self.facts[node.outputs[0]].rank
            inputs = [self.aligned(name, rank) for name in node.inputs]
            self.parts.node(_SAME[node.op], inputs, node.outputs[0])
            return
        write = getattr(self, f"write_{node.op}", None)
        if write is None:
            raise CannotWrite(f"no ONNX operator is known for {node.title}")
        write(node)

    # -- operands

    def tensor(self, name: str) -> str:
        """The tensor's name; a constant is stored at its first use."""
        values = self.graph.constants.get(name)
        return name if values is None else self.constant(name, values)

    def constant(self, name: str, values: Array) -> str:
        if name not in self.stored:
            self.stored.add(name)
            self.parts.constant(name, values)
        return name

    def whole(self, name: str, *values: int) -> str:
        """A constant list of integers."""
        return self.constant(name, np.array(values, np.int64))

    def real(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def aligned(self, name: str, rank: int) -> str:
        """NNEF lines shapes up on the left, ONNX on the right: with ones behind, both agree."""
        shape = self.facts[name].shape
        if not shape or len(shape) == rank:
            return self.tensor(name)
        wanted = (*shape, *[1] * (rank - len(shape)))
        if name in self.graph.constants:
            return self.constant(f"{name}_rank{rank}", self.graph.constants[name].reshape(wanted))
        result = f"{name}_rank{rank}"
        if result not in self.stored:
            self.stored.add(result)
            self.reshape(self.tensor(name), wanted, result)
        return result

    def reshape(self, x: str, shape: tuple[int, ...], output: str) -> str:
        return self.parts.node("Reshape", [x, self.whole(f"{output}_shape", *shape)], output)

    # -- products

    def write_conv(self, node: Node) -> None:
        self.window("Conv", node)

    def write_deconv(self, node: Node) -> None:
        self.window("ConvTranspose", node)

    def window(self, op: str, node: Node) -> None:
        x, filter, bias = node.inputs
        (top, bottom), (left, right) = node.attrs.padding
        attributes: dict[str, Any] = {
            "pads": [top, left, bottom, right],
            "strides": list(node.attrs.stride or (1, 1)),
            "dilations": list(node.attrs.dilation or (1, 1)),
            "group": node.attrs.groups or self.facts[x].shape[1],
        }
        inputs = [self.tensor(x), self.tensor(filter)]
        values = self.graph.constants[bias]
        if values.any():
            channels = self.facts[node.outputs[0]].shape[1]
            flat = np.broadcast_to(values.reshape(-1), (channels,))
            inputs.append(self.constant(f"{bias}_flat", flat))
        self.parts.node(op, inputs, node.outputs[0], **attributes)

    def write_linear(self, node: Node) -> None:
        self.parts.node("Gemm", [self.tensor(x) for x in node.inputs], node.outputs[0], transB=1)

    # -- elementwise

    def write_leaky_relu(self, node: Node) -> None:
        x = self.tensor(node.inputs[0])
        self.parts.node("LeakyRelu", [x], node.outputs[0], alpha=node.attrs.alpha)

    def write_clamp(self, node: Node) -> None:
        self.parts.node("Clip", [self.tensor(x) for x in node.inputs], node.outputs[0])

    def write_sqr(self, node: Node) -> None:
        x = self.tensor(node.inputs[0])
        self.parts.node("Mul", [x, x], node.outputs[0])

    def write_rsqrt(self, node: Node) -> None:
        output = node.outputs[0]
        root = self.parts.node("Sqrt", [self.tensor(node.inputs[0])], f"{output}_root")
        self.parts.node("Reciprocal", [root], output)

    def write_log2(self, node: Node) -> None:
        output = node.outputs[0]
        natural = self.parts.node("Log", [self.tensor(node.inputs[0])], f"{output}_ln")
        self.parts.node("Mul", [natural, self.real("per_ln2", 1 / log(2))], output)

    def write_batch_normalization(self, node: Node) -> None:
        """``x a - mean a + offset`` with ``a = scale / sqrt(variance + epsilon)``: ONNX's own
        wants constants, and an offset for each channel only."""
        output, rank, add = node.outputs[0], self.facts[node.outputs[0]].rank, self.parts.node
        x, mean, variance, offset, scale = (self.aligned(name, rank) for name in node.inputs)
        epsilon = self.real(f"{output}_epsilon", node.attrs.epsilon)
        root = add("Sqrt", [add("Add", [variance, epsilon], f"{output}_safe")], f"{output}_root")
        factor = add("Div", [scale, root], f"{output}_factor")
        shift = add("Mul", [mean, factor], f"{output}_shift")
        scaled = add("Mul", [x, factor], f"{output}_scaled")
        shifted = add("Sub", [scaled, shift], f"{output}_shifted")
        add("Add", [shifted, offset], output)

    # -- moving, reducing, resampling

    def write_mean_reduce(self, node: Node) -> None:
        x = self.tensor(node.inputs[0])
        self.parts.node("ReduceMean", [x], node.outputs[0], axes=list(node.attrs.axes), keepdims=1)

    def write_concat(self, node: Node) -> None:
        inputs = [self.tensor(x) for x in node.inputs]
        self.parts.node("Concat", inputs, node.outputs[0], axis=node.attrs.axis)

    def write_slice(self, node: Node) -> None:
        a, output, shape = node.attrs, node.outputs[0], self.facts[node.inputs[0]].shape
        ends = [end or shape[axis] for axis, end in zip(a.axes, a.end, strict=True)]
        lists = (("begin", a.begin), ("end", ends), ("axes", a.axes))
        names = [self.whole(f"{output}_{name}", *values) for name, values in lists]
        self.parts.node("Slice", [self.tensor(node.inputs[0]), *names], output)

    def write_reshape(self, node: Node) -> None:
        output = node.outputs[0]
        self.reshape(self.tensor(node.inputs[0]), self.facts[output].shape, output)

    def write_transpose(self, node: Node) -> None:
        x = self.tensor(node.inputs[0])
        self.parts.node("Transpose", [x], node.outputs[0], perm=list(node.attrs.axes))

    def write_multilinear_upsample(self, node: Node) -> None:
        output, channels = node.outputs[0], self.facts[node.inputs[0]].shape[1]
        filter = self.constant(f"{output}_filter", bilinear(node, channels))
        self.parts.node(
            "ConvTranspose", [self.tensor(node.inputs[0]), filter], output,
            strides=[2, 2], pads=[1, 1, 1, 1], group=channels,
        )  # fmt: skip
