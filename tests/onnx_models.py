"""ONNX models for tests, made with the ``onnx`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


def value(name: str, shape: Sequence[int | str] | None, dtype: str = "float32") -> Any:
    """An input or output."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    """A node; inputs and outputs in one text each, ``_`` for an input that is left out."""
    given = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, given, outputs.split(), **attrs)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
    **more: Any,
) -> Any:
    """A model of ONNX's own operators."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "net", list(inputs), list(outputs), tensors)
    domains = more.pop("domains", {})
    opsets = [helper.make_opsetid(d, v) for d, v in {"": opset, **domains}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def exported_cnn(rng: np.random.Generator) -> Any:
    """A network as PyTorch's exporter writes one: symbols, paths as names, shapes computed."""

    def random(*shape: int) -> Array:
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    weights = {
        "conv1.weight": random(8, 3, 3, 3), "conv1.bias": random(8),
        "conv2.weight": random(8, 8, 3, 3),
        "bn.weight": random(8), "bn.bias": random(8), "bn.mean": random(8),
        "bn.var": np.abs(random(8)) + 0.5,
        "prelu": np.abs(random(8, 1, 1)),
        "up.weight": random(8, 4, 2, 2), "up.bias": random(4),
        "fc.weight": random(10, 64), "fc.bias": random(10),
        "0": np.array([0], np.int64), "1": np.array([1], np.int64), "-1": np.array([-1], np.int64),
        "two": np.array(2, np.int64), "roi": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 0.5, 0.5], np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", "image conv1.weight conv1.bias", "/conv1/Conv_output_0", name="/conv1/Conv",
             pads=[1, 1, 1, 1], kernel_shape=[3, 3], group=1, strides=[1, 1], dilations=[1, 1]),
        node("PRelu", "/conv1/Conv_output_0 prelu", "act", name="/act/PRelu"),
        node("Conv", "act conv2.weight", "c2", name="/conv2/Conv", auto_pad="SAME_UPPER",
             strides=[2, 2]),
        node("BatchNormalization", "c2 bn.weight bn.bias bn.mean bn.var", "bn", name="/bn"),
        node("Sigmoid", "bn", "gate", name="/Sigmoid"),
        node("Mul", "bn gate", "silu", name="/Mul"),
        node("ConvTranspose", "silu up.weight up.bias", "up", name="/up", strides=[2, 2],
             kernel_shape=[2, 2]),
        node("Resize", "up roi scales", "half", name="/Resize", mode="linear",
             coordinate_transformation_mode="pytorch_half_pixel"),
        node("AveragePool", "half", "pooled", name="/pool", kernel_shape=[2, 2], strides=[1, 1],
             pads=[0, 0, 1, 1], ceil_mode=1, count_include_pad=1),
        node("Shape", "pooled", "shape", name="/Shape"),
        node("Gather", "shape 0", "batch", name="/Gather", axis=0),
        node("Concat", "batch -1", "target", name="/Concat", axis=0),
        node("Reshape", "pooled target", "flat", name="/Reshape"),
        node("Gemm", "flat fc.weight fc.bias", "logits", name="/fc/Gemm", transB=1),
        node("Softmax", "logits", "output", name="/Softmax", axis=-1),
    ]  # fmt: skip
    inputs = [value("image", ["batch", 3, "height", "width"])]
    return model(nodes, inputs, [value("output", ["batch", 10])], weights)


def saved(made: Any, path: Any) -> Any:
    onnx.save(made, str(path))
    return path
