"""The upres network as an ONNX file, from the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.ncnn_files import Convolution, read_convolutions

Array = np.ndarray[Any, Any]

FACTOR = 4
#: old enough for every reader, new enough for all operators used
_OPSET = 13


def write_onnx(param: Path, weights: Path, shape: tuple[int, ...], target: Path) -> None:
    """``target`` is the network for an input of ``shape`` (N, C, H, W): ``data`` -> ``output``."""
    parts = Parts()
    current = "data"
    for index, layer in enumerate(read_convolutions(param, weights)):
        current = _convolution(parts, layer, current, index)
    parts.node("DepthToSpace", [current], "detail", blocksize=FACTOR, mode="CRD")
    scales = parts.constant("scales", np.array([1, 1, FACTOR, FACTOR], np.float32))
    parts.node(
        "Resize",
        ["data", "", scales],
        "base",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    parts.node("Add", ["detail", "base"], "output")
    parts.save({"data": shape}, "output", target)


def _convolution(parts: Parts, layer: Convolution, source: str, index: int) -> str:
    names = [
        parts.constant(f"filter{index}", layer.filter),
        parts.constant(f"bias{index}", layer.bias),
    ]
    result = parts.node("Conv", [source, *names], f"conv{index}", pads=[1, 1, 1, 1])
    if layer.slopes is None:
        return result
    slopes = parts.constant(f"slopes{index}", layer.slopes.reshape(-1, 1, 1))
    return parts.node("PRelu", [result, slopes], f"prelu{index}")


class Parts:
    """An ONNX graph being put together."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, name: str, values: np.ndarray[Any, Any] | None) -> str:
        assert values is not None
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def save(self, inputs: Mapping[str, Sequence[int]], output: str, target: Path) -> None:
        """Write the graph of these inputs' shapes -> ``output``, whose shape ONNX finds itself."""
        graph = helper.make_graph(
            self._nodes,
            "network",
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        model.ir_version = 8
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model)
        onnx.save(model, target)
