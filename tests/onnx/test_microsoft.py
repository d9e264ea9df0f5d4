"""Tests of Microsoft's operators, which ONNX Runtime writes into files that it optimizes."""

import re
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

import cml_engine as cml  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from cml_engine.ir.block_weights import weight_blocks  # noqa: E402
from tests.fixtures.messages import raises  # noqa: E402
from tests.fixtures.onnx_models import (  # noqa: E402
    agrees_with_runtime,
    exported_cnn,
    load,
    model,
    node,
    run,
    saved,
)
from tests.proofs.onnx_nodes import run_onnx  # noqa: E402


def ms(text, **attrs):
    """Returns a node of Microsoft's domain."""
    return node(text.replace(" = ", " = com.microsoft:"), **attrs)


#: nodes by the shape of x; results with an underscore are not compared
CALLS = {
    (2, 5, 8): (
        "y = Gelu(x)",
        "y = FastGelu(x, v8)",
        "y = BiasGelu(x, v8)",
        "y = QuickGelu(x, alpha=1.5)",
        "y = FusedMatMul(x, m8, alpha=0.5, transB=1)",
        "y = FusedMatMul(x, e, transA=1, transBatchA=1, transB=1)",
        "y = FusedMatMul(x, f, transBatchA=1, transBatchB=1)",
        "y, _m, _d, z = SkipLayerNormalization(x, s, v8, u8, t8, epsilon=0.001)",
        "y, _m, _d, z = SkipSimplifiedLayerNormalization(x, s, v8, t8)",
        "y = MultiHeadAttention(x, k, q, num_heads=2)",
        "y = MultiHeadAttention(x, k, q, _, _, a, num_heads=4, scale=0.3)",
        "y = MultiHeadAttention(x, k, q, v24, mask, a, num_heads=4)",
        "y = MultiHeadAttention(x, k, q, _, lengths, num_heads=2)",
        "y, o, r = MultiHeadAttention(x, s, s, v24, _, _, past, past, num_heads=2)",
        "y = MultiHeadAttention(x, s, s, num_heads=2, unidirectional=1)",
        "y = RotaryEmbedding(x, p, c, n, num_heads=2)",
        "y = RotaryEmbedding(x, p, c, n, num_heads=2, interleaved=1)",
    ),
    (1, 4, 6, 6): (
        "y = FusedConv(x, w, b4, activation='Relu', pads=[1, 1, 1, 1])",
        "y = FusedConv(x, w, b4, activation='Clip', activation_params=[-0.1, 0.3])",
        "y = FusedConv(x, w, b4, activation='HardSigmoid', activation_params=[0.3, 0.4])",
    ),
    (2, 5, 64): (
        "y, o, r = GroupQueryAttention(x, g, g, _, _, n4, n5, num_heads=4, kv_num_heads=2)",
    ),
    (1, 5, 64): (
        "y, o, r = GroupQueryAttention(packed, _, _, past2, past2, n7, n8, c1, d1, num_heads=4, "
        "kv_num_heads=2, do_rotary=1, local_window_size=4, softcap=2.0)",
        "y, o, r = GroupQueryAttention(x, g1, g1, past2, past2, n7, n8, c1, d1, num_heads=4, "
        "kv_num_heads=2, do_rotary=1, rotary_interleaved=1)",
    ),
}


