"""Tests of operators in older opsets: each version agrees with ONNX Runtime.

ONNX's own node cases (test_nodes.py) have the newest version of each operator, and
test_resize.py all versions of Resize and Upsample.
"""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

import cml_engine as cml
from tests.fixtures.onnx_models import (
    agrees_with_runtime,
    load,
    model,
    node,
    run,
    run_onnx,
)

#: opsets and nodes by the shape of x
FORMS = {
    (1, 4, 6, 6): [
        (7, "y = Softmax(x)"),
        (11, "y = Softmax(x, axis=2)"),
        (9, "y = LogSoftmax(x, axis=-2)"),
        (11, "y = Hardmax(x)"),
        (11, "y = Slice(x, begin, end, axes, steps)"),
        (9, "y = Pad(x, pads=[0, 0, 2, 1, 0, 0, -1, 3], mode='reflect')"),
        (18, "y = Pad(x, pads_of_one, _, last, mode='edge')"),
        (11, "y = Squeeze(x, axes=[0])"),
        (13, "y = Squeeze(x)"),
        (11, "y, z = Split(x, axis=1, split=[1, 3])"),
        (13, "y, z = Split(x, sizes, axis=1)"),
        (17, "y = ReduceL2(x, axes=[-1])"),
        (8, "y = BatchNormalization(x, c, c, c, d, epsilon=0.001)"),
        (8, "y, z = MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])"),
        (12, "y, z = MaxPool(x, kernel_shape=[2, 3], ceil_mode=1, storage_order=1, "
             "dilations=[2, 1], strides=[2, 2])"),
        (7, "y = AveragePool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)"),
        (10, "y = AveragePool(x, kernel_shape=[3, 2], ceil_mode=1, strides=[2, 3])"),
        (10, "y = DepthToSpace(x, blocksize=2)"),
        (11, "y = ConvTranspose(x, w, strides=[3, 2], auto_pad='SAME_UPPER', group=2)"),
        (11, "y = Conv(x, k, auto_pad='VALID', dilations=[2, 1])"),
    ],
    (2, 6, 3): [
        *((18, f"y = GroupNormalization(x, {v}, {v}, num_groups=2)") for v in ("g", "g1", "g2")),
        *((21, f"y = GroupNormalization(x, {v}, {v}, num_groups=3)") for v in ("h", "h1", "h2")),
    ],
    (3, 4): [
        (17, "y = ai.onnx.ml:Scaler(x, offset=[1.0, -2.0, 0.5, 0.0], scale=[2.0, 0.1, 1.0, -3.0])"),
        (17, "y = ai.onnx.ml:Scaler(x, offset=[0.5], scale=[2.0])"),
        (17, "y = SimplifiedLayerNormalization(x, v, axis=-1)"),
        (7, "y = Clip(x, min=-0.5)"),
        (9, "y = Slice(x, starts=[0, -3], ends=[9, -1], axes=[0, 1])"),
        (9, "y = Pad(x, pads=[0, 1, 0, 2], value=3.0)"),
        (12, "y = Pad(x, pads, two)"),
        (10, "y = Dropout(x, ratio=0.3)"),
        (9, "y, z = TopK(x, k=2)"),
        (10, "y, z = TopK(x, count, axis=0)"),
        (11, "y = Unsqueeze(x, axes=[-1, 0])"),
        (12, "y = ReduceSum(x, axes=[1], keepdims=0)"),
        (18, "y = ReduceMean(x, noop_with_empty_axes=1)"),
        (7, "y = Gemm(x, m, v, alpha=0.5, beta=2.0)"),
        (7, "y = Mul(x, v)"),
        (7, "y = ArgMin(x)"),
        (10, "y = QuantizeLinear(x, scale, zero)"),
        (12, "y = Celu(x, alpha=0.5)"),
        (12, "y = Celu(x, alpha=-0.5)"),
    ],
    (2, 3, 0): [(13, f"y = Flatten(x, axis={axis})") for axis in (0, 1, 2, 3, -1)],
    (0, 3, 2): [
        *((13, f"y = Flatten(x, axis={axis})") for axis in (0, 1, -1)),
        (13, "y = Einsum(x, one, equation='abc,c->bac')"),
        (13, "y = Einsum(x, one, equation='abc,a->bc')"),
    ],
    (5, 3, 4): [
        (7, "y, z = LSTM(x, W, R, B, hidden_size=2, direction='bidirectional')"),
        (14, "y, z = LSTM(x, W, R, B, hidden_size=2, direction='bidirectional', clip=0.5)"),
        (14, "y, z = GRU(x, Wg, Rg, Bg, hidden_size=2, direction='bidirectional', "
             "linear_before_reset=1)"),
        (14, "y, z = GRU(x, Wg, Rg, Bg, lengths, hidden_size=2, direction='bidirectional')"),
        (7, "y, z = RNN(x, Wr, Rr, Br, hidden_size=2, direction='bidirectional', "
            "activations=['Relu', 'Tanh'])"),
    ],
}  # fmt: skip


