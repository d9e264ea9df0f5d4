"""Tests of ONNX's 64-bit integers, which are 32-bit here.

A warning names those that are not proven to fit.
"""

import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.errors import TensorFileError, UnsupportedOp  # noqa: E402
from tests.fixtures.onnx_models import model, node, value  # noqa: E402

LEAST, MOST = -(2**31), 2**31 - 1
ONE = {"one": np.int64(1), "axis": np.int64(1), "axes": np.array([1], np.int64)}
#: sources of an integer that is proven to be small: an input's type, and these nodes
SMALL = {
    "bool": [node("n = Cast(x, to=7)")],
    "uint8": [node("n = Cast(x, to=7)")],
    "int8": [node("n = Cast(x, to=7)")],
    "float32": [node("n = ArgMax(x, axis=1)")],
    "float32 top": [node("_values, n = TopK(x, axes)")],
    "float32 sigmoid": [node("s = Sigmoid(x)"), node("r = Round(s)"),
                        node("n = Cast(r, to=7)")],
    "int64 clip": [node("n = Clip(x, least, most)")],
    "int64 mod": [node("n = Mod(x, seven)")],
    "int64 gather": [node("n = Gather(table, x)")],
    "int64 equal": [node("e = Equal(x, one)"), node("n = Cast(e, to=7)")],
}  # fmt: skip
WEIGHTS = {
    **ONE,
    "least": np.int64(-5),
    "most": np.int64(1000),
    "seven": np.int64(7),
    "table": np.arange(40, dtype=np.int64),
}


def made(nodes, outputs="y", dtype="int64", weights=WEIGHTS, shape=(2, 6)):
    outs = [value(name, None, "int64") for name in outputs.split()]
    used = {name for one in nodes for name in one.input}
    known = {name: array for name, array in weights.items() if name in used}
    return model(nodes, [value("x", shape, dtype)], outs, known).SerializeToString()


