"""Tests of quantized ONNX models as integer networks, against ONNX Runtime."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort
from onnxruntime.quantization import QuantType

import cml_engine as cml
from cml_engine.integer import run_digest
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.runtime.node_check import check_bits, random_words
from cml_engine.tools.report.integer_info import IntegerInfo
from tests.fixtures.integer.onnx import computed, samples, small_cnn
from tests.fixtures.integer.onnx import quantized as quantized_file
from tests.fixtures.onnx_models import load, model, node, saved
from tests.reference.quantized import dequantized, quantized, windows

SYMMETRIC = {"extra_options": {"ActivationSymmetric": True}}
WAYS = {
    "symmetric": {**SYMMETRIC, "per_channel": True},
    "asymmetric": {"activation_type": QuantType.QUInt8},
    "of 16 bits": {**SYMMETRIC, "activation_type": QuantType.QInt16},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_qdq_results_differ_by_at_most_one_step(way, tmp_path):
    """Results differ from ONNX Runtime's by at most one quantization step; with 16 bits by four.

    The engine rounds halves up with 15-bit multipliers, ONNX Runtime to even.
    """
    path = quantized_file(tmp_path, small_cnn(), **WAYS[way])
    graph = cml.load(path)
    assert graph.integer and any("by the model's own scales" in note for note in graph.notes)
    session, step = cml.Session(graph, "cpu"), graph.quantization["y"]["scale"]
    off = np.array([
        (session.run(sample)["y"] - computed(path, sample)[0]) / step for sample in samples(12, 9)
    ])  # fmt: skip
    limit = 1 if way != "of 16 bits" else 4
    assert np.abs(off).max() < limit + 0.05 and np.abs(off).mean() < 0.25 * limit
    floats = computed(tmp_path / "float.onnx", sample := samples(1, 9)[0])[0]
    assert np.abs(session.run(sample)["y"] - floats).max() < 0.05


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_no_bit_differs_on_the_gpu(way, tmp_path, gpu):
    graph = cml.load(quantized_file(tmp_path, small_cnn(), **WAYS[way]))
    found = check_bits(graph, gpu, random_words(graph, 3))
    assert found.ok, found


# -- operators of integers ------------------------------------------------------------------------

_SCALES = {
    "sx": np.float32(0.02), "zx": np.uint8(120), "sy": np.float32(0.07), "zy": np.uint8(131),
    "sw": np.array([0.01, 0.004], np.float32), "zw": np.array([3, 0], np.int8),
    "sm": np.float32(0.05), "zm": np.int8(0), "so": np.float32(0.5), "zo": np.uint8(60),
}  # fmt: skip


def _weights():
    rng = np.random.default_rng(5)
    return {
        **_SCALES,
        "w": rng.integers(-90, 90, (2, 3, 3, 3)).astype(np.int8),
        "b": np.array([4000, -(2**26) - 1], np.int32),
        "m": rng.integers(-128, 128, (5, 4)).astype(np.int8),
    }


def by_operators():
    """Returns a model of QLinearConv, MaxPool and QLinearMatMul."""
    nodes = [
        "q = QuantizeLinear(x, sx, zx)",
        "c = QLinearConv(q, sx, zx, w, sw, zw, sy, zy, b, pads=[1, 1, 1, 1])",
        "p = MaxPool(c, kernel_shape=[2, 2], strides=[1, 1])",
        "k = QLinearMatMul(p, sy, zy, m, sm, zm, so, zo)",
        "y = DequantizeLinear(k, so, zo)",
    ]
    return model(nodes, "x: [1, 3, 6, 6]", "y: [1, 2, 5, 4]", _weights())


def by_definition(x):
    """Returns the integers that the model of :func:`by_operators` gives, by their definition."""
    w = {name: np.asarray(array) for name, array in _weights().items()}
    q = dequantized(quantized(x, w["sx"], w["zx"]), w["sx"], w["zx"])
    filters = dequantized(w["w"], w["sw"], w["zw"], 0)
    padded = np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.einsum("nchwij,ocij->nohw", windows(padded, (3, 3)), filters)
    sums += dequantized(w["b"], w["sw"] * np.float64(w["sx"]), 0.0)[:, None, None]
    c = quantized(sums, w["sy"], w["zy"])
    p = dequantized(windows(c, (2, 2)).max((4, 5)), w["sy"], w["zy"])
    return quantized(p @ dequantized(w["m"], w["sm"], w["zm"]), w["so"], w["zo"])


def test_operators_of_integers(tmp_path, rng):
    path = saved(by_operators(), tmp_path / "m.onnx")
    graph = cml.load(path)
    assert graph.integer and graph.constants["w"].dtype == np.int8
    (bias,) = (a for a in graph.constants.values() if a.dtype == np.int32)
    assert bias.tolist() == [[4000, -(2**26) - 1]]  # beyond the exact integers of a float32
    inputs = {"x": rng.uniform(-3, 3, (1, 3, 6, 6)).astype(np.float32)}
    (actual,) = cml.Session(graph, "cpu").run(inputs).values()
    off = (actual / 0.5 + 60) - by_definition(inputs["x"])
    assert np.abs(off).max() < 1.01 and np.abs(off).mean() < 0.1


def test_qdq_network_supports_all_integer_commands(tmp_path, run_cml):
    path = saved(by_operators(), tmp_path / "m.onnx")
    graph = cml.load(path)
    inputs = random_words(graph, 3)
    np.save(tmp_path / "x.npy", inputs["x"])
    given = f"-i x={tmp_path / 'x.npy'} --digest --backend cpu"
    run_cml(f"convert {path} {tmp_path}/net.nnef")
    digests = {run_digest(graph, cml.Session(graph, "cpu").run(inputs))}
    for name in ("m.onnx", "net.nnef"):
        digests.add(run_cml(f"run {tmp_path}/{name} {given}").out.splitlines()[-1])
    assert len(digests) == 1
    assert "matmul 'k_matmul', clamp" in run_cml(f"info {path} --integer").out


@pytest.mark.parametrize(
    "nodes",
    [
        "y = ReduceMean(d, axes=[2, 3], keepdims=0)",
        "s = Sigmoid(d); y = Flatten(s)",
        "m = Mul(d, d); r = Flatten(m); y = Unsqueeze(r, first)",
        "a = Abs(d); m = Max(a, d); y = Add(m, d)",
    ],
)
def test_means_views_and_maxima_have_an_integer_form(nodes, tmp_path):
    """A result is rounded before it is reshaped, and integers are never NaN."""
    begin = "q = QuantizeLinear(x, sx, zx); d = DequantizeLinear(q, sx, zx)"
    end = "w = QuantizeLinear(y, sm, zx); z = DequantizeLinear(w, sm, zx)"
    constants = {**_SCALES, "first": np.array([0])}
    network = model(f"{begin}; {nodes}; {end}", "x: [1, 3, 6, 6]", "z", constants, 17)
    path = saved(network, tmp_path / "m.onnx")
    graph = cml.load(path)
    assert graph.integer
    inputs = {"x": np.linspace(-2, 2, 108, dtype=np.float32).reshape(1, 3, 6, 6)}
    (got,), (want,) = cml.Session(graph, "cpu").run(inputs).values(), computed(path, inputs)
    assert_allclose(got, want, atol=0.0501)
    assert np.ptp(got) > 0.2


@pytest.mark.parametrize("operands", ["q, s, z, m, sm, z", "m, sm, z, q, s, z"])
def test_integer_product_with_a_constant_on_either_side(operands, rng):
    """QLinearMatMul has an integer form, whichever of its operands is the constant."""
    constants = {
        "m": rng.integers(-30, 30, (5, 5)).astype(np.int8),
        "s": np.float32(0.02),
        "sm": np.float32(0.01),
        "z": np.int8(0),
    }
    nodes = f"q = QuantizeLinear(x, s, z); k = QLinearMatMul({operands}, s, z)"
    network = model(f"{nodes}; y = DequantizeLinear(k, s, z)", "x: [5, 5]", "y", constants, 17)
    graph = load(network)
    assert graph.integer
    x = {"x": rng.standard_normal((5, 5), np.float32)}
    (expected,) = ort.InferenceSession(network.SerializeToString()).run(None, x)
    assert_array_equal(cml.Session(graph, "cpu").run(x)["y"], expected)


def test_quantized_arithmetic_of_shapes_has_an_integer_form(rng):
    """Quantizers of ONNX Runtime also quantize sums of extents, which are known at load."""
    nodes = (
        "q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z); r = Relu(d); "
        "e = com.microsoft:QLinearAdd(k, s, z, k, s, z, s, z); f = DequantizeLinear(e, s, z); "
        "c = Ceil(f); i = Cast(c, to=7); a = QuantizeLinear(r, s, z); o = DequantizeLinear(a, s, z)"
    )
    constants = {"k": np.array([5, 5, 9], np.uint8), "s": np.float32(0.1), "z": np.uint8(0)}
    network = model(f"{nodes}; y = Tile(o, i)", "x: [1, 3, 3]", "y", constants, 17)
    graph = load(network)
    assert graph.integer
    x = {"x": rng.uniform(-3, 20, (1, 3, 3)).astype(np.float32)}
    (expected,) = ort.InferenceSession(network.SerializeToString()).run(None, x)
    assert_allclose(cml.Session(graph, "cpu").run(x)["y"], expected, atol=1e-5)


#: models without an integer form: the nodes after a QuantizeLinear to ``q``, constants, the message
FLOATS = {
    "two scales": (
        "k = MaxPool(q, kernel_shape=[1, 1]); y = DequantizeLinear(k, sm, zo)", {},
        "DequantizeLinear 'y': reads integers by another scale"),
    "arithmetic": (
        "k = Identity(q); y = Cast(k, to=1)", {}, "Cast 'y': Cast computes with integers"),
    "16 bits that start elsewhere": (
        "l = QuantizeLinear(x, sx, zl); y = DequantizeLinear(l, sx, zl)",
        {"zl": np.uint16(77)}, "zero point 77 of uint16.*ActivationSymmetric"),
    "a scale that is computed": (
        "l, s, z = DynamicQuantizeLinear(x); y = DequantizeLinear(l, s, z)",
        {}, "DynamicQuantizeLinear 'l'.*quantize_static"),
    "a scale of each channel": (
        "l = QuantizeLinear(x, sl, zl, axis=1); y = DequantizeLinear(l, sl, zl, axis=1)",
        {"sl": np.ones(3, np.float32), "zl": np.zeros(3, np.int8)},
        "3 scales of a computed tensor"),
    "weights of floats": (
        "d = DequantizeLinear(q, sx, zx); y = Conv(d, f)",
        {"f": np.ones((1, 3, 1, 1), np.float32)}, "conv 'y': its weights 'f' are numbers"),
    "an operator of floats": (
        "d = DequantizeLinear(q, sx, zx); y = Softmax(d)", {},
        "Softmax 'y': softmax 'y' has no integer form"),
    "sums that are read": (
        "d = DequantizeLinear(q, sx, zx); e = Mul(d, d); y = MaxPool(e, kernel_shape=[1, 1])", {},
        "max_pool 'y' reads 'e', which no QuantizeLinear rounds"),
    "a view of sums that is read": (
        "d = DequantizeLinear(q, sx, zx); e = Mul(d, d); y = Flatten(e)", {},
        "reshape 'y' reads 'e', which no QuantizeLinear rounds"),
    "numbers that are read": (
        "d = DequantizeLinear(q, sx, zx); y = Add(d, x)", {},
        "add 'y' reads 'x' before it is rounded"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLOATS)
def test_qdq_network_without_integer_form_runs_in_floats(case, tmp_path):
    """A quantized model that cannot run on integers runs on floats and agrees with ONNX Runtime.

    The request for an integer network raises an ``InputError`` that names the node and the reason.
    """
    nodes, arrays, why = FLOATS[case]
    constants = {**_SCALES, "zo": np.uint8(3), **arrays}
    network = model(
        f"q = QuantizeLinear(x, sx, zx); {nodes}", "x: [1, 3, 6, 6]", "y", constants, 21
    )
    path = saved(network, tmp_path / "m.onnx")
    graph = cml.load(path)
    inputs = {"x": np.linspace(-2, 2, 108, dtype=np.float32).reshape(1, 3, 6, 6)}
    (actual,) = cml.Session(graph, "cpu").run(inputs).values()
    assert_allclose(actual, computed(path, inputs)[0], rtol=1e-5, atol=1e-5)
    assert not graph.integer
    with pytest.raises(cml.InputError, match=f"is quantized, and computed in floats: .*{why}"):
        IntegerInfo.of(graph, points=True, gas=False)


# -- zero points ----------------------------------------------------------------------------------

_PARTS = {
    "s": np.float32(0.1), "z": np.uint8(3), "w": np.ones((3, 3, 1, 1), np.uint8),
    "m": np.ones((4, 3), np.uint8),
}  # fmt: skip
#: nodes with a scale ``a`` and a zero point ``b`` of 3 channels; whether the pair is of weights
PAIRS = {
    "QuantizeLinear": ("y = QuantizeLinear(x, a, b)", False),
    "DequantizeLinear": ("q = QuantizeLinear(x, s, z); y = DequantizeLinear(q, a, b)", False),
    "constants": ("d = DequantizeLinear(w, a, b); y = Conv(x, d)", False),
    "QLinearConv": (
        "q = QuantizeLinear(x, s, z); y = QLinearConv(q, s, z, w, a, b, s, z)", True),
    "QLinearConv's result": (
        "q = QuantizeLinear(x, s, z); y = QLinearConv(q, s, z, w, s, z, a, b)", False),
    "QLinearMatMul": (
        "q = QuantizeLinear(x, s, z); y = QLinearMatMul(q, s, z, m, a, b, s, z)", True),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("zero", [(), (1,), (2,), (3,), (1, 1)])
@pytest.mark.parametrize("scale", [(), (1,), (3,)])
def test_a_zero_point_has_the_shape_of_its_scale(name, scale, zero):
    """Others are refused: the message has the operator and both shapes."""
    nodes, is_weights = PAIRS[name]
    pair = {"a": np.full(scale, 0.1, np.float32), "b": np.full(zero, 3, np.uint8)}
    network = model(nodes, "x: [1, 3, 4, 4]", "y", {**_PARTS, **pair}, 21)
    one = [shape in ((), (1,)) for shape in (scale, zero)]
    if scale == zero or all(one) or (is_weights and any(one) and zero in ((), (1,), (3,))):
        load(network)
        return
    shown = re.escape(f"uint8[{','.join(map(str, zero))}")
    with pytest.raises(cml.ModelError, match=f"(antizeLinear|QLinear).*{shown}") as refused:
        load(network)
    # weights of the wrong number of channels have another message
    assert is_weights and zero == (2,) or "wanted the shape of its scale" in str(refused.value)


# -- floats as integers of few bits, at run time --------------------------------------------------


def ranges(kind, rng):
    """Returns 64 random numbers: around 0, all 0, all above or below 0, or halves between two
    integers.

    ``kind`` is "any", "zero", "above", "below" or "ties".
    """
    x = rng.uniform(-3, 3, 64)
    if kind == "zero":
        x[:] = 0
    elif kind in ("above", "below"):
        x = np.abs(x) * (1 if kind == "above" else -1)
    elif kind == "ties":
        low = rng.integers(-255, 1)
        x = rng.integers(low, low + 255, 64) + 0.5
        x[:2] = low, low + 255
        x *= rng.choice([rng.uniform(0.001, 2), 2.0 ** rng.integers(-4, 4)])
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", ["any", "zero", "above", "below", "ties"])
def test_dynamic_quantization(kind, backend, rng, tmp_path):
    """DynamicQuantizeLinear gives the integers, scale and zero point of ONNX Runtime.

    ONNX Runtime uses the scale 1 for a range of zero.
    """
    outputs = "y: uint8[64], s: [], z: uint8[]"
    network = model("y, s, z = DynamicQuantizeLinear(x)", "x: [64]", outputs)
    path = saved(network, tmp_path / "m.onnx")
    session = cml.Session(cml.load(path), backend)
    for _ in range(30):
        x = ranges(kind, rng)
        for actual, expected in zip(
            session.run({"x": x}).values(), computed(path, {"x": x}), strict=True
        ):
            assert_array_equal(actual, expected)


FLOATS_TO_CAST = np.array(
    [0, -0.5, 1.9, -1.9, 127, 128, -129, 255, 256, 300, -300, 40000, -40000, 2.0**31 - 128,
     2.0**31, 3e9, -3e9, 2.0**32 - 256, 2.0**32, 1e10, -1e20, np.inf, -np.inf, np.nan],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_casts_of_out_of_range_floats_wrap(dtype, gpu):
    """A cast of a float gives the low bits of the nearest 32-bit integer, on both backends.

    Constants and inputs are cast alike.
    """
    target = np.dtype(dtype)
    call = node("y = Cast(x)", to=onnx.helper.np_dtype_to_tensor_dtype(target))
    most = 2.0**32 - 256 if dtype == "uint32" else 2.0**31 - 1  # the largest float of 32 bits
    whole = np.nan_to_num(FLOATS_TO_CAST.astype(np.float64)).clip(-(2.0**31), most)
    expected = whole.astype(np.int64).astype(target)
    for known in ({}, {"x": FLOATS_TO_CAST}):
        if known and dtype == "uint32":
            continue  # constants beyond 2^31 are refused
        inputs = "unused: [1]" if known else f"x: [{FLOATS_TO_CAST.size}]"
        network = model([call], inputs, "y", known)
        feeds = {"unused": np.zeros(1, np.float32)} if known else {"x": FLOATS_TO_CAST}
        for backend in ("cpu", gpu):
            result = cml.Session(load(network), backend).run(feeds)["y"]
            assert_array_equal(result, expected.astype(np.int32), err_msg=f"{known}")


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_in_blocks_stay_in_few_bits(bits, rng):
    """Constants of DequantizeLinear with a block size are floats that know their integers."""
    most = 2 ** (bits - 1)
    codes = {
        "f": rng.integers(-most, most, (6, 32, 3, 3)).astype(np.int8),
        "m": rng.integers(-most, most, (20, 5)).astype(np.int8),
    }
    scales = {
        "f_scale": rng.random((6, 2, 3, 3)).astype(np.float32),
        "m_scale": rng.random((2, 5)).astype(np.float32),
    }
    nodes = (
        "fd = DequantizeLinear(f, f_scale, axis=1, block_size=16); "
        "md = DequantizeLinear(m, m_scale, axis=0, block_size=10); "
        "c = Conv(x, fd); r = Reshape(c, shape); y = MatMul(r, md)"
    )
    weights = {**codes, **scales, "shape": np.array([2, 3, 20], np.int64)}
    network = model(nodes, "x: [1, 32, 6, 7]", "y: [2, 3, 5]", weights, opset=21)
    graph = load(network)
    x = {"x": rng.standard_normal((1, 32, 6, 7), np.float32)}
    (expected,) = ort.InferenceSession(network.SerializeToString()).run(None, x)
    assert_allclose(cml.Session(graph, "cpu").run(x)["y"], expected, rtol=1e-4, atol=1e-3)
    found = [b for a in graph.constants.values() if (b := weight_blocks(a))]
    assert sorted((b.axis, b.size, b.bits) for b in found) == [(1, 10, bits), (1, 16, bits)]


@pytest.mark.parametrize("name", ["int4", "uint4"])
@pytest.mark.parametrize("is_integer", [False, True])
def test_quantizing_to_4_bits(name, is_integer):
    """QuantizeLinear clamps to the 16 integers of 4 bits, by its zero point's or a stated type."""
    element = onnx.TensorProto.DataType.Value(name.upper())
    low = -8 if name == "int4" else 0
    zero = onnx.helper.make_tensor("z", element, [], [low + 5])
    end = "" if is_integer else "; y = Softmax(d)"
    stated = f"QuantizeLinear(x, s, output_dtype={element})"
    for quantize, zeros in (("QuantizeLinear(x, s, z)", ", z"), (stated, "")):
        nodes = f"q = {quantize}; {'y' if is_integer else 'd'} = DequantizeLinear(q, s{zeros}){end}"
        network = model(nodes, "x: [1, 41]", "y", {"s": np.float32(0.5)}, opset=21)
        network.graph.initializer.append(zero)
        x = {"x": np.linspace(-10, 10, 41, dtype=np.float32)[None]}
        graph = load(network)
        (expected,) = ort.InferenceSession(network.SerializeToString()).run(None, x)
        assert_allclose(cml.Session(graph, "cpu").run(x)["y"], expected, rtol=1e-5, atol=1e-6)
        assert np.ptp(expected) > 0 and graph.integer == (is_integer and bool(zeros))
