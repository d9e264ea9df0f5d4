"""Tests of operators in older opsets: each version agrees with ONNX Runtime.

ONNX's own node cases (test_onnx_nodes.py) have the newest version of each operator, and
test_onnx_resize.py all versions of Resize and Upsample.
"""

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from tests.fixtures.onnx_models import model, node, value  # noqa: E402


def ints(*numbers):
    return np.array(numbers, np.int64)


IMAGE, MATRIX = (1, 4, 6, 6), (3, 4)
#: opset, node, outputs' number, the input's shape, weights
FORMS = [
    (7, node("y = Softmax(x)"), IMAGE, {}),
    (11, node("y = Softmax(x, axis=2)"), IMAGE, {}),
    (9, node("y = LogSoftmax(x, axis=-2)"), IMAGE, {}),
    (11, node("y = Hardmax(x)"), IMAGE, {}),
    (7, node("y = Clip(x, min=-0.5)"), MATRIX, {}),
    (9, node("y = Slice(x, starts=[0, -3], ends=[9, -1], axes=[0, 1])"), MATRIX, {}),
    (11, node("y = Slice(x, s, e, a, t)"), IMAGE,
     {"s": ints(-1, 1), "e": ints(-(2**63), 2**63 - 1), "a": ints(-1, 2), "t": ints(-2, 3)}),
    (9, node("y = Pad(x, pads=[0, 1, 0, 2], value=3.0)"), MATRIX, {}),
    (9, node("y = Pad(x, pads=[0, 0, 2, 1, 0, 0, -1, 3], mode='reflect')"), IMAGE, {}),
    (12, node("y = Pad(x, p, v)"), MATRIX, {"p": ints(1, 0, 0, -1), "v": np.float32(2)}),
    (18, node("y = Pad(x, p, _, a, mode='edge')"), IMAGE, {"p": ints(1, 2), "a": ints(-1)}),
    (10, node("y = Dropout(x, ratio=0.3)"), MATRIX, {}),
    (9, node("y, z = TopK(x, k=2)"), MATRIX, {}),
    (10, node("y, z = TopK(x, k, axis=0)"), MATRIX, {"k": ints(2)}),
    (11, node("y = Squeeze(x, axes=[0])"), IMAGE, {}),
    (13, node("y = Squeeze(x)"), IMAGE, {}),
    (11, node("y = Unsqueeze(x, axes=[-1, 0])"), MATRIX, {}),
    (11, node("y, z = Split(x, axis=1, split=[1, 3])"), MATRIX, {}),
    (13, node("y, z = Split(x, s, axis=1)"), MATRIX, {"s": ints(3, 1)}),
    (12, node("y = ReduceSum(x, axes=[1], keepdims=0)"), MATRIX, {}),
    (18, node("y = ReduceMean(x, noop_with_empty_axes=1)"), MATRIX, {}),
    (17, node("y = ReduceL2(x, axes=[-1])"), MATRIX, {}),
    (8, node("y = BatchNormalization(x, c, c, c, d, epsilon=0.001)"), IMAGE, {}),
    (8, node("y, z = MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])"),
     IMAGE, {}),
    (12, node("y, z = MaxPool(x, kernel_shape=[2, 3], ceil_mode=1, storage_order=1, "
              "dilations=[2, 1], strides=[2, 2])"), IMAGE, {}),
    (7, node("y = AveragePool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], "
             "count_include_pad=1)"), IMAGE, {}),
    (10, node("y = AveragePool(x, kernel_shape=[3, 2], ceil_mode=1, strides=[2, 3])"),
     IMAGE, {}),
    (7, node("y = Gemm(x, m, v, alpha=0.5, beta=2.0)"), MATRIX, {}),
    (7, node("y = Mul(x, v)"), MATRIX, {}),
    (10, node("y = DepthToSpace(x, blocksize=2)"), IMAGE, {}),
    (11, node("y = ConvTranspose(x, w, strides=[3, 2], auto_pad='SAME_UPPER', group=2)"),
     IMAGE, {}),
    (11, node("y = Conv(x, w, auto_pad='VALID', dilations=[2, 1])"), IMAGE, {}),
    (7, node("y = ArgMin(x)"), MATRIX, {}),
    (10, node("y = QuantizeLinear(x, q, p)"), MATRIX,
     {"q": np.float32(0.05), "p": np.uint8(100)}),
    (7, node("y, z = LSTM(x, W, R, B, hidden_size=2, direction='bidirectional')"), (5, 3, 4), {}),
    (14, node("y, z = LSTM(x, W, R, B, hidden_size=2, direction='bidirectional', "
              "clip=0.5)"), (5, 3, 4), {}),
    (14, node("y, z = GRU(x, Wg, Rg, Bg, hidden_size=2, direction='bidirectional', "
              "linear_before_reset=1)"), (5, 3, 4), {}),
    (14, node("y, z = GRU(x, Wg, Rg, Bg, l, hidden_size=2, direction='bidirectional')"),
     (5, 3, 4), {"l": np.array([5, 2, 1], np.int32)}),
    (7, node("y, z = RNN(x, Wr, Rr, Br, hidden_size=2, direction='bidirectional', "
             "activations=['Relu', 'Tanh'])"), (5, 3, 4), {}),
]  # fmt: skip


def shared_weights(rng):
    def random(*shape):
        return rng.standard_normal(shape, np.float32)

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
