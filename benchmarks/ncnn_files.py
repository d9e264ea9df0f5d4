"""Writes a graph of the demo's operators as ncnn's files, so that ncnn can be compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from cml_engine.ir.graph import Graph, Node
from cml_engine.tools.selftest.random_networks import NcnnNetwork, extents

#: ncnn's numbers of its functions
_BINARY = {"add": 0, "sub": 1, "mul": 2, "div": 3}
_UNARY = {"abs": 0, "floor": 2, "log2": 8}
#: a pixel shuffle is a reshape to six axes, this order of them, and a reshape
_SHUFFLED = [0, 1, 4, 2, 5, 3]


def write_ncnn(graph: Graph, param: Path, weights: Path) -> None:
    """Writes the graph as ncnn's text and weights.

    Raises ``ValueError`` if an operator is none of those that the demo's networks have.
    """
    net = NcnnNetwork()
    factors: dict[str, tuple[str, int]] = {}
    for name in graph.inputs:
        net.layer("Input", (), name, extents(graph.facts[name].shape))
    for node in graph.nodes:
        (out,), x = node.outputs, node.inputs[0]
        shape = graph.facts[out].shape
        if node.op == "reshape" and len(shape) == 6:
            factors[out] = (x, shape[2])
        elif node.op == "transpose" and list(node.attrs["axes"]) == _SHUFFLED:
            factors[out] = factors[x]
        elif node.op == "reshape" and x in factors:
            source, factor = factors[x]
            net.layer("PixelShuffle", [source], out, f"0={factor}")
        else:
            _write_node(net, graph, node)
    net.save(param, weights)


def _write_node(net: NcnnNetwork, graph: Graph, node: Node) -> None:
    (out,), attrs, inputs = node.outputs, node.attrs, node.inputs
    constants = [graph.constant(name) for name in inputs]
    x = inputs[0]
    if node.op == "conv" and attrs["groups"] == 1 and not np.any(attrs["padding"]):
        filter, bias = constants[1:]
        assert filter is not None and bias is not None
        channels, _, height, width = filter.shape
        numbers = f"0={channels} 1={width} 11={height} 5=1 6={filter.size}"
        for key, attribute in (("2", "dilation"), ("3", "stride")):
            down, right = attrs[attribute]
            numbers += f" {key}={right} 1{key}={down}"
        spread = np.broadcast_to(bias.reshape(-1), (channels,))
        net.layer("Convolution", [x], out, numbers, filter, spread)
    elif node.op in _BINARY and constants[1] is not None:
        numbers = f"0={_BINARY[node.op]} 1=1 2={constants[1].item():.9e}"
        net.layer("BinaryOp", [x], out, numbers)
    elif node.op in _BINARY and constants[0] is None:
        net.layer("BinaryOp", inputs, out, f"0={_BINARY[node.op]}")
    elif node.op == "log2":
        net.layer("UnaryOp", [x], f"{out}_ln", f"0={_UNARY[node.op]}")
        net.layer("BinaryOp", [f"{out}_ln"], out, f"0=2 1=1 2={1 / math.log(2):.9e}")
    elif node.op in _UNARY:
        net.layer("UnaryOp", [x], out, f"0={_UNARY[node.op]}")
    elif node.op == "relu":
        net.layer("ReLU", [x], out)
    elif node.op == "clamp":
        least, most = (c.item() for c in constants[1:] if c is not None)
        net.layer("Clip", [x], out, f"0={least:.9e} 1={most:.9e}")
    elif node.op == "slice" and not attrs["stride"]:
        axes = [axis - 1 for axis in attrs["axes"]]
        lists = zip((9, 10, 11), (attrs["begin"], attrs["end"], axes), strict=True)
        numbers = " ".join(
            f"-233{key:02}={len(items)},{','.join(map(str, items))}" for key, items in lists
        )
        net.layer("Crop", [x], out, numbers)
    elif node.op == "concat":
        net.layer("Concat", inputs, out, f"0={attrs['axis'] - 1}")
    else:
        raise ValueError(f"{node.title} has no layer of ncnn here")
