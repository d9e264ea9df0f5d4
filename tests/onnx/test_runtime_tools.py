"""Tests of the operators that ONNX Runtime's own tools write into files.

ONNX Runtime is the oracle of those that have the same result on every processor. Its products of
bytes have not: without VNNI they saturate at 16 bits. They are judged by their definition in NumPy.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnxruntime.quantization import QuantFormat, QuantType  # noqa: E402

import cml_engine as cml  # noqa: E402
from cml_engine.runtime.node_check import check_bits, random_words  # noqa: E402
from tests.fixtures.integer.onnx import computed, quantized, samples, small_cnn  # noqa: E402
from tests.fixtures.onnx_models import load, model, node  # noqa: E402
from tests.proofs.onnx_nodes import run_onnx  # noqa: E402
from tests.reference import quantized as reference  # noqa: E402

KNOWN = {
    "sx": np.float32(0.0213), "zx": np.uint8(120), "sz": np.float32(0.0517), "zz": np.uint8(7),
    "sy": np.float32(0.0391), "zy": np.uint8(131), "tx": np.float32(0.0307), "ux": np.int8(-20),
    "ty": np.float32(0.0613), "uy": np.int8(11), "s01": np.float32(1 / 256), "z0": np.uint8(0),
    "c": (np.arange(240) % 3 == 0).reshape(2, 4, 6, 5),
}  # fmt: skip


def ms(text, **attrs):
    """Returns a node of Microsoft's domain."""
    return node(text.replace(" = ", " = com.microsoft:"), **attrs)


def outcome(call, inputs, known, backend, domains=None):
    """Returns the model of one node and its first output on a backend."""
    used = {name: array for name, array in known.items() if name in call.input}
    kinds = ", ".join(f"{n}: {a.dtype.name}{list(a.shape)}" for n, a in inputs.items())
    network = model([call], kinds, "y", used, 17, domains=domains or {})
    network.graph.output[0].type.Clear()
    session = cml.Session(load(network), backend)
    return network, session.run(inputs)["y"]


