"""Tests that operators give ONNX's result both on constants, at loading, and at run time.

Tests of Unique and Det beyond ONNX's own node cases follow.
"""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from tests.fixtures.onnx_models import load, model, node, run, value
from tests.proofs.onnx_nodes import run_onnx

REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
ODD = (1 << 24) + 1  # not representable as a 32-bit float
INF, NAN = np.inf, np.nan


def both(op, *arrays, opset=18, **attrs):
    """Runs an operator on constants and with its first operand as an input; returns the result.

    Asserts that both results are equal and that the one of constants is computed at loading.
    """
    given = {f"x{i}": np.asarray(array) for i, array in enumerate(arrays)}
    call = node(f"y = {op}({', '.join(given)})", **attrs)
    results = []
    for known in (given, {name: array for name, array in given.items() if name != "x0"}):
        inputs = [value(name, a.shape, str(a.dtype)) for name, a in given.items()]
        inputs = [v for v in inputs if v.name not in known] or [value("unused", (1,))]
        network = model([call], inputs, "y", known, opset)
        with warnings.catch_warnings():  # about integers that are not proven to fit
            warnings.simplefilter("ignore", cml.nnef.NnefWarning)
            graph = load(network)
        assert (known is not given) or not any(n.op != "copy" for n in graph.nodes)
        feeds = {v.name: given.get(v.name, np.zeros(1, np.float32)) for v in inputs}
        results.append(cml.Session(graph, "cpu").run(feeds)["y"])
    folded, computed = results
    assert (folded.dtype, folded.shape) == (computed.dtype, computed.shape)
    assert_array_equal(folded, computed)
    return computed


def floats(*numbers):
    return np.array(numbers, np.float32)


def test_logarithms_of_large_sums():
    assert_allclose(both("ReduceLogSumExp", floats(1000, 1000)), [1000 + np.log(2)])


@pytest.mark.parametrize(
    ("op", "wanted"),
    [("L1", [2, 3]), ("L2", [2, 3]), ("SumSquare", [4, 9]), ("LogSum", [NAN, np.log(3)]),
     ("Sum", [-2, 3]), ("LogSumExp", [-2, 3])],
)  # fmt: skip
def test_reductions_over_no_axes(op, wanted):
    result = both(f"Reduce{op}", floats(-2, 3), noop_with_empty_axes=1)
    assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduced_number_is_an_integer(op, keepdims):
    exact = op in ("Sum", "Mean", "Max", "Min", "Prod", "L1")
    number = np.array(ODD if exact else 3, np.int64)
    result = both(f"Reduce{op}", number, keepdims=keepdims)
    expected = {"SumSquare": 9, "LogSum": 1}.get(op, number)
    assert result.dtype == np.int32 and result.shape == () and result == expected


@pytest.mark.parametrize(
    ("op", "dtype", "numbers", "wanted"),
    [
        ("Sum", "int32", [ODD, 2], ODD + 2),
        ("Mean", "int32", [-3, -4], -3),
        ("Mean", "int32", [ODD, ODD + 2, ODD + 1], ODD + 1),
        ("L2", "int32", [3, 4], 5),
        ("L2", "int32", [3, 3], 4),
        ("L2", "uint8", [200, 100], 223),
        ("L2", "int32", [46340], 46340),
        ("L1", "int8", [-128, 100], -28),  # 228 in eight bits
        ("SumSquare", "int32", [-4097, 1], 4097**2 + 1),
        ("LogSumExp", "int32", [5, 1], 5),
        ("Max", "uint8", [255, 3], 255),
    ],
)
def test_reduced_integers(op, dtype, numbers, wanted):
    assert both(f"Reduce{op}", np.array(numbers, dtype), keepdims=0) == wanted


