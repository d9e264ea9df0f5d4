"""Operators whose attributes, inputs or meaning changed: each version against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from tests.fixtures.onnx_models import model, node, value  # noqa: E402

Array = np.ndarray[Any, Any]


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


IMAGE, MATRIX = (1, 4, 6, 6), (3, 4)
#: opset, node, outputs' number, the input's shape, weights
FORMS: list[tuple[int, Any, tuple[int, ...], dict[str, Array]]] = [
    (7, node("Softmax", "x", "y"), IMAGE, {}),
    (11, node("Softmax", "x", "y", axis=2), IMAGE, {}),
    (13, node("Softmax", "x", "y"), IMAGE, {}),
    (9, node("LogSoftmax", "x", "y", axis=-2), IMAGE, {}),
    (11, node("Hardmax", "x", "y"), IMAGE, {}),
    (13, node("Hardmax", "x", "y", axis=1), IMAGE, {}),
    (7, node("Clip", "x", "y", min=-0.5), MATRIX, {}),
    (12, node("Clip", "x _ high", "y"), MATRIX, {"high": np.float32(0.5)}),
    (9, node("Slice", "x", "y", starts=[0, -3], ends=[9, -1], axes=[0, 1]), MATRIX, {}),
    (11, node("Slice", "x s e a t", "y"), IMAGE,
     {"s": ints(-1, 1), "e": ints(-(2**63), 2**63 - 1), "a": ints(-1, 2), "t": ints(-2, 3)}),
    (9, node("Pad", "x", "y", pads=[0, 1, 0, 2], value=3.0), MATRIX, {}),
    (9, node("Pad", "x", "y", pads=[0, 0, 2, 1, 0, 0, -1, 3], mode="reflect"), IMAGE, {}),
    (12, node("Pad", "x p v", "y"), MATRIX, {"p": ints(1, 0, 0, -1), "v": np.float32(2)}),
    (18, node("Pad", "x p _ a", "y", mode="edge"), IMAGE, {"p": ints(1, 2), "a": ints(-1)}),
    (19, node("Pad", "x p", "y", mode="wrap"), MATRIX, {"p": ints(0, 3, 1, 2)}),
    (10, node("Dropout", "x", "y", ratio=0.3), MATRIX, {}),
    (12, node("Dropout", "x r", "y"), MATRIX, {"r": np.float32(0.3)}),
    (8, node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 3.0]), IMAGE, {}),
    (9, node("Upsample", "x s", "y", mode="linear"), IMAGE, {"s": floats(1, 1, 2, 2)}),
    (10, node("Resize", "x s", "y"), IMAGE, {"s": floats(1, 1, 1.5, 0.5)}),
    (10, node("Resize", "x s", "y", mode="linear"), IMAGE, {"s": floats(1, 1, 2, 1.7)}),
    (11, node("Resize", "x r s", "y", mode="linear",
              coordinate_transformation_mode="align_corners"), IMAGE,
     {"r": floats(), "s": floats(1, 1, 2, 1.5)}),
    (11, node("Resize", "x r s", "y", coordinate_transformation_mode="tf_half_pixel_for_nn"),
     IMAGE, {"r": floats(), "s": floats(1, 1, 0.6, 0.5)}),
    (13, node("Resize", "x _ _ n", "y", mode="cubic", exclude_outside=1), IMAGE,
     {"n": ints(1, 4, 9, 4)}),
    (13, node("Resize", "x r _ n", "y", mode="linear", extrapolation_value=7.0,
              coordinate_transformation_mode="tf_crop_and_resize"), IMAGE,
     {"r": floats(0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2), "n": ints(1, 4, 5, 7)}),
    (18, node("Resize", "x _ _ n", "y", mode="linear", antialias=1, axes=[2, 3]), IMAGE,
     {"n": ints(4, 3)}),
    (9, node("TopK", "x", "y z", k=2), MATRIX, {}),
    (10, node("TopK", "x k", "y z", axis=0), MATRIX, {"k": ints(2)}),
    (13, node("TopK", "x k", "y z", axis=1, largest=0), MATRIX, {"k": ints(3)}),
    (11, node("Squeeze", "x", "y", axes=[0]), IMAGE, {}),
    (13, node("Squeeze", "x", "y"), IMAGE, {}),
    (11, node("Unsqueeze", "x", "y", axes=[-1, 0]), MATRIX, {}),
    (13, node("Unsqueeze", "x a", "y"), MATRIX, {"a": ints(1, -1)}),
    (11, node("Split", "x", "y z", axis=1, split=[1, 3]), MATRIX, {}),
    (13, node("Split", "x s", "y z", axis=1), MATRIX, {"s": ints(3, 1)}),
    (18, node("Split", "x", "y z", axis=0, num_outputs=2), MATRIX, {}),
    (12, node("ReduceSum", "x", "y", axes=[1], keepdims=0), MATRIX, {}),
    (13, node("ReduceSum", "x a", "y"), IMAGE, {"a": ints(-1, 1)}),
    (18, node("ReduceMean", "x", "y", noop_with_empty_axes=1), MATRIX, {}),
    (17, node("ReduceL2", "x", "y", axes=[-1]), MATRIX, {}),
    (18, node("ReduceLogSumExp", "x a", "y", keepdims=0), MATRIX, {"a": ints(0)}),
    (8, node("BatchNormalization", "x c c c d", "y", epsilon=1e-3), IMAGE, {}),
    (15, node("BatchNormalization", "x c c c d", "y"), IMAGE, {}),
    (8, node("MaxPool", "x", "y z", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
     IMAGE, {}),
    (12, node("MaxPool", "x", "y z", kernel_shape=[2, 3], ceil_mode=1, storage_order=1,
              dilations=[2, 1], strides=[2, 2]), IMAGE, {}),
    (7, node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
             count_include_pad=1), IMAGE, {}),
    (10, node("AveragePool", "x", "y", kernel_shape=[3, 2], ceil_mode=1, strides=[2, 3]),
     IMAGE, {}),
    (11, node("AveragePool", "x", "y", kernel_shape=[3, 3], auto_pad="SAME_LOWER",
              strides=[2, 2]), IMAGE, {}),
    (7, node("Gemm", "x m v", "y", alpha=0.5, beta=2.0), MATRIX, {}),
    (13, node("Gemm", "x m", "y", transA=0, transB=0), MATRIX, {}),
    (7, node("Mul", "x v", "y"), MATRIX, {}),
    (10, node("DepthToSpace", "x", "y", blocksize=2), IMAGE, {}),
    (11, node("DepthToSpace", "x", "y", blocksize=2, mode="CRD"), IMAGE, {}),
    (8, node("SpaceToDepth", "x", "y", blocksize=3), IMAGE, {}),
    (11, node("ConvTranspose", "x w", "y", strides=[2, 2], output_padding=[1, 1],
              pads=[1, 0, 1, 2]), IMAGE, {}),
    (11, node("ConvTranspose", "x w", "y", strides=[2, 2], output_shape=[13, 12]), IMAGE, {}),
    (11, node("ConvTranspose", "x w", "y", strides=[3, 2], auto_pad="SAME_UPPER", group=2),
     IMAGE, {}),
    (11, node("Conv", "x w", "y", auto_pad="SAME_LOWER", strides=[2, 2]), IMAGE, {}),
    (11, node("Conv", "x w", "y", auto_pad="VALID", dilations=[2, 1]), IMAGE, {}),
    (13, node("LRN", "x", "y", size=3, alpha=0.02, bias=2.0), IMAGE, {}),
    (10, node("Mod", "x v", "y", fmod=1), MATRIX, {}),
    (11, node("Round", "x", "y"), MATRIX, {}),
    (11, node("CumSum", "x a", "y", reverse=1, exclusive=1), MATRIX, {"a": ints(1)}),
    (9, node("OneHot", "i d o", "y", axis=0), MATRIX,
     {"i": ints(1, 0, 3), "d": ints(4), "o": floats(-1, 2)}),
    (11, node("OneHot", "i d o", "y", axis=0), MATRIX,
     {"i": ints(1, -1, 3), "d": ints(4), "o": floats(-1, 2)}),
    (11, node("GatherND", "x i", "y"), MATRIX, {"i": np.array([[0, 1], [-1, -2]])}),
    (12, node("GatherND", "x i", "y", batch_dims=1), MATRIX, {"i": np.array([[1], [3], [0]])}),
    (12, node("Einsum", "x", "y", equation="...ij->...ji"), IMAGE, {}),
    (12, node("Einsum", "x", "y", equation="bcii->bc"), IMAGE, {}),
    (12, node("ArgMax", "x", "y", axis=1, select_last_index=1, keepdims=0), MATRIX, {}),
    (7, node("ArgMin", "x", "y"), MATRIX, {}),
    (13, node("IsInf", "x", "y"), MATRIX, {}),
    (10, node("QuantizeLinear", "x q p", "y"), MATRIX,
     {"q": np.float32(0.05), "p": np.uint8(100)}),
    (13, node("QuantizeLinear", "x q p", "y", axis=0), MATRIX,
     {"q": floats(0.1, 0.2, 0.3), "p": np.array([1, -5, 9], np.int8)}),
    (14, node("Trilu", "x", "y", upper=0), MATRIX, {}),
    (17, node("LayerNormalization", "x v v", "y", axis=-1), MATRIX, {}),
    (16, node("PRelu", "x v", "y"), MATRIX, {}),
    (7, node("LSTM", "x W R B", "y z", hidden_size=2, direction="bidirectional"), (5, 3, 4), {}),
    (14, node("LSTM", "x W R B", "y z", hidden_size=2, direction="bidirectional",
              clip=0.5), (5, 3, 4), {}),
    (14, node("GRU", "x Wg Rg Bg", "y z", hidden_size=2, direction="bidirectional",
              linear_before_reset=1), (5, 3, 4), {}),
    (14, node("GRU", "x Wg Rg Bg l", "y z", hidden_size=2, direction="bidirectional"),
     (5, 3, 4), {"l": np.array([5, 2, 1], np.int32)}),
    (7, node("RNN", "x Wr Rr Br", "y z", hidden_size=2, direction="bidirectional",
             activations=["Relu", "Tanh"]), (5, 3, 4), {}),
]  # fmt: skip


def shared_weights(rng: np.random.Generator) -> dict[str, Array]:
    def random(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "c": random(4), "d": np.abs(random(4)) + 0.1, "m": random(4, 4), "v": random(4),
        "w": random(4, 2, 3, 3), "W": random(2, 8, 4), "R": random(2, 8, 2), "B": random(2, 16),
        "Wg": random(2, 6, 4), "Rg": random(2, 6, 2), "Bg": random(2, 12),
        "Wr": random(2, 2, 4), "Rr": random(2, 2, 2), "Br": random(2, 4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "made", "shape", "more"),
    FORMS,
    ids=[f"{made.op_type}-{opset}-{i}" for i, (opset, made, *_) in enumerate(FORMS)],
)
def test_form(rng, opset, made, shape, more):
    weights = {**shared_weights(rng), **more}
    if made.op_type == "Conv":
        weights["w"] = np.concatenate([weights["w"], weights["w"]], 1)
    weights = {name: weights[name] for name in made.input if name in weights}
    outputs = [value(name, None) for name in made.output]
    network = model([made], [value("x", shape)], outputs, weights, opset)
    for output in network.graph.output:
        output.type.Clear()
    x = (2 * rng.standard_normal(shape)).astype(np.float32)
    session = ort.InferenceSession(network.SerializeToString())
    given = {"x": x} if "x" in made.input else {}
    wanted = session.run(None, {"x": x})
    got = cml.Session(cml.load(network.SerializeToString()), "cpu").run(given or {"x": x})
    for name, want in zip(made.output, wanted, strict=True):
        have = got[name]
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=2e-5, err_msg=name)
