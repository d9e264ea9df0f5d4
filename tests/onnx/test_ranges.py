"""Tests of ONNX's integers of 64 bits and without a sign, of which the network stores 32 bits.

A model loads if 32 bits are enough for the right result, and is refused otherwise.
"""

import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml
from cml_engine import scheduler
from cml_engine.errors import UnsupportedOp
from tests.fixtures.onnx_models import load as load_model
from tests.fixtures.onnx_models import model, nodes_of
from tests.proofs.onnx_nodes import run_onnx

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


REFUSED = "the network computes with their low 32 bits: bound them before"


#: ways to exceed 32 bits, and the bits of the inputs for which the result provably fits
SUMS = [("Add(x, x)", 30), ("Sub(x, one)", 30), ("CumSum(x, axis)", 24), ("Mul(x, x)", 15),
        ("ReduceSum(x, axes, keepdims=1)", 24), ("ReduceSumSquare(x)", 12)]  # fmt: skip


@pytest.mark.parametrize(("call", "bits"), SUMS)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_inputs_are_limited_where_a_result_may_exceed_32_bits(call, bits, dtype, backend):
    """A run accepts the integers for which all results provably fit, and refuses larger ones."""
    if dtype == "uint64" and call.startswith(("Sub", "ReduceSumSquare")):
        pytest.skip("a difference of unsigned integers wraps around; ONNX Runtime has no square")
    weights = {**WEIGHTS, "one": np.array(1, dtype)}
    graph, said = load(made(f"y = {call}", f"x: {dtype}[2, 6]", f"y: {dtype}", weights, 17))
    low, high = graph.input_ranges["x"]
    assert not said and (low, high) == (-(2**bits) if dtype == "int64" else 0, 2**bits - 1)
    session = cml.Session(graph, backend)
    assert (session.run({"x": np.full((2, 6), high)})["y"].astype(np.int64) >= high - 1).all()
    for beyond in (low - 1, high + 1):
        with pytest.raises(cml.InputError, match=f"'x': got integers.*wanted {low:,} to {high:,}"):
            session.run({"x": np.full((2, 6), beyond)})
    assert any(f"accepts integers from {low:,} to {high:,}" in note for note in graph.notes)


def test_ranges_are_kept_in_a_frame_and_at_other_shapes(gpu):
    graph, _ = load(made("y = Add(x, x)", "x: int64[2, 6]", "y: int64"))
    session = cml.Session(graph.reshaped({"x": (3, 6)}), gpu)
    with pytest.raises(cml.InputError, match="'x': got integers"):
        scheduler.FrameScheduler(gpu).submit(session, {"x": np.full((3, 6), 2**30)})


#: readers of an integer that need more than its low 32 bits
READERS = ["Div(a, seven)", "Mod(a, seven)", "Max(a, x)", "Clip(a, least, most)", "Abs(a)",
           "Sign(a)", "Less(a, x)", "Equal(a, x)", "Cast(a, to=1)", "Cast(a, to=9)",
           "ReduceMax(a)", "ArgMax(a)", "NonZero(a)", "OneHot(a, seven, pair)",
           "ReduceMean(a, axes=[1])", "TopK(a, axes)", "BitShift(b, one, direction='RIGHT')",
           "Pow(a, seven)", "ReduceL2(a)", "CumProd(a, axis)", "Identity(a)", "ReduceSum(a)",
           ]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_reader_of_upper_bits_is_refused(reader):
    weights = {**WEIGHTS, "prime": np.int64(2654435761), "one": np.uint64(1),
               "pair": np.array([0, 1])}  # fmt: skip
    nodes = f"a = Mul(x, prime); b = Cast(a, to=13); y = {reader}"
    if reader.startswith("TopK"):
        nodes = nodes.replace("y = ", "y, _i = ")
    opset = 26 if reader.startswith("CumProd") else 17
    with pytest.raises(UnsupportedOp, match="32 bits"):
        load(made(nodes, outputs="y", weights=weights, opset=opset))


# -- the low 32 bits are enough ------------------------------------------------------------------

PRIMES = np.array([1, 2654435761, 805459861])
HASH = ("m = Mul(x, primes); a, b, c = Split(m, axis=1, num_outputs=3); d = BitwiseXor(a, b); "
        "h = BitwiseXor(d, c)")  # fmt: skip