@pytest.mark.parametrize("op", sorted({*REDUCTIONS} - {"Max", "Min"}))
def test_reduction_of_booleans_is_refused(op):
    with pytest.raises(cml.ModelError, match=f"Reduce{op} 'y': it wants numbers, got bool"):
        both(f"Reduce{op}", np.array([True, False]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_products_of_integers(rng, dtype):
    a, b = (rng.integers(-4000, 4000, (3, 3)).astype(dtype) for _ in range(2))
    for equation in ("ij,jk->ik", "ij,kj->", "ij,ij->j", "ij,kl->lkji", "ii,jk->kj"):
        result = both("Einsum", a, b, equation=equation)
        assert result.dtype == np.int32
        assert_array_equal(result, np.einsum(equation, a, b).astype(np.int32))
    for equation in ("ij->ji", "ii->i", "ij->j", "ii"):
        assert_array_equal(both("Einsum", a, equation=equation), np.einsum(equation, a))


def test_identity_einsum(rng):
    for x in (rng.standard_normal(3, np.float32), rng.integers(0, 9, 3)):
        assert_array_equal(both("Einsum", x, equation="i->i"), x)


def test_powers_of_integers():
    """Powers of integers are truncated to integers, as ONNX Runtime casts them."""
    roots = np.array([0, 1, 2, 3, 4, 8, 9, 15, 1 << 24, (1 << 24) - 1, 46340**2, 46340**2 - 1])
    result = both("Pow", roots.astype(np.int32), np.array(0.5, np.float32))
    assert_array_equal(result, [0, 1, 1, 1, 2, 2, 3, 3, 4096, 4095, 46340, 46339])
    small = np.array([1, 2, -2, 3], np.int32)
    assert_array_equal(both("Pow", small, np.array(-1)), [1, 0, 0, 0])
    assert_array_equal(both("Pow", small, np.array([2, 3, 5, 0])), [1, 8, -32, 1])
    assert_array_equal(both("Pow", small[:2], floats(1.5)), [1, 2])


def test_roots_of_no_positive_numbers():
    x = floats(-INF, -0.0, 0.0, INF, 4, -4, NAN)
    result = both("Pow", x, np.array(0.5, np.float32))
    assert_allclose(result, [INF, 0, 0, INF, 2, NAN, NAN], rtol=1e-6)
    assert not np.signbit(result[1])
    result = both("Pow", x, np.array(-0.5, np.float32))
    assert_allclose(result, [0, INF, INF, 0, 0.5, NAN, NAN])


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_max_and_min_propagate_nan(op):
    x, y = floats(NAN, 1, NAN, 1), floats(2, NAN, NAN, 3)
    function = np.maximum if op == "Max" else np.minimum
    for a, b in ((x, y), (y, x), (x, floats(2)), (floats(2), x), (y[:1], x)):
        assert_array_equal(both(op, a, b), function(a, b))


@pytest.mark.parametrize("opset", [10, 11])
@pytest.mark.parametrize(("low", "high"), [(-1, INF), (-INF, 1), (-1, 1), (2, -2), (-INF, INF)])
def test_clip_propagates_nan(opset, low, high):
    x = floats(NAN, -5, 0.5, 5, INF)
    if opset < 11:
        bounds = {"min": float(low), "max": float(high)}
        attrs = {name: bound for name, bound in bounds.items() if np.isfinite(bound)}
        result = both("Clip", x, opset=opset, **attrs)
    else:
        result = both("Clip", x, np.float32(low), np.float32(high))
    assert_array_equal(result, np.minimum(np.maximum(x, low), high))


def test_an_output_that_is_an_input(rng):
    x = rng.standard_normal((2, 3), np.float32)
    outputs = run(model("y = Relu(x)", "x: [2, 3]", "x: [2, 3], y"), x=x)
    assert_array_equal(outputs["x"], x)
    assert_array_equal(outputs["y"], np.maximum(x, 0))


@pytest.mark.parametrize(
    ("condition", "call"), [(True, "Where(c, x, n)"), (False, "Where(c, n, x)")]
)
def test_a_branch_that_is_never_taken_is_not_in_the_graph(condition, call, rng):
    weights = {"c": np.full((1, 1), condition), "n": np.full((2, 1), NAN, np.float32)}
    network = model(f"z = {call}; y = Relu(z)", "x: [2, 3]", "y", weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of weights that are NaN
        graph = load(network)
    assert [node.op for node in graph.nodes] == ["relu"]
    x = {"x": rng.standard_normal((2, 3), np.float32)}
    assert_array_equal(run(network, **x)["y"], run_onnx(network.SerializeToString(), x)["y"])


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize(("reduction", "wanted"), [("add", -56), ("mul", 16), ("max", 100)])
def test_small_integers_wrap_around(op, reduction, wanted):
    indices = np.array([[0]])
    updates = np.array([[100]] if op == "ScatterElements" else [100], np.int8)
    x = np.array([[100]] if op == "ScatterElements" else [100], np.int8)
    result = both(op, x, indices, updates, reduction=reduction)
    assert result.reshape(-1).tolist() == [wanted]
    assert both("Einsum", x[:1], x[:1], equation="...,...->...").reshape(-1).tolist() == [16]


def test_compress_condition_longer_than_the_axis_is_refused():
    condition = np.array([False, False, True])
    with pytest.raises(cml.ModelError, match="Compress 'y': a condition of 3 for 2 elements"):
        both("Compress", floats(1, 2), condition)


@pytest.mark.parametrize("repeats", [(2, 1, 0, 3), (0, 0, 0, 0), (2, 1, 1, 3)])
def test_tiles(rng, repeats):
    x = rng.standard_normal((1, 2, 3, 4), np.float32)
    assert_array_equal(both("Tile", x, np.array(repeats)), np.tile(x, repeats))


@pytest.mark.parametrize("window", [8, 2**31 - 1])
def test_a_window_of_attention_larger_than_all_keys_bounds_nothing(window, rng):
    operands = [rng.normal(size=(1, 2, 5, 4)).astype(np.float32) for _ in "qkv"]
    sides = {"left_window_size": window, "right_window_size": window}
    wide = both("Attention", *operands, opset=25, **sides)
    assert_array_equal(wide, both("Attention", *operands, opset=25))


# -- Unique and Det ------------------------------------------------------------------------------


def unique(shape, dtype, **attrs):
    outputs = f"y: {dtype}, index: int64, inverse: int64, times: int64"
    call = node("y, index, inverse, times = Unique(x)", **attrs)
    return model([call], f"x: {dtype}{list(shape)}", outputs)


def test_unique_of_a_constant_is_computed_at_load(rng):
    for attrs in ({}, {"sorted": 0}, {"axis": 1, "sorted": 0}):
        network = unique((3, 4), "int64", **attrs)
        x = rng.integers(-1, 2, (3, 4))
        outputs = cml.Session(load(network, constants={"x": x}), "cpu").run({})
        for name, want in run_onnx(network.SerializeToString(), {"x": x}).items():
            assert_array_equal(outputs[name], want, err_msg=name)


def test_nan_is_the_greatest_and_itself():
    x = np.float32([np.nan, 1, np.inf, np.nan, 1])
    outputs = run(unique((5,), "float32"), x=x)
    assert_array_equal(outputs["y"], np.unique(x))
    assert outputs["times"].tolist() == [2, 1, 2]
    assert outputs["inverse"].tolist() == [2, 0, 1, 2, 0]


def test_too_many_to_be_compared_are_refused():
    with pytest.raises(UnsupportedOp, match="Unique 'y': Unique of 4,096 parts, 4,096 of int64"):
        load(unique((4096,), "int64"))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_determinants(rng, size):
    x = rng.standard_normal((3, size, size), np.float32)
    result = run(model("y = Det(x)", f"x: {list(x.shape)}", "y: [3]"), x=x)["y"]
    assert_allclose(result, np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_determinants_of_many_rows_are_refused():
    with pytest.raises(UnsupportedOp, match="Det 'y': the determinant of 5 rows"):
        load(model("y = Det(x)", "x: [5, 5]", "y: []"))