def weights(rng):
    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    int32 = ("mask", "lengths", "n4", "n5", "n7", "n8")
    angles = np.outer(np.arange(16), [1.0, 0.3]).astype(np.float32)
    wide = np.outer(np.arange(16), np.linspace(1.0, 0.1, 8)).astype(np.float32)
    made = {
        "v8": random(8), "u8": random(8), "t8": random(8), "m8": random(8, 8), "b4": random(4),
        "w": random(4, 4, 3, 3), "s": random(2, 5, 8), "k": random(2, 7, 8), "q": random(2, 7, 8),
        "e": random(5, 7, 2), "f": random(8, 5, 3),
        "a": random(2, 4, 5, 7), "p": np.tile(np.arange(5, dtype=np.int64), (2, 1)),
        "c": np.cos(angles), "n": np.sin(angles),
        "v24": random(24), "mask": np.arange(7) < np.array([[5], [7]]), "lengths": [6, 3],
        "past": random(2, 2, 3, 4), "past2": random(1, 2, 3, 16),
        "g": random(2, 5, 32), "packed": random(1, 5, 128), "g1": random(1, 5, 32),
        "n4": [4, 4], "n5": 5, "n7": [7],
        "n8": 8, "c1": np.cos(wide), "d1": np.sin(wide),
    }  # fmt: skip
    return made | {name: np.asarray(made[name], np.int32) for name in int32}


@pytest.mark.parametrize(
    ("shape", "text"), [(shape, text) for shape, texts in CALLS.items() for text in texts]
)
def test_operator(rng, shape, text):
    agrees_with_runtime(ms(text), rng.standard_normal(shape, np.float32), weights(rng))


@pytest.mark.parametrize(
    "call",
    (
        "EmbedLayerNormalization(i, s, w, p, t, g, b, mask, at, epsilon=0.001)",
        "EmbedLayerNormalization(i, _, w, p, _, g, b)",
    ),
)
def test_embeddings_are_summed_and_normalized(call, rng):
    """The second result has the lengths of the masks, the third the sums."""
    read = re.split("[(), ]+", call)
    extents = {"i": 9, "s": 2, "mask": 2, "at": 6}
    inputs = {
        name: rng.integers(0, n, (2, 5)).astype(np.int32)
        for name, n in extents.items()
        if name in read
    }
    tables = {"w": (9, 8), "p": (6, 8), "t": (2, 8), "g": (8,), "b": (8,)}
    known = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in tables.items()
        if name in read
    }
    declared = ", ".join(f"{name}: int32[2, 5]" for name in inputs)
    made = model([ms(f"y, n, e = {call}")], declared, "y, n: int32, e", known)
    actual = run(made, **inputs)
    for name, want in run_onnx(made.SerializeToString(), inputs).items():
        assert_allclose(actual[name], want, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(8, "middle"), (8, "codes"), *product((2, 4), ("middle", "codes", "floats"))],
)
def test_weights_of_a_few_bits_stay_in_blocks(bits, zeros, rng):
    """The weights of 6 rows of 48 codes, in blocks of 16 with a zero point each, agree.

    ONNX Runtime lacks zero points of floats for 8 bits.
    """
    given = {
        "codes": rng.integers(0, 256, (6, 3, 2 * bits)).astype(np.uint8),
        "scales": rng.uniform(-1, 1, 18).astype(np.float32),
    }
    if zeros == "codes":
        given["zeros"] = rng.integers(0, 256, 6 * -(-3 * bits // 8)).astype(np.uint8)
    elif zeros == "floats":
        given["zeros"] = rng.uniform(0, 2**bits, 18).astype(np.float32)
    call = ms(f"y = MatMulNBits({', '.join(['x', *given])}, K=40, N=6, block_size=16)", bits=bits)
    graph = agrees_with_runtime(call, rng.uniform(-1, 1, (2, 5, 40)).astype(np.float32), given)
    (blocks,) = (found for a in graph.constants.values() if (found := weight_blocks(a)))
    assert blocks.bits == (8 if bits == 8 else 4)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"block_size": 32}, "48 codes a row, wanted 2 times 32"),
        ({"N": 5}, "cannot take inputs"),
        ({"weight_prepacked": 1}, "weight_prepacked=1"),
    ],
)
def test_weights_that_do_not_fill_their_blocks_are_refused(attrs, message):
    given = {"codes": np.zeros((6, 3, 8), np.uint8), "scales": np.ones(18, np.float32)}
    sizes = {"K": 40, "N": 6, "bits": 4, "block_size": 16, "weight_prepacked": 0}
    load(model([ms("y = MatMulNBits(x, codes, scales)", **sizes)], "x: [2, 40]", "y", given))
    sizes |= attrs
    call = ms("y = MatMulNBits(x, codes, scales)", **sizes)
    with pytest.raises(cml.ModelError, match=message):
        load(model([call], "x: [2, 40]", "y", given))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("kind", "bits"), [("UINT8", 2), ("UINT8", 4), ("UINT8", 8), ("UINT4", 4)])