def load(data):
    """Loads the bytes of a model; returns the graph and a list of the warnings' texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = cml.load(data)
    return graph, [str(w.message) for w in caught]


@pytest.mark.parametrize("how", SMALL)
def test_integers_proven_to_fit_give_no_warning(how):
    dtype = how.split()[0]
    nodes = [*SMALL[how], node("c = CumSum(n, axis)"), node("p = Sub(c, one)"),
             node("q = Mul(p, p)"), node("y = ReduceSum(q, axes)")]  # fmt: skip
    data = made(nodes, dtype=dtype)
    graph, said = load(data)
    assert not said and not [line for line in graph.notes if "32 bits" in line]


def test_possible_overflow_names_node_and_bound():
    nodes = [node("a = Add(x, x)"), node("b = Mul(a, x)"), node("y = Min(b, x)")]
    graph, (said,) = load(made(nodes))
    assert "Add 'a' (-4,294,967,296 to 4,294,967,294) may exceed the 32 bits" in said
    assert "1 more may too, `cml info` names them" in said
    at = graph.notes.index("  2 compute integers that may exceed 32 bits and then wrap around")
    assert graph.notes[at + 1].startswith("    Add 'a' (-4,294,967,296 to")
    assert graph.notes[at + 2].startswith("    Mul 'b' (")


@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Sum"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_possible_overflow_is_reported_once(how, dtype):
    nodes = [node(f"a = {how}(x, x)"), node("y = Reshape(a, flat)")]
    data = model(nodes, [value("x", [3], dtype)], [value("y", None, dtype)],
                 {"flat": np.array([3, 1])}).SerializeToString()  # fmt: skip
    (said,) = load(data)[1]
    assert f"{how} 'a'" in said and "more" not in said


@pytest.mark.parametrize("then", ["Cast", "Less", "Max"])
def test_uint32_overflow_is_reported_at_its_readers(then):
    """An Add of uint32 gives no warning; a comparison, maximum or cast to float of it gives one.

    The sum is bit-identical with and without a sign, unlike the results of these operators.
    """
    read = "Cast(a, to=1)" if then == "Cast" else f"{then}(a, x)"
    nodes = [node("a = Add(x, x)"), node(f"y = {read}")]
    out = {"Cast": "float32", "Less": "bool", "Max": "uint32"}[then]
    inputs = [value("x", [3], "uint32")]
    (said,) = load(model(nodes, inputs, [value("y", None, out)]).SerializeToString())[1]
    assert f"{then} 'y' (of integers of 2^31 and more)" in said
    alone = model(nodes[:1], inputs, [value("a", None, "uint32")])
    assert load(alone.SerializeToString())[1] == []


def test_integers_of_32_bits_wrap_in_onnx_too():
    data = model([node("y = Add(x, x)")], [value("x", [3], "int32")],
                 [value("y", [3], "int32")]).SerializeToString()  # fmt: skip
    assert load(data)[1] == []


def test_token_numbers_and_slices_of_them_are_silent():
    nodes = [node("g = Gather(table, x)"), node("t = Transpose(x)"), node("s = Shape(x)"),
             node("y = Reshape(t, s)")]  # fmt: skip
    graph, said = load(made(nodes, "g y"))
    assert not said and "32 bits" not in "".join(graph.notes)


def test_certain_overflow_is_refused():
    big = {"big": np.int64(MOST - 255), "beyond": np.int64(2**31)}
    nodes = [node("n = Cast(x, to=7)"), node("a = Add(n, big)"), node("y = Add(a, a)")]
    with pytest.raises(UnsupportedOp, match="Add 'y': its values are 4,294,966,784 to"):
        load(made(nodes, dtype="uint8", weights=big))
    with pytest.raises(TensorFileError, match="2147483648.*32 bits"):
        load(made([node("y = Add(x, beyond)")], weights=big))


def test_clip_with_int64_extremes_has_no_limit():
    no_limit = {"low": np.int64(-(2**63)), "high": np.int64(2**63 - 1)}
    data = made([node("y = Clip(x, low, high)")], weights=no_limit)
    graph, said = load(data)
    x = np.array([[LEAST, -1, 0, 1, 2, MOST]] * 2)
    assert not said and (cml.Session(graph, "cpu").run({"x": x})["y"] == x).all()


def test_floats_beyond_32_bits_become_the_nearest_and_cml_info_says_so():
    graph, said = load(made([node("y = Cast(x, to=7)")], dtype="float32"))
    assert not said
    assert "  1 convert floats to integers, and clamp values beyond 32 bits" in graph.notes
    x = np.float32([[3e9, -3e9, 1e30, -1e30, 7.9, -7.9]] * 2)
    got = cml.Session(graph, "cpu").run({"x": x})["y"][0]
    assert got.tolist() == [MOST, LEAST, MOST, LEAST, 7, -7]


def test_reductions_of_integers_are_exact_beyond_the_floats(backend, rng):
    """Sums, extremes and cumulative sums of large integers equal ONNX Runtime's.

    A float32 is exact only up to 2^24 and would round these values.
    """
    axis = {"axis": 1, "keepdims": 0}
    nodes = [
        node("sum = ReduceSum(x, axes)"),
        node("run = CumSum(x, axis)"),
        node("back = CumSum(x, axis, exclusive=1, reverse=1)"),
        node("max = ReduceMax(x, axes=[1])"),
        node("min = ReduceMin(x, axes=[0])"),
        node("where = ArgMax(x)", **axis),
        node("where_least = ArgMin(x)", **axis),
    ]
    data = made(nodes, "sum run back max min where where_least", shape=(3, 40))
    x = (rng.integers(LEAST, MOST, (3, 40)) | 1) // 64
    x[0, 3:5] = x[0].max() + np.array([1, 2])
    graph, (said,) = load(data)
    assert "ReduceSum 'sum'" in said and "2 more may too" in said
    got = cml.Session(graph, backend).run({"x": x})
    names = list(graph.outputs)
    for name, want in zip(names, ort.InferenceSession(data).run(names, {"x": x}), strict=True):
        np.testing.assert_array_equal(got[name], want, err_msg=name)


def test_integers_computed_in_floats_are_noted():
    nodes = [node("y, _i = TopK(x, axes)")]
    graph, said = load(made(nodes))
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
    nodes = [node("t0 = Cast(a, to=7)"), node("t1 = Cast(b, to=7)")]
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
            nodes.append(node(f"{out} = {op}({x})"))
        elif op == "Where":
            nodes += [node(f"w{i} = Less({x}, {y})"), node(f"{out} = Where(w{i}, {y}, {x})")]
        elif op == "ReduceSum":
            nodes += [node(f"r{i} = {op}({x}, axes)"), node(f"{out} = Min(r{i}, {y})")]
        elif op == "ReduceMax":
            nodes += [node(f"r{i} = {op}({x}, axes=[0])"), node(f"{out} = Max(r{i}, {y})")]
        elif op == "CumSum":
            nodes.append(node(f"{out} = {op}({x}, axis)"))
        elif op == "Concat":
            nodes += [node(f"r{i} = {op}({x}, {y}, axis=0)"),
                      node(f"{out} = Slice(r{i}, begin, end)")]  # fmt: skip
        elif op == "Clip":
            nodes.append(node(f"{out} = {op}({x}, low, high)"))
        else:
            nodes.append(node(f"{out} = {op}({x}, {y})"))
    weights |= {"begin": np.array([2], np.int64), "end": np.array([6], np.int64)}
    return nodes, weights, f"t{count - 1}"


def test_random_arithmetic_without_warning_is_right(rng):
    """A random integer network that loads without a warning gives ONNX Runtime's result.

    The inputs are at the ends of their types' ranges, where sums are largest.
    """
    silent = 0
    for _ in range(60):
        nodes, weights, last = _random_nodes(rng, 7)
        used = {name for one in nodes for name in one.input}
        inputs = [value("a", [4, 4], "uint8"), value("b", [4, 4], "int16")]
        outs = [value(last, None, "int64")]
        kept = {name: array for name, array in weights.items() if name in used}
        data = model(nodes, inputs, outs, kept, 13).SerializeToString()
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
        (want,) = ort.InferenceSession(data).run(None, x)
        np.testing.assert_array_equal(session.run(given)[last], want)
    assert silent > 15
