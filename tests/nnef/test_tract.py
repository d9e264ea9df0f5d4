"""Tests of NNEF as tract and torch_to_nnef write it: extension lines, operators and literals."""

import struct

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.errors import CmlError
from cml_engine.ir.block_weights import weight_blocks
from tests.fixtures.messages import raises

HEAD = """version 1.0;
extension tract_registry tract_core;
extension KHR_enable_fragment_definitions;
"""


def load(folder, body, inputs="x", head=HEAD, results="y"):
    text = f"{head}graph net({inputs}) -> ({results})\n{{\n{body}\n}}\n"
    (folder / "graph.nnef").write_text(text)
    return cml.load(folder)


#: calls, and the calls of the standard's operators and ours that they mean
CALLS = [
    ("tract_core_tan(x)", "tan(x)"),
    ("tract_core_atan(x)", "atan(x)"),
    ("tract_core_acos(0.5 * tanh(x))", "acos(0.5 * tanh(x))"),
    ("tract_core_asin(0.5 * tanh(x))", "asin(0.5 * tanh(x))"),
    ("tract_core_cosh(x)", "cosh(x)"),
    ("tract_core_sinh(x)", "sinh(x)"),
    ("tract_core_asinh(x)", "asinh(x)"),
    ("tract_core_acosh(1.0 + exp(x))", "acosh(1.0 + exp(x))"),
    ("tract_core_atanh(0.5 * tanh(x))", "atanh(0.5 * tanh(x))"),
    ("tract_core_round_even(x)", "floor(x) + select(x - floor(x) > 0.5, 1.0, 0.0)"),
    ("tract_core_round_even(copy(2.5) + 0.0 * x)", "2.0 + 0.0 * x"),
    ("tract_core_silu(x)", "x / (1.0 + exp(-x))"),
    ("tract_core_erf(x)", "gelu_erf(x * 1.4142135) / (x * 0.70710677) - 1.0"),
    ("tract_core_gelu_approx(x, fast_impl = false)",
     "0.5 * x * (1.0 + tanh(0.7978846 * (x + 0.044715 * x * x * x)))"),
    ("tract_core_gelu_approx(x, fast_impl = true)",
     "0.5 * x * (1.0 + tanh(0.7978846 * (x + 0.044715 * x * x)))"),
    ("tract_core_softmax(x, axes = [2], exp = 'fast_compact')", "softmax(x, axes = [2])"),
    ("tract_core_log_softmax(x, axes = [1])", "log(softmax(x, axes = [1]))"),
    ("tract_core_rms_norm(x, axis = 2, eps = 0.01)",
     "x / sqrt(mean_reduce(x * x, axes = [2]) + 0.01)"),
    ("tract_core_product_reduce(x, axes = [1])",
     "slice(x, axes = [1], begin = [0], end = [1]) * slice(x, axes = [1], begin = [1], end = [2])"),
    ("tract_core_einsum([x, x], expr = 'bij,bkj->bik', acc = 'f32')",
     "matmul(x, x, transposeB = true)"),
    ("tract_core_gather(x, tract_core_cast([2, 0], to = 'i64'), axis = 2)",
     "concat([slice(x, axes = [2], begin = [2], end = [3]), "
     "slice(x, axes = [2], begin = [0], end = [1])], axis = 2)"),
    ("tract_core_broadcast(x, shape = [3, 2, 4])", "tile(x, repeats = [3, 1, 1])"),
    ("tract_core_cast(tract_core_cast(2.0 * x, to = 'i32'), to = 'f16')",
     "sign(x) * floor(abs(2.0 * x))"),
    ("tract_core_cast(tract_core_xor(x > 0.0, x > 1.0), to = 'f32')",
     "select(x > 0.0 && x <= 1.0, 1.0, 0.0)"),
    ("x * [[[0.5], [2]]]",
     "x * select(x == x, constant(shape = [1, 2, 1], value = [0.5, 2.0]), x)"),
    ("add(x, [1.0])", "x + 1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "meaning"), CALLS)
def test_operators(tmp_path, rng, call, meaning):
    source = "x = tract_core_external(shape = [1, 2, 4], datum_type = 'f32');"
    graph = load(tmp_path, f"    {source}\n    y = {call};\n    z = {meaning};", results="y, z")
    found = cml.Session(graph, "cpu").run({"x": rng.standard_normal((1, 2, 4), np.float32)})
    assert_allclose(found["y"], found["z"], rtol=2e-5, atol=2e-6)


def test_two_results_and_integers(tmp_path):
    body = """    x = tract_core_external(shape = [1, 5], datum_type = 'F32');
    i = tract_core_external(shape = [1, 2], datum_type = 'i64');
    v, at = tract_core_topk(x, k = 2, axis = 1, largest = true);
    y = tract_core_gather_elements(v, i, axis = 1);"""
    graph = load(tmp_path, body, "x, i")
    assert [graph.facts[name].dtype for name in graph.inputs] == ["scalar", "integer"]
    x, i = np.array([[3, 1, 4, 1, 5]], np.float32), np.array([[1, 0]], np.int32)
    assert cml.Session(graph, "cpu").run({"x": x, "i": i})["y"].tolist() == [[4, 5]]


def test_tract_model_is_saved_as_nnef(tmp_path):
    graph = load(
        tmp_path,
        "    x = tract_core_external(shape = [1, 3], datum_type = 'f32');\n"
        "    y = tract_core_silu(x * [[1.0, 2.0, 3.0]]);",
    )
    cml.save(graph, tmp_path / "again")
    text = (tmp_path / "again" / "graph.nnef").read_text()
    assert "tract" not in text
    assert [node.op for node in cml.load(tmp_path / "again").nodes] == ["mul", "silu"]


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ("extension tract_registry tract_core;\nextension tract_symbol S;\n"
         "extension tract_assert S >= 1;\n",
         "x = external(shape = [S, 3]);\n y = relu(x);", "leaves 'S' open: say --shape x=S,3"),
        (HEAD, "x = tract_core_external(shape = [3], datum_type = 'blob');\n y = relu(x);",
         "the type 'blob' is unknown: wanted f32"),
        (HEAD, "x = external(shape = [3]);\n y = tract_core_fft(x);",
         "unknown operator 'tract_core_fft'"),
        (HEAD, "x = external(shape = [2, 2]);\n y = x + [[1.0], [1.0, 2.0]];",
         "wanted a tensor, or numbers in even rows"),
        (HEAD, "x = external(shape = [2, 2]);\n y = x + [];", "wanted a tensor, or numbers"),
        ("extension vendor_things;\n", "x = external(shape = [2]);\n y = relu(x);",
         "unknown extension 'vendor_things'"),
        ("extension tract_assert S >= 1", "", "';'"),
    ],
)  # fmt: skip
def test_unsupported_symbols_are_refused(tmp_path, head, body, message):
    with raises(CmlError, message):
        load(tmp_path, body, head="version 1.0;\n" + head.removeprefix("version 1.0;\n"))