def test_rows_of_a_table_of_a_few_bits(kind, bits, zeros, rng):
    """Rows of 48 integers in blocks of 16; those of uint8 are packed into its bits."""
    data, zero_points = (
        helper.make_tensor(name, TensorProto.DataType.Value(kind), (6, n), integers)
        for name, columns in (("data", 48), ("zeros", 3))
        for n in [-(-columns * bits // 8) if kind == "UINT8" else columns]
        for integers in [rng.integers(0, 16, 6 * n)]
    )
    inputs = "data, i, scales, zeros" if zeros else "data, i, scales"
    call = ms(f"y = GatherBlockQuantized({inputs})", block_size=16, bits=bits)
    scales = rng.uniform(-1, 1, (6, 3)).astype(np.float32)
    network = model([call], "i: int64[2, 2]", "y", {"scales": scales}, opset=21)
    network.graph.initializer.extend([data, zero_points])
    i = np.array([[0, -1], [3, 3]])
    expected = run_onnx(network.SerializeToString(), {"i": i})["y"]
    assert_allclose(run(network, i=i)["y"], expected, rtol=1e-6)


def test_group_norm(rng):
    """GroupNorm with an activation agrees with its formula in NumPy.

    ONNX Runtime has this operator only on other devices.
    """
    given = {name: weights(rng)[name] for name in ("v8", "u8")}
    call = ms("y = GroupNorm(x, v8, u8, groups=2, activation=1, epsilon=0.001)")
    x = rng.standard_normal((2, 3, 5, 8), np.float32)
    outputs = run(model([call], "x: [2, 3, 5, 8]", "y", given), x=x)
    parts = x.reshape(2, 15, 2, 4)
    mean, variance = (f(parts, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    even = ((parts - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape)
    expected = even * given["v8"] + given["u8"]
    assert_allclose(outputs["y"], expected / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-5)


def test_file_optimized_by_onnx_runtime_is_read(rng, tmp_path):
    network = exported_cnn(rng)
    for dim, extent in zip(
        network.graph.input[0].type.tensor_type.shape.dim, (1, 3, 8, 8), strict=True
    ):
        dim.Clear()
        dim.dim_value = extent
    saved(network, tmp_path / "m.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), options)
    x = rng.standard_normal((1, 3, 8, 8), np.float32)
    outputs = cml.Session(cml.load(tmp_path / "optimised.onnx"), "cpu").run({"image": x})
    (expected,) = session.run(None, {"image": x})
    assert_allclose(outputs["output"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("past", [0, 1, 3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 4), (3, 3), (4, 2), (2, 4), (3, 5)])
def test_unidirectional_attention_to_more_keys(queries, keys, past, rng):
    """One query attends to all keys, which end with it; several to more keys are refused."""
    pair = rng.standard_normal((2, 1, keys, 8)).astype(np.float32)
    weights = {"k": pair[0], "v": pair[1]}
    call = "y = MultiHeadAttention(x, k, v, num_heads=2, unidirectional=1)"
    if past:
        before = rng.standard_normal((2, 1, 2, past, 4)).astype(np.float32)
        weights |= {"pk": before[0], "pv": before[1]}
        call = call.replace("y =", "y, o, r =").replace("v, num", "v, _, _, _, pk, pv, num")
    x = rng.standard_normal((1, queries, 8)).astype(np.float32)
    if 1 < queries < keys:
        with raises(UnsupportedOp, f"unidirectional with {queries} queries and {keys} keys"):
            agrees_with_runtime(ms(call), x, weights)
    else:
        agrees_with_runtime(ms(call), x, weights)
