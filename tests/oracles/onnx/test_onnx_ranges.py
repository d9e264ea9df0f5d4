"""Tests of ONNX's 64-bit integers, which are 32-bit here.

A warning names those that are not proven to fit.
"""

import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml
from cml_engine.errors import TensorFileError, UnsupportedOp
from tests.fixtures.onnx_models import load as load_model
from tests.fixtures.onnx_models import model, nodes_of
from tests.onnx_nodes import run_onnx

LEAST, MOST = -(2**31), 2**31 - 1
ONE = {"one": np.int64(1), "axis": np.int64(1), "axes": np.array([1], np.int64)}
#: sources of an integer that is proven to be small: an input's type, and these nodes
SMALL = [
    ("bool", "n = Cast(x, to=7)"),
    ("uint8", "n = Cast(x, to=7)"),
    ("int8", "n = Cast(x, to=7)"),
    ("float32", "n = ArgMax(x, axis=1)"),
    ("float32", "_values, n = TopK(x, axes)"),
    ("float32", "s = Sigmoid(x); r = Round(s); n = Cast(r, to=7)"),
    ("int64", "n = Clip(x, least, most)"),
    ("int64", "n = Mod(x, seven)"),
    ("int64", "n = Gather(table, x)"),
    ("int64", "e = Equal(x, one); n = Cast(e, to=7)"),
]
WEIGHTS = {
    **ONE,
    "least": np.int64(-5),
    "most": np.int64(1000),
    "seven": np.int64(7),
    "table": np.arange(40, dtype=np.int64),
}


def made(nodes, inputs="x: int64[2, 6]", outputs="y: int64", weights=WEIGHTS, opset=17):
    """Returns a model of these nodes with those of the weights that they read."""
    used = {name for one in nodes_of(nodes) for name in one.input}
    known = {name: array for name, array in weights.items() if name in used}
    return model(nodes, inputs, outputs, known, opset)