#: ways from a hash of three coordinates to an index of a table
INDICES = {
    "power of two": "i = BitwiseAnd(h, mask)",
    "remainder of a power of two": "i = Mod(h, two)",
    "unsigned": "l = BitwiseAnd(h, low); i = Mod(l, size)",
    "cast": "u = Cast(h, to=12); l = Cast(u, to=7); i = Mod(l, size)",
    "of 32 bits": "u = Cast(h, to=12); s32 = Cast(size, to=12); m32 = Mod(u, s32); "
                  "i = Cast(m32, to=7)",
    "quotient": "l = BitwiseAnd(h, low); q = Div(l, many); i = Clip(q, zero, size)",
    "order": "l = BitwiseAnd(h, low); k = Less(l, big); n = Where(k, l, big); i = Mod(n, size)",
    "extremes": "l = BitwiseAnd(h, low); n = Max(l, many); k = Min(n, big); i = Mod(k, size)",
    "float": "l = BitwiseAnd(h, low); f = Cast(l, to=1); k = Greater(f, third); i = Cast(k, to=7)",
    "bounded coordinates": "l = Mod(x, many); s = ReduceSum(l, axes); i = Mod(s, size)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("way", "dtype"),
    [*((way, "int64") for way in INDICES), *((way, "uint64") for way in [*INDICES][:3])],
)
def test_hash_grid_equals_onnx_runtime(way, dtype, backend, rng):
    """Hashes of 64 bits look up the same rows of a table as in ONNX Runtime.

    The table's size is no power of two, except where the hash is masked.
    """
    sizes = {"primes": PRIMES, "mask": 4095, "two": 4096, "size": 5003, "low": 0xFFFFFFFF,
             "many": 900001, "zero": 0, "big": 3000000000}  # fmt: skip
    known = {name: np.array(value, dtype) for name, value in sizes.items()}
    known |= {"table": rng.random((5004, 2), np.float32), "third": np.float32(1431655765)}
    known["axes"] = np.array([1])
    nodes = f"{HASH}; {INDICES[way]}; j = Cast(i, to=7); y = Gather(table, j)"
    network = made(nodes, f"x: {dtype}[300, 3]", "y, j: int64", known, 18)
    graph, said = load(network)
    x = rng.integers(0, 2**31, (300, 3)).astype(dtype)
    expected = run_onnx(network.SerializeToString(), {"x": x})
    outputs = cml.Session(graph, backend).run({"x": x})
    assert not said and len(np.unique(expected["j"])) > 1
    for name, want in expected.items():
        np.testing.assert_array_equal(outputs[name], want)


def test_remainder_of_64_bits_is_refused():
    """A table whose size is no power of two needs all bits of a 64-bit hash."""
    known = {"primes": PRIMES, "size": np.array(5003)}
    with pytest.raises(UnsupportedOp, match=f"Mod 'y': it reads integers from -9,223,.*{REFUSED}"):
        load(made(f"{HASH}; n = Mul(h, primes); y = Mod(n, size)", "x: int64[300, 3]", "y: int64",
                  known, 18))  # fmt: skip


def test_index_of_any_size_is_in_range_by_definition(backend):
    """Positions counted from a mask are accepted, because an index outside the table is invalid."""
    nodes = "c = CumSum(x, axis); p = Sub(c, one); y = Gather(table, p)"
    graph, said = load(made(nodes, "x: int64[2, 6]"))
    x = np.array([[0, 0, 1, 1, 1, 1], [1] * 6])
    positions = cml.Session(graph, backend).run({"x": x})["y"]
    assert not said and (positions == (x.cumsum(1) - 1) % 40).all()