# -- output of torch_to_nnef and older versions of tract -------------------------------------------


def result_of(body, head=""):
    """Returns ``y`` of a model with these statements on the CPU, for an input ``x`` of ones, [2,
    3].

    The text declares the first extent of ``x`` as the symbol S.
    """
    text = (
        f"version 1.0;\nextension tract_registry tract_core;\n{head}graph g(x) -> (y)\n"
        f"{{\n    x = external(shape = [S, 3]);\n{body}\n}}\n"
    )
    graph = cml.load(cml.nnef.MemoryModel(text), shapes={"x": (2, 3)})
    return cml.Session(graph, "cpu").run({"x": np.ones((2, 3), np.float32)})["y"]


@pytest.mark.parametrize(
    ("number", "found"),
    [
        ("0.5", 0.5),
        ("[0.5]", 0.5),
        ("[[0.5]]", 0.5),
        ("[0.5, 1.0, 2.0]", [0.5, 1, 2]),
        ("[[0.5, 1.0, 2.0]]", [0.5, 1, 2]),
        ("[[0.5], [1.0]]", [[0.5], [1]]),
        ("tract_core_broadcast([0.5, 1.0, 2.0], shape = [1, 3])", [0.5, 1, 2]),
    ],
)
def test_numbers_are_broadcast(number, found):
    y = result_of(f"b = tract_core_broadcast({number}, shape = [S, 3]); y = x * b;")
    assert_array_equal(y, np.broadcast_to(np.array(found, np.float32), (2, 3)))


@pytest.mark.parametrize(
    "fragment",
    [
        "fragment silu(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x * 10.0; }\n",
        "fragment silu(input: tensor<scalar>) -> (z: tensor<scalar>) { z = input * 10.0; }\n",
        "fragment mish(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x * 10.0; }\n",
    ],
)
def test_models_fragment_precedes_the_tract_library(fragment):
    head = "extension KHR_enable_fragment_definitions;\n" + fragment
    name = fragment.split("(")[0].split()[1]
    assert result_of(f"y = {name}(x);", head).tolist() == [[10] * 3] * 2
    ours = result_of("y = tract_core_silu(x);", head)  # our libraries mean the standard's
    assert_allclose(ours, 1 / (1 + np.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize(("code", "is_paired"), [(0x3040, False), (0x2040, True)])
def test_weights_of_q4_0(tmp_path, code, is_paired):
    """Weights in tract's format Q4_0 keep their blocks, in both orders of their 4-bit values.

    A block of 32 values has a float16 scale and 4 bits for each value.
    """
    rng = np.random.default_rng(1)
    codes, scales = rng.integers(0, 16, (6, 32), np.uint8), rng.normal(size=6).astype(np.float16)
    low, high = (codes[:, ::2], codes[:, 1::2]) if is_paired else (codes[:, :16], codes[:, 16:])
    packed = np.concatenate([scales.view(np.uint8).reshape(6, 2), low | high << 4], 1).tobytes()
    header = struct.pack(
        "<2s2BII8III32s44s", b"N\xef", 1, 0, len(packed), 2, 3, 64, 0, 0, 0, 0, 0, 0,
        0xFFFFFFFF, 0x5452 << 16 | code, b"", b"",
    )  # fmt: skip
    (tmp_path / "graph.nnef").write_text(
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external(shape = [1, 64]);\n"
        "    w = variable(shape = [3, 64], label = 'w');\n"
        "    y = matmul(x, w, transposeB = true);\n}\n"
    )
    (tmp_path / "w.dat").write_bytes(header + packed)
    found = cml.load(tmp_path).constants["w"]
    expected = (codes.astype(np.float32) - 8) * scales.astype(np.float32)[:, None]
    assert_array_equal(found, expected.reshape(3, 64))
    blocks = weight_blocks(found)
    assert (blocks.axis, blocks.size, blocks.bits, blocks.scales.shape) == (1, 32, 4, (3, 2))
    (tmp_path / "w.dat").write_bytes(header + packed[:-1])
    with pytest.raises(cml.ModelError, match="'w.dat' is damaged: truncated: Q4_0 .3, 64. wants"):
        cml.load(tmp_path)
    other = bytearray(header)
    other[48:50] = (0x1000).to_bytes(2, "little")
    (tmp_path / "w.dat").write_bytes(other + packed)
    with pytest.raises(cml.ModelError, match="of the type 0x1000 of the vendor 0x5452, which are"):
        cml.load(tmp_path)