def load(network):
    """Loads a model; returns the graph and a list of the warnings' texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = load_model(network)
    return graph, [str(w.message) for w in caught]


@pytest.mark.parametrize(("dtype", "small"), SMALL)
def test_integers_proven_to_fit_give_no_warning(dtype, small):
    nodes = f"{small}; c = CumSum(n, axis); p = Sub(c, one); q = Mul(p, p); y = ReduceSum(q, axes)"
    graph, said = load(made(nodes, f"x: {dtype}[2, 6]"))
    assert not said and not [line for line in graph.notes if "32 bits" in line]


def test_possible_overflow_names_node_and_bound():
    graph, (said,) = load(made("a = Add(x, x); b = Mul(a, x); y = Min(b, x)"))
    assert "Add 'a' (-4,294,967,296 to 4,294,967,294) may exceed the 32 bits" in said
    assert "1 more may too, `cml info` names them" in said
    at = graph.notes.index("  2 compute integers that may exceed 32 bits and then wrap around")
    assert graph.notes[at + 1].startswith("    Add 'a' (-4,294,967,296 to")
    assert graph.notes[at + 2].startswith("    Mul 'b' (")


@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Sum"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_possible_overflow_is_reported_once(how, dtype):
    nodes, flat = f"a = {how}(x, x); y = Reshape(a, flat)", {"flat": np.array([3, 1])}
    (said,) = load(model(nodes, f"x: {dtype}[3]", f"y: {dtype}", flat))[1]
    assert f"{how} 'a'" in said and "more" not in said


@pytest.mark.parametrize("then", ["Cast", "Less", "Max"])
def test_uint32_overflow_is_reported_at_its_readers(then):
    """An Add of uint32 gives no warning; a comparison, maximum or cast to float of it gives one.

    The sum is bit-identical with and without a sign, unlike the results of these operators.
    """
    read = "Cast(a, to=1)" if then == "Cast" else f"{then}(a, x)"
    out = {"Cast": "float32", "Less": "bool", "Max": "uint32"}[then]
    (said,) = load(model(f"a = Add(x, x); y = {read}", "x: uint32[3]", f"y: {out}"))[1]
    assert f"{then} 'y' (of integers of 2^31 and more)" in said
    assert load(model("a = Add(x, x)", "x: uint32[3]", "a: uint32"))[1] == []


def test_integers_of_32_bits_wrap_in_onnx_too():
    assert load(model("y = Add(x, x)", "x: int32[3]", "y: int32[3]"))[1] == []


def test_token_numbers_and_slices_of_them_are_silent():
    nodes = "g = Gather(table, x); t = Transpose(x); s = Shape(x); y = Reshape(t, s)"
    graph, said = load(made(nodes, outputs="g: int64, y: int64"))
    assert not said and "32 bits" not in "".join(graph.notes)


def test_certain_overflow_is_refused():
    big = {"big": np.int64(MOST - 255), "beyond": np.int64(2**31)}
    nodes = "n = Cast(x, to=7); a = Add(n, big); y = Add(a, a)"
    with pytest.raises(UnsupportedOp, match="Add 'y': its values are 4,294,966,784 to"):
        load(made(nodes, "x: uint8[2, 6]", weights=big))
    with pytest.raises(TensorFileError, match="2147483648.*32 bits"):
        load(made("y = Add(x, beyond)", weights=big))


def test_clip_with_int64_extremes_has_no_limit():
    no_limit = {"low": np.int64(-(2**63)), "high": np.int64(2**63 - 1)}
    graph, said = load(made("y = Clip(x, low, high)", weights=no_limit))
    x = np.array([[LEAST, -1, 0, 1, 2, MOST]] * 2)
    assert not said and (cml.Session(graph, "cpu").run({"x": x})["y"] == x).all()


def test_floats_beyond_32_bits_become_the_nearest_and_cml_info_says_so():
    graph, said = load(made("y = Cast(x, to=7)", "x: [2, 6]"))
    assert not said
    assert "  1 convert floats to integers, and clamp values beyond 32 bits" in graph.notes
    x = np.float32([[3e9, -3e9, 1e30, -1e30, 7.9, -7.9]] * 2)
    result = cml.Session(graph, "cpu").run({"x": x})["y"][0]
    assert result.tolist() == [MOST, LEAST, MOST, LEAST, 7, -7]


def test_reductions_of_integers_are_exact_beyond_the_floats(backend, rng):
    """Sums, extremes and cumulative sums of large integers equal ONNX Runtime's.

    A float32 is exact only up to 2^24 and would round these values.
    """
    nodes = [
        "sum = ReduceSum(x, axes)",
        "run = CumSum(x, axis)",
        "back = CumSum(x, axis, exclusive=1, reverse=1)",
        "max = ReduceMax(x, axes=[1])",
        "min = ReduceMin(x, axes=[0])",
        "where = ArgMax(x, axis=1, keepdims=0)",
        "where_least = ArgMin(x, axis=1, keepdims=0)",
    ]
    names = [text.split()[0] for text in nodes]
    data = made(nodes, "x: int64[3, 40]", ", ".join(f"{name}: int64" for name in names))
    x = (rng.integers(LEAST, MOST, (3, 40)) | 1) // 64
    x[0, 3:5] = x[0].max() + np.array([1, 2])
    graph, (said,) = load(data)
    assert "ReduceSum 'sum'" in said and "2 more may too" in said
    outputs = cml.Session(graph, backend).run({"x": x})
    for name, want in run_onnx(data.SerializeToString(), {"x": x}).items():
        np.testing.assert_array_equal(outputs[name], want, err_msg=name)


def test_integers_computed_in_floats_are_noted():
    graph, said = load(made("y, _i = TopK(x, axes)"))
    assert not said
    assert "  1 compute integers in floats, exact to 2^24, and may exceed that" in graph.notes


# -- random arithmetic: right wherever no warning is given -----------------------------------------

OPS = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Abs", "Sign", "Where", "ReduceSum",
       "CumSum", "Concat", "Clip", "ReduceMax", "MatMul")  # fmt: skip


def _random_nodes(rng, count):
    """Returns ``count`` random operators on [4, 4] integers, their constants, and the last output's
    name.

    The inputs are ``a`` of 8 bits and ``b`` of 16 bits.
    """
    nodes = ["t0 = Cast(a, to=7)", "t1 = Cast(b, to=7)"]
    weights = {f"c{i}": rng.integers(1, [9, 300, 70000][i], (4, 4)) for i in range(3)}
    weights |= {"axis": np.int64(1), "axes": np.array([1], np.int64), "low": np.int64(-99),
                "high": np.int64(4000)}  # fmt: skip
    for i in range(2, count):
        op = str(rng.choice(OPS))
        x, y = (f"t{rng.integers(max(0, i - 4), i)}" for _ in range(2))
        if op in ("Div", "Mod") or rng.random() < 0.3:
            y = f"c{rng.integers(3)}"
        out = f"t{i}"
        if op in ("Neg", "Abs", "Sign"):
            nodes.append(f"{out} = {op}({x})")
        elif op == "Where":
            nodes += [f"w{i} = Less({x}, {y})", f"{out} = Where(w{i}, {y}, {x})"]
        elif op == "ReduceSum":
            nodes += [f"r{i} = {op}({x}, axes)", f"{out} = Min(r{i}, {y})"]
        elif op == "ReduceMax":
            nodes += [f"r{i} = {op}({x}, axes=[0])", f"{out} = Max(r{i}, {y})"]
        elif op == "CumSum":
            nodes.append(f"{out} = {op}({x}, axis)")
        elif op == "Concat":
            nodes += [f"r{i} = {op}({x}, {y}, axis=0)",
                      f"{out} = Slice(r{i}, begin, end)"]  # fmt: skip
        elif op == "Clip":
            nodes.append(f"{out} = {op}({x}, low, high)")
        else:
            nodes.append(f"{out} = {op}({x}, {y})")
    weights |= {"begin": np.array([2], np.int64), "end": np.array([6], np.int64)}
    return nodes, weights, f"t{count - 1}"


def test_random_arithmetic_without_warning_is_right(rng):
    """A random integer network that loads without a warning gives ONNX Runtime's result.

    The inputs are at the ends of their types' ranges, where sums are largest.
    """
    silent = 0
    for _ in range(60):
        nodes, weights, last = _random_nodes(rng, 7)
        inputs = "a: uint8[4, 4], b: int16[4, 4]"
        data = made(nodes, inputs, f"{last}: int64", weights, 13)
        try:
            graph, said = load(data)
        except UnsupportedOp as error:  # every value is beyond the range
            assert "its values are" in str(error)
            continue
        if said:
            continue
        silent += 1
        session = cml.Session(graph, "cpu")
        x = {"a": rng.choice([0, 255, 7], (4, 4)).astype(np.uint8),
             "b": rng.choice([-32768, 32767, -1, 0], (4, 4)).astype(np.int16)}  # fmt: skip
        given = {name: array for name, array in x.items() if name in graph.inputs}
        expected = run_onnx(data.SerializeToString(), x)
        np.testing.assert_array_equal(session.run(given)[last], expected[last])
    assert silent > 15