EDGES32 = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1], np.uint32)
#: operators of uint32 and their definitions in NumPy; ONNX Runtime has few of them
UNSIGNED = {
    "Add(x, z)": lambda x, z: x + z, "Sub(x, z)": lambda x, z: x - z,
    "Mul(x, z)": lambda x, z: x * z, "Div(x, n)": lambda x, z: x // np.maximum(z, 1),
    "Mod(x, n)": lambda x, z: x % np.maximum(z, 1), "Mod(x, size)": lambda x, z: x % 3000017,
    "Mod(x, half)": lambda x, z: x % np.uint32(2**31),
    "Max(x, z)": np.maximum, "Min(x, z)": np.minimum, "BitwiseXor(x, z)": np.bitwise_xor,
    "BitwiseNot(x)": lambda x, z: ~x, "Abs(x)": lambda x, z: x, "Sign(x)": lambda x, z: np.sign(x),
    "Clip(x, size, large)": lambda x, z: x.clip(3000017, 3000000000),
    "Less(x, z)": np.less, "GreaterOrEqual(x, z)": np.greater_equal, "Equal(x, z)": np.equal,
    "Cast(x, to=1)": lambda x, z: x.astype(np.float32), "Cast(x, to=9)": lambda x, z: x != 0,
    "Cast(x, to=2)": lambda x, z: x.astype(np.uint8),
    "BitShift(x, nine, direction='RIGHT')": lambda x, z: x >> np.uint32(9),
    "ReduceMax(x, axes=[0])": lambda x, z: x.max(0, keepdims=True),
    "ReduceMin(x, axes=[1])": lambda x, z: x.min(1, keepdims=True),
    "ReduceProd(x, axes=[1])": lambda x, z: x.prod(1, np.uint32, keepdims=True),
    "CumSum(x, axis)": lambda x, z: x.cumsum(1, np.uint32),
    "ArgMax(x, axis=1)": lambda x, z: x.argmax(1)[:, None],
    "MatMul(x, z)": lambda x, z: (x[:, :, None] * z).sum(1, dtype=np.uint32),
}  # fmt: skip


@pytest.mark.parametrize("call", UNSIGNED)
def test_uint32_is_exact_in_its_whole_range(call, backend):
    """Operators on uint32 give NumPy's results; uint32 results are returned as int32 bits."""
    known = {"size": np.uint32(3000017), "half": np.uint32(2**31), "large": np.uint32(3000000000),
             "nine": np.uint32(9), "axis": np.int64(1), "unit": np.uint32(1)}  # fmt: skip
    x, z = np.meshgrid(EDGES32, EDGES32[::-1])
    expected = UNSIGNED[call](x, z)
    nodes = f"n = Max(z, unit); y = {call}" if "(x, n)" in call else f"y = {call}"
    inputs = "x: uint32[9, 9]" + ", z: uint32[9, 9]" * ("z" in nodes.split("(", 1)[1])
    graph, said = load(made(nodes, inputs, "y", known, 17))
    given = {name: a.view(np.int32) for name, a in {"x": x, "z": z}.items() if name in graph.inputs}
    result = cml.Session(graph, backend).run(given)["y"]
    assert not said
    bits = expected.view(np.int32) if expected.dtype == np.uint32 else expected
    np.testing.assert_array_equal(result, bits)


@pytest.mark.parametrize("dtype", ["uint32", "int64", "uint64", "int32"])
def test_input_of_uint32_accepts_its_whole_range_and_its_bits(dtype, backend):
    graph, _ = load(made("y = Mod(x, size)", "x: uint32[3]", "y: uint32",
                         {"size": np.uint32(1000003)}))  # fmt: skip
    x = np.array([7, 2**31, 2**32 - 1], np.uint32)
    given = x.view(np.int32) if dtype == "int32" else x.astype(dtype)
    session = cml.Session(graph, backend)
    np.testing.assert_array_equal(session.run({"x": given})["y"], x % 1000003)
    with pytest.raises(cml.InputError, match="values do not fit into int32"):
        session.run({"x": np.full(3, 2**32)})


def test_input_of_int32_refuses_integers_beyond_it():
    graph, _ = load(model("y = Add(x, x)", "x: int32[3]", "y: int32"))
    with pytest.raises(cml.InputError, match="values do not fit into int32"):
        cml.Session(graph, "cpu").run({"x": np.full(3, 2**31, np.uint32)})


