"""A network of the bench as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.layers import Layer, Network
from benchmarks.onnx_model import Parts


def write_onnx(network: Network, target: Path) -> None:
    """``data`` -> the last layer's result."""
    parts = Parts()
    for layer in network.layers:
        _add(parts, layer)
    parts.save({"data": network.shape}, network.output, target)


def _add(parts: Parts, layer: Layer) -> None:
    inputs, name, n = list(layer.inputs), layer.output, layer.numbers
    plain = name if not layer.activation else f"{name}_plain"
    if layer.kind == "conv":
        weights = [parts.constant(f"{name}_filter", layer.filter),
                   parts.constant(f"{name}_bias", layer.bias)]  # fmt: skip
        parts.node(
            "Conv", inputs + weights, plain,
            strides=[n["stride"]] * 2, pads=[n["pad"]] * 4, group=n["groups"],
        )  # fmt: skip
    elif layer.kind == "max_pool":
        parts.node("MaxPool", inputs, plain, kernel_shape=[2, 2], strides=[2, 2])
    elif layer.kind == "upsample":
        scales = parts.constant(f"{name}_scales", np.array([1, 1, 2, 2], np.float32))
        parts.node(
            "Resize", [*inputs, "", scales], plain, mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
    elif layer.kind == "add":
        parts.node("Add", inputs, plain)
    elif layer.kind == "concat":
        parts.node("Concat", inputs, plain, axis=1)
    elif layer.kind == "mean":
        parts.node("GlobalAveragePool", inputs, f"{name}_square")
        parts.node("Flatten", [f"{name}_square"], plain)
    else:
        weights = [parts.constant(f"{name}_filter", layer.filter),
                   parts.constant(f"{name}_bias", layer.bias)]  # fmt: skip
        parts.node("Gemm", inputs + weights, plain, transB=1)
    if layer.activation == "relu":
        parts.node("Relu", [plain], name)
    elif layer.activation == "relu6":
        limits = [parts.constant(f"{name}_{k}", np.array(v, np.float32)) for k, v in _RELU6]
        parts.node("Clip", [plain, *limits], name)


_RELU6 = (("low", 0.0), ("high", 6.0))