def shared_weights(rng):
    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    integers = {
        "begin": [-1, 1], "end": [-(2**63), 2**63 - 1], "axes": [-1, 2], "steps": [-2, 3],
        "pads": [1, 0, 0, -1], "pads_of_one": [1, 2], "last": [-1], "count": [2], "sizes": [3, 1],
    }  # fmt: skip
    return {name: np.array(numbers, np.int64) for name, numbers in integers.items()} | {
        "c": random(4), "d": np.abs(random(4)) + 0.1, "m": random(4, 4), "v": random(4),
        "w": random(4, 2, 3, 3), "k": random(4, 4, 3, 3), "two": np.float32(2), "one": random(1),
        "g": random(2), "g1": random(1, 2), "g2": random(2, 1),
        "h": random(6), "h1": random(1, 6), "h2": random(1, 6, 1),
        "scale": np.float32(0.05), "zero": np.uint8(100), "lengths": np.int32([5, 2, 1]),
        "W": random(2, 8, 4), "R": random(2, 8, 2), "B": random(2, 16),
        "Wg": random(2, 6, 4), "Rg": random(2, 6, 2), "Bg": random(2, 12),
        "Wr": random(2, 2, 4), "Rr": random(2, 2, 2), "Br": random(2, 4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "opset", "text"),
    [(shape, *form) for shape, forms in FORMS.items() for form in forms],
)
def test_form(rng, shape, opset, text):
    weights = shared_weights(rng)
    x = (2 * rng.standard_normal(shape)).astype(np.float32)
    agrees_with_runtime(node(text), x, weights, opset)


@pytest.mark.parametrize("versions", [(17, 11), (11, 17)])
def test_the_highest_version_of_a_domain_counts(rng, versions):
    """ONNX says so. Softmax of opset 11 joins the axes from axis 1 on."""
    network = model("y = Softmax(x, axis=1)", "x: [2, 3, 4]", "y: [2, 3, 4]")
    del network.opset_import[:]
    network.opset_import.extend(helper.make_opsetid("", version) for version in versions)
    sums = run(network, x=rng.standard_normal((2, 3, 4)))["y"].sum(1)
    np.testing.assert_allclose(sums, np.ones((2, 4)), rtol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_lengths_computed_at_run_time(rng, op, direction, backend):
    weights = shared_weights(rng)
    suffix = {"LSTM": "", "GRU": "g", "RNN": "r"}[op]
    count = 2 if direction == "bidirectional" else 1
    known = {f"{n}{suffix}": weights[f"{n}{suffix}"][:count] for n in "WRB"}
    call = f"y, z = {op}(x, {', '.join(known)}, n, hidden_size=2, direction='{direction}')"
    network = model([call], "x: [5, 3, 4], n: int32[3]", "y, z", known)
    session = cml.Session(load(network), backend)
    x = rng.standard_normal((5, 3, 4), np.float32)
    for lengths in ([5, 2, 1], [0, 5, 4], [5, 5, 5]):
        inputs = {"x": x, "n": np.int32(lengths)}
        found = session.run(inputs)
        for name, expected in run_onnx(network.SerializeToString(), inputs).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=2e-5, err_msg=name)