def test_integers_in_any_range_of_32_bits_become_the_nearest_floats(backend):
    """Integers that fit neither int32 nor uint32 are compared and cast if their range is small."""
    nodes = "a = Sub(one, x); f = Cast(a, to=1); m = Max(a, one); g = Cast(m, to=1); "
    network = made(nodes + "l = Less(a, one)", "x: int64[2, 6]", "f, g, l: bool")
    x = np.array([[LEAST, LEAST + 1, -1, 0, 1, 2], [MOST, MOST - 1, 2**24 + 1, 2**25 + 3, 7, 8]])
    outputs = cml.Session(load(network)[0], backend).run({"x": x})
    for name, want in run_onnx(network.SerializeToString(), {"x": x}).items():
        np.testing.assert_array_equal(outputs[name], want)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("b = Einsum(big, big, equation='i,i->i'); y = Add(b, x)", None),
        ("b = Einsum(big, big, equation='i,i->i'); c = Cast(b, to=1); f = Cast(x, to=1); "
         "y = Add(c, f)", None),
        ("f = Cast(x, to=1); y = Pow(f, large)", [0, 0]),
        ("v, _i = TopK(huge, axes); w = Sub(v, huge); y = Add(w, x)", None),
    ],
)  # fmt: skip
def test_known_integers_keep_their_upper_bits(nodes, wanted):
    """Operators of known integers without a function of 64 bits are not computed in 32 bits."""
    known = {"big": np.array([70000, 3]), "large": np.int64(3 * 10**9), "axes": np.array([1]),
             "huge": np.array([2**33 + 5])}  # fmt: skip
    network = made(nodes, "x: int64[2]", "y", known, 17)
    network.graph.output[0].type.Clear()
    if wanted is None:
        with pytest.raises(UnsupportedOp, match="32 bits"):
            load(network)
        return
    result = cml.Session(load(network)[0], "cpu").run({"x": np.zeros(2, np.int64)})["y"]
    np.testing.assert_allclose(result, wanted)


@pytest.mark.parametrize(
    ("source", "target"),
    [("uint32", "int32"), ("int32", "uint32"), ("uint32", "float32"), ("float32", "uint32")],
)
def test_bits_of_uint32_are_read_as_another_type(source, target, backend):
    bits = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0x3F800000, 0xC0490FDB], np.uint32)
    element = {"int32": 6, "uint32": 12, "float32": 1}[target]
    network = model(f"y = BitCast(x, to={element})", f"x: {source}[7]", f"y: {target}", opset=26)
    given = bits.view(np.float32 if source == "float32" else np.int32)
    result = cml.Session(load(network)[0], backend).run({"x": given})["y"]
    np.testing.assert_array_equal(result.view(np.uint32), bits)


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
    types = {"where": "int64", "where_least": "int64"}
    outputs = ", ".join(f"{name}: {types.get(name, 'int32')}" for name in names)
    data = made(nodes, "x: int32[3, 40]", outputs)
    x = ((rng.integers(LEAST, MOST, (3, 40)) | 1) // 64).astype(np.int32)
    x[0, 3:5] = x[0].max() + np.array([1, 2])
    graph, said = load(data)
    assert not said
    outputs = cml.Session(graph, backend).run({"x": x})
    for name, want in run_onnx(data.SerializeToString(), {"x": x}).items():
        np.testing.assert_array_equal(outputs[name], want, err_msg=name)


def test_integers_computed_in_floats_are_noted():
    graph, said = load(made("y, _i = TopK(x, axes)"))
    assert not said
    assert "  1 compute integers in floats, exact to 2^24, and may exceed that" in graph.notes


# -- random arithmetic: right or refused ----------------------------------------------------------

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


def test_random_arithmetic_that_loads_is_right(rng):
    """A random integer network that loads gives ONNX Runtime's result.

    The inputs are at the ends of their types' ranges, where sums are largest.
    """
    loaded = 0
    for _ in range(60):
        nodes, weights, last = _random_nodes(rng, 7)
        inputs = "a: uint8[4, 4], b: int16[4, 4]"
        data = made(nodes, inputs, f"{last}: int64", weights, 13)
        try:
            graph, said = load(data)
        except UnsupportedOp as error:
            assert REFUSED in str(error)
            continue
        assert not said
        loaded += 1
        session = cml.Session(graph, "cpu")
        x = {"a": rng.choice([0, 255, 7], (4, 4)).astype(np.uint8),
             "b": rng.choice([-32768, 32767, -1, 0], (4, 4)).astype(np.int16)}  # fmt: skip
        x = {n: a.clip(*graph.input_ranges.get(n, (None, None))) for n, a in x.items()}
        given = {name: array for name, array in x.items() if name in graph.inputs}
        expected = run_onnx(data.SerializeToString(), x)
        np.testing.assert_array_equal(session.run(given)[last], expected[last])
    assert loaded > 15