def bytes_of(rng, dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


# -- integers to integers ------------------------------------------------------------------------

QLINEAR = [
    "y = QLinearAdd(x, sx, zx, z, sz, zz, sy, zy)",
    "y = QLinearAdd(i, tx, ux, i, tx, ux, ty, uy)",
    "y = QLinearMul(x, sx, zx, z, sz, zz, sy, zy)",
    "y = QLinearMul(i, tx, ux, i, tx, ux, ty, uy)",
    "y = QLinearConcat(sy, zy, x, sx, zx, z, sz, zz, x, sy, zy, axis=1)",
    "y = QLinearConcat(ty, uy, i, tx, ux, i, ty, uy, axis=-1)",
    "y = QLinearWhere(c, x, sx, zx, z, sz, zz, sy, zy)",
    "y = QLinearSigmoid(x, sx, zx, s01, z0)",
    "y = QLinearSigmoid(i, tx, ux, s01, uy)",
    "y = QLinearLeakyRelu(x, sx, zx, sy, zy, alpha=0.3)",
    "y = QLinearLeakyRelu(i, tx, ux, ty, uy)",
    "y = QLinearSoftmax(x, sx, zx, s01, z0, opset=13, axis=1)",
    "y = QLinearSoftmax(x, sx, zx, s01, z0, opset=12, axis=1)",
    "y = QLinearAveragePool(x, sx, zx, sy, zy, kernel_shape=[2, 2])",
    "y = QLinearAveragePool(x, sx, zx, sy, zy, kernel_shape=[2, 2], pads=[1, 0, 1, 1], "
    "strides=[2, 1], count_include_pad=1)",
    "y = QLinearAveragePool(x, sx, zx, sy, zy, kernel_shape=[2, 2], channels_last=1)",
    "y = QLinearGlobalAveragePool(x, sx, zx, sy, zy)",
    "y = QLinearGlobalAveragePool(i, tx, ux, ty, uy, channels_last=1)",
]


@pytest.mark.parametrize("text", QLINEAR)
def test_operator_of_integers(text, backend, rng):
    """Integers equal ONNX Runtime's, or are next to them where a result is near a half."""
    call = ms(text)
    inputs = {
        "x": bytes_of(rng, np.uint8, 2, 4, 6, 5), "z": bytes_of(rng, np.uint8, 2, 4, 6, 5),
        "i": bytes_of(rng, np.int8, 2, 4, 6, 5),
    }  # fmt: skip
    given = {name: array for name, array in inputs.items() if name in call.input}
    network, actual = outcome(call, given, KNOWN, backend)
    expected = run_onnx(network.SerializeToString(), given)["y"]
    assert actual.shape == expected.shape and len(np.unique(expected)) > 3
    off = np.abs(actual.astype(int) - expected.astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.05


def test_omitted_zero_point_is_zero(rng):
    """ONNX Runtime refuses to infer a type without zero points, though they are optional."""
    x = {"x": bytes_of(rng, np.uint8, 2, 9)}
    calls = [ms(f"y = QLinearAdd(x, sx, {zero}, x, sx, z0, sy, z0)") for zero in ("_", "z0")]
    results = [outcome(call, x, KNOWN, "cpu")[1] for call in calls]
    assert_array_equal(*results)


@pytest.mark.parametrize("call, position", [
    ("y = com.microsoft:QLinearWhere(c, x, sx, _, x, sx, z0, sy, z0)", 4),
    ("y = com.microsoft:QLinearConcat(sy, _, x, sx, z0)", 2),
    ("y = com.microsoft:QGemm(x, sx, z0, x, sx, _, _, sy, z0)", 6),
    ("y = QLinearMatMul(x, sx, z0, x, sx, z0, sy, _)", 8),
])  # fmt: skip
def test_a_zero_point_that_an_operator_requires_is_missing(call, position):
    attrs = {"axis": 0} if "Concat" in call else {}
    network = model([node(call, **attrs)], "x: uint8[2, 2], c: bool[2, 2]", "y: uint8", KNOWN)
    with pytest.raises(cml.CmlError, match=f"input {position} is missing"):
        load(network)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_microsoft_quantize_and_dequantize_have_onnx_meaning(axis, backend, rng):
    known = {"s": np.array([0.1, 0.03, 0.2], np.float32), "z": np.array([1, -7, 90], np.int8)}
    if axis is None:
        known = {name: array[1] for name, array in known.items()}
    shape = (3, 4) if axis == 0 else (2, 3, 5)
    x = {"x": rng.uniform(-6, 6, shape).astype(np.float32)}
    attrs = {} if axis is None else {"axis": axis}
    results = []
    for domain in ("com.microsoft:", ""):
        nodes = [node(f"q = {domain}QuantizeLinear(x, s, z)", **attrs),
                 node(f"y = {domain}DequantizeLinear(q, s, z)", **attrs)]  # fmt: skip
        network = model(nodes, f"x: {list(shape)}", "y, q: int8", known)
        results.append(cml.Session(load(network), backend).run(x))
        assert_allclose(results[-1]["y"], run_onnx(network.SerializeToString(), x)["y"], rtol=1e-6)
    assert_array_equal(results[0]["q"], results[1]["q"])


# -- products of integers: by their definition ---------------------------------------------------


def product_weights(rng):
    return {
        "b": rng.integers(-128, 128, (6, 4)).astype(np.int8), "zb": np.int8(-3),
        "u": rng.integers(0, 256, (6, 4)).astype(np.uint8), "zu": np.uint8(120),
        "sb": np.float32(0.02), "row": np.array([0.01, 0.03, 0.02, 0.005], np.float32),
        "zeros": np.array([3, -5, 0, 100], np.int8), "bias": np.arange(4, dtype=np.float32),
        "whole": np.array([4000, -900, 3, 70000], np.int32), "sy": np.float32(0.3),
        "zy": np.uint8(100), "sa": np.float32(0.02), "za": np.uint8(130), "zi": np.int8(9),
    }  # fmt: skip


GEMMS = [
    ("a", "za", "b", "sb", "zb", "whole"), ("a", "za", "b", "row", "zeros", "whole"),
    ("i", "zi", "b", "sb", "zb", None), ("a", "za", "u", "sb", "zu", "whole"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "za", "b", "sb", "zb", "c"), GEMMS)
@pytest.mark.parametrize("is_rounded", [True, False])
@pytest.mark.parametrize("turns", [0, 1])
def test_qgemm_is_its_definition(a, za, b, sb, zb, c, is_rounded, turns, backend, rng):
    w = product_weights(rng)
    left = bytes_of(rng, np.int8 if a == "i" else np.uint8, 5, 6)
    real = reference.dequantized(left, w["sa"], w[za])
    right = reference.dequantized(w[b], w[sb], w[zb], 1)
    expected = 0.5 * real @ right
    if c:
        expected += 0.5 * w[c] * (np.float64(w["sa"]) * w[sb].astype(np.float64))
    result = "sy, zy" if is_rounded else "_"
    call = ms(f"y = QGemm({a}, sa, {za}, {b}, {sb}, {zb}, {c or '_'}, {result})",
              alpha=0.5, transA=turns, transB=turns)  # fmt: skip
    given = {a: np.ascontiguousarray(left.T) if turns else left}
    known = w | {b: np.ascontiguousarray(w[b].T) if turns else w[b]}
    actual = outcome(call, given, known, backend)[1]
    if not is_rounded:
        assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
        return
    off = np.abs(actual.astype(int) - reference.quantized(expected, w["sy"], w["zy"]).astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.1


PRODUCTS = [
    "y = MatMulIntegerToFloat(a, b, sa, sb)",
    "y = MatMulIntegerToFloat(a, b, sa, row, za, zeros, bias)",
    "y = MatMulIntegerToFloat(i, u, sa, sb, zi, zu, bias)",
    "y = DynamicQuantizeMatMul(x, b, sb)",
    "y = DynamicQuantizeMatMul(x, b, row, zeros, bias)",
    "y = DynamicQuantizeMatMul(x, u, sb, zu)",
]


@pytest.mark.parametrize("text", PRODUCTS)
def test_product_with_a_result_of_floats_is_its_definition(text, backend, rng):
    call, w = ms(text), product_weights(rng)
    inputs = {
        "a": bytes_of(rng, np.uint8, 2, 5, 6), "i": bytes_of(rng, np.int8, 2, 5, 6),
        "x": rng.standard_normal((2, 5, 6), np.float32),
    }  # fmt: skip
    names = [*call.input, "", "", "", ""]
    left = inputs[names[0]]
    if names[0] == "x":
        scale_b, zero_b, bias = names[2:5]
        real = reference.dynamically_quantized(left)
    else:
        scale_b, zero_a, zero_b, bias = names[3:7]
        real = reference.dequantized(left, w["sa"], w.get(zero_a, 0))
    expected = real @ reference.dequantized(w[names[1]], w[scale_b], w.get(zero_b, 0), 1)
    actual = outcome(call, {names[0]: left}, w, backend)[1]
    assert_allclose(actual, expected + w.get(bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_row", [False, True])
def test_dynamic_lstm_is_its_definition(direction, per_row, backend, rng):
    length, batch, width, size = 3, 2, 5, 4
    count = 2 if direction == "bidirectional" else 1

    def scales():
        shape = (count, 4 * size) if per_row else (count,)
        return rng.uniform(0.002, 0.01, shape).astype(np.float32)

    known = {
        "w": bytes_of(rng, np.int8, count, width, 4 * size), "sw": scales(),
        "r": bytes_of(rng, np.int8, count, size, 4 * size), "sr": scales(),
        "bias": rng.standard_normal((count, 8 * size), np.float32),
    }  # fmt: skip
    known["zw"], known["zr"] = (np.full(known[s].shape, 4, np.int8) for s in ("sw", "sr"))
    x = rng.standard_normal((length, batch, width), np.float32)
    call = ms("y = DynamicQuantizeLSTM(x, w, r, bias, _, _, _, _, sw, zw, sr, zr)",
              direction=direction, hidden_size=size)  # fmt: skip
    actual = outcome(call, {"x": x}, known, backend)[1]
    outputs = []
    for d in range(count):
        w, r = (
            reference.dequantized(known[n][d], known[f"s{n}"][d], known[f"z{n}"][d])
            for n in ("w", "r")
        )
        order = range(length)[:: -1 if direction == "reverse" or d else 1]
        bias = known["bias"][d].reshape(2, -1).sum(0)
        outputs.append(_lstm(reference.dynamically_quantized(x) @ w + bias, r, order, size))
    assert_allclose(actual, np.stack(outputs, 1), rtol=1e-3, atol=2e-3)


def _lstm(projected, recurrent, order, size):
    """Returns the hidden states of an LSTM whose state is rounded before each product."""
    hidden = np.zeros((projected.shape[1], size), np.float32)
    cell, states = hidden, np.zeros((len(order), *hidden.shape))

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    for t in order:
        gates = projected[t] + reference.dynamically_quantized(hidden) @ recurrent
        i, o, f, c = np.split(gates, 4, 1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        states[t] = sigmoid(o) * np.tanh(cell)
        hidden = states[t].astype(np.float32)
    return states


# -- operators of floats -------------------------------------------------------------------------

FLOATS = {
    (3, 8): (
        "y = FusedGemm(x, m8, v8, activation='Relu')",
        "y = FusedGemm(x, m8, v8, alpha=0.5, beta=2.0, transB=1, activation='LeakyRelu', "
        "activation_alpha=0.3)",
        "y = FusedGemm(x, m8, activation='Tanh')",
    ),
    (1, 2, 4, 5): (
        "y = GridSample(x, grid)",
        "y = GridSample(x, grid, mode='nearest', padding_mode='border')",
        "y = GridSample(x, grid, mode='bicubic', padding_mode='reflection', align_corners=1)",
    ),
    (2, 5, 8): (
        "y = Attention(x, qkv, b24, num_heads=2)",
        "y = Attention(x, qkv, num_heads=4, unidirectional=1, scale=0.7)",
        "y = Attention(x, qkv, b24, ends, num_heads=2)",
        "y = Attention(x, qkv, b24, both, num_heads=2)",
        "y = Attention(x, qkv, b24, keys, num_heads=2, mask_filter_value=-50.0)",
        "y = Attention(x, qkv, b24, pairs, num_heads=2)",
        "y, p = Attention(x, qkv, b24, _, past, num_heads=2, unidirectional=1)",
        "y, p = Attention(x, qkv, b24, past_keys, past, num_heads=2)",
        "y = Attention(x, qkv, b24, _, _, added, num_heads=2)",
        "y = Attention(x, sizes, b22, num_heads=2, qkv_hidden_sizes=[8, 8, 6])",
    ),
}


def float_weights(rng):
    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    return {
        "m8": random(8, 8), "v8": random(8), "qkv": random(8, 24), "b24": random(24),
        "grid": rng.uniform(-1.3, 1.3, (1, 3, 4, 2)).astype(np.float32),
        "ends": np.array([5, 3], np.int32), "both": np.array([5, 4, 0, 1], np.int32),
        "keys": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
        "pairs": (rng.random((2, 5, 5)) < 0.7).astype(np.int32) | np.eye(5, dtype=np.int32),
        "past": random(2, 2, 2, 3, 4), "added": random(2, 2, 5, 5),
        "past_keys": np.array([[0, 1, 1, 1, 1, 1, 1, 1], [1] * 8], np.int32),
        "sizes": random(8, 22), "b22": random(22),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "text"), [(shape, text) for shape, texts in FLOATS.items() for text in texts]
)
def test_operator_of_floats(shape, text, backend, rng):
    call = ms(text)
    x = {"x": rng.standard_normal(shape, np.float32)}
    network, actual = outcome(call, x, float_weights(rng), backend)
    expected = run_onnx(network.SerializeToString(), x)["y"]
    assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_file_in_operator_format_is_an_integer_network(tmp_path, gpu):
    """A model from quantize_static in its operator format runs on integers, within one step."""
    path = quantized(
        tmp_path, small_cnn(), quant_format=QuantFormat.QOperator, activation_type=QuantType.QUInt8
    )
    graph = cml.load(path)
    assert graph.integer, [note for note in graph.notes if "quantized" in note]
    session = cml.Session(graph, "cpu")
    floats = tmp_path / "float.onnx"
    for sample in samples(4, 9):
        assert np.abs(session.run(sample)["y"] - computed(floats, sample)[0]).max() < 0.05
    assert check_bits(graph, gpu, random_words(graph, 2)).ok


@pytest.mark.filterwarnings("ignore")
def test_file_of_dynamic_quantization_is_read(tmp_path, rng):
    """A model from quantize_dynamic that ONNX Runtime optimized gives the original's values."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    weights = {"m": rng.standard_normal((8, 6), np.float32), "b": np.ones(6, np.float32)}
    nodes = "k = MatMul(x, m); a = Add(k, b); y = Tanh(a)"
    onnx.save(model(nodes, "x: [4, 8]", "y: [4, 6]", weights), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "q.onnx", weight_type=QuantType.QInt8)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(str(tmp_path / "q.onnx"), options)
    written = {n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert "DynamicQuantizeMatMul" in written
    x = {"x": rng.standard_normal((4, 8), np.float32)}
    result = cml.Session(cml.load(tmp_path / "optimised.onnx"), "cpu").run(x)["y"]
    assert np.abs(result - computed(tmp_path / "float.onnx", x)[0]).max() < 0.1
