"""Tests that invalid ONNX files give one error of the engine, soon and without a large
allocation."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from numpy.testing import assert_array_equal

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cml_engine as cml  # noqa: E402
from cml_engine.errors import CmlError, UnsupportedOp  # noqa: E402
from cml_engine.io.load_limits import OverBudget  # noqa: E402
from cml_engine.tools.cli import main  # noqa: E402
from tests.fixtures.models import FileSource  # noqa: E402
from tests.fixtures.onnx_models import (  # noqa: E402
    function,
    load,
    loop,
    model,
    one,
    saved,
    subgraph,
    value,
    values,
)

X, Y = values("x: [1, 4], y")
#: the memory limit for reading a damaged model, with the Python objects of its nodes
LIMIT = 32 * 2**20


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def refused(made, match, kind=CmlError, **more):
    """Asserts that loading the model raises ``kind`` with a message that matches; returns the
    message.

    Loading may use little memory only.
    """
    data = made if isinstance(made, bytes) else made.SerializeToString()
    more.setdefault("limits", cml.LoadLimits(memory=LIMIT, nodes=2_000))
    with little_memory(), pytest.raises(kind, match=match) as caught:
        cml.load(data, **more)
    return str(caught.value)


# -- bytes -----------------------------------------------------------------------------------------


def test_not_a_model(tmp_path):
    refused(b"\x08\x08", "no graph")
    with pytest.raises(CmlError, match="cannot read"):
        cml.load(tmp_path / "missing.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CmlError, match="cannot read"):
        cml.load(tmp_path / "folder.onnx")


# -- graphs ----------------------------------------------------------------------------------------


ONES = {"w": np.ones((5, 4), np.float32)}
#: nodes that compute y from x, constants, and a part of the message
WRONG = [
    ("a = Add(x, b); b = Relu(a); y = Relu(b)", {}, r"form a cycle.*: Add 'a', Relu 'b'\. No"),
    ("a = Relu(a); y = Add(x, a)", {}, r"form a cycle.*: Relu 'a'\. No order"),
    ("c = Add(a, x); y = Abs(c); a = Neg(b); b = Exp(c)", {}, "cycle.*Add 'c', Neg 'a', Exp 'b'"),
    ("y = Relu(x); y = Abs(y)", {}, "'y' is made twice, by Relu 'y' and Abs 'y'"),
    ("y = Relu(x); y = Abs(x)", {}, "'y' is made twice"),
    ("z = Relu(x)", {}, "the graph's output 'y' comes from no node"),
    ("y = Relu(q)", {}, "Relu 'y': its input 'q'"),
    ("y = Relu(x, x, name='/act')", {}, "Relu '/act'.*2 inputs, the operator takes 1"),
    ("y = LSTM(x, x, x, x, x, x, x, x, x)", {}, "LSTM 'y'.*9 inputs, the operator takes 8"),
    ("y = LeakyRelu(x, alfa=0.1)", {}, "unknown attribute 'alfa'.*alpha"),
    ("y = LeakyRelu(x, alpha='much')", {}, "attribute 'alpha' is 'much', wanted a number"),
    ("y = Concat(x)", {}, "attribute 'axis' is missing"),
    ("y = ConstantOfShape(s, value=3)", {"s": np.array([2])}, "'value' is 3, wanted a tensor"),
    ("y = Softmax(x, axis=7)", {}, "axis 7 of 2"),
    ("y = Transpose(x, perm=[0, 0])", {}, "name one twice"),
    ("y = MatMul(x, w)", ONES, "<bytes>: MatMul 'y': matmul"),
    ("y = Einsum(x, w, equation='ij,jk->ik')", ONES, "<bytes>: Einsum 'y': index 'j' is 4 and 5"),
    ("b = Cast(x, to=9); y = Einsum(b, b, equation='ij,ij->i')", {}, "<bytes>: Einsum 'y': "),
    ("y = Gather(x, w, axis=1)", {"w": np.array([9])}, "Gather 'y': index 9 of 4"),
    ("s = Cast(x, to=7); y = Expand(x, s)", {}, "Expand 'y'.*computed from 'x'.*constants="),
]


@pytest.mark.parametrize(("nodes", "constants", "message"), WRONG)
def test_wrong_nodes_are_named(nodes, constants, message):
    refused(model(nodes, weights=constants), message)


#: the shape of x, nodes that compute y, the shapes of constants, and a part of the message
WRONG_SHAPES = [
    ([1, 4], "y = Gemm(x, w, c)", {"w": [4, 5], "c": [5, 1]}, "third input is float32.5,1."),
    ([1, 4], "y = Gemm(x, w, c)", {"w": [4, 5], "c": [3, 1, 5]}, "third input"),
    ([1, 1, 4], "y = Gemm(x, w)", {"w": [4, 5]}, "wanted matrices"),
    ([1, 1, 4], "y = Resize(x, _, c)", {"c": [6]}, "6 scales of 3 axes"),
    ([1, 1, 4, 4], "i = Cast(c, to=7); y = RoiAlign(x, r, i)", {"r": [2, 4], "c": []}, "indices"),
    ([1, 4], "y = Clip(x, c)", {"c": [4]}, "a bound"),
    ([3, 1], "y = RMSNormalization(x, c, axis=0)", {"c": [3, 4]}, "the scale"),
    ([3, 1], "y = LayerNormalization(x, c)", {"c": [4]}, "the scale"),
    ([3, 1], "y = LayerNormalization(x, c, d)", {"c": [1], "d": [4]}, "the bias"),
    ([1, 3, 4], "y = Conv(x, w, c)", {"w": [2, 3, 1], "c": [1]}, "bias is .*, wanted 2 numbers"),
    ([1, 3, 4], "y = Conv(x, w, c)", {"w": [2, 3, 1], "c": [2, 1]}, "the bias"),
    ([1, 3, 4], "y = ConvTranspose(x, w, c)", {"w": [3, 2, 1], "c": []}, "the bias"),
    ([1, 3, 4], "y = ConvTranspose(x, w, kernel_shape=[2])", {"w": [3, 2, 1]}, "kernel_shape"),
    ([1, 1, 4], "y = InstanceNormalization(x, c, c)", {"c": [2]}, "a parameter"),
    ([1, 2, 4], "y = InstanceNormalization(x, c, d)", {"c": [2], "d": [1]}, "a parameter"),
    ([1, 1, 4], "y = BatchNormalization(x, c, c, c, c)", {"c": [2]}, "a parameter"),
    ([1, 1, 4], "q = QuantizeLinear(x, c); y = DequantizeLinear(q, c)", {"c": [2]}, "a scale"),
    ([1, 4], "z = QuantizeLinear(x, c, axis=1, block_size=4); y = Cast(z, to=1)", {"c": [2, 1]},
     "float32.2,1. of float32.1,4. in blocks of 4"),
    ([1, 4], "z = Concat(x, c, axis=0); y = Concat(x, d, axis=1)", {"c": [0, 4], "d": [0, 4]},
     "float32.1,4., float32.0,4. differ in another axis than 1"),
    ([1, 4], "s = Shape(c); y = Expand(x, s)", {"c": [3]}, "does not broadcast to the shape .3."),
    ([1, 4], "y = ai.onnx.ml:Scaler(x, offset=[1.0, 2.0], scale=[1.0])", {}, "the offset is"),
    ([1, 4], "y = Gather(x, c)", {"c": [2]}, "the indices are float32.2., wanted integers"),
    ([2, 3, 4], "y = LSTM(x, w, w, _, _, c)", {"w": [1, 16, 4], "c": [1, 1, 4]},
     "float32.1,1,4., wanted .1, 3, 4."),
    ([2, 3, 4], "y = GRU(x, w, w, c)", {"w": [1, 12, 4], "c": [2, 24]}, "wanted .1, 24."),
    ([2, 3, 4], "y = RNN(x, w, w)", {"w": [1, 8, 4]}, "wanted .1, 4, 4."),
    ([1, 1, 2, 2], "i = Cast(c, to=7); y = MaxUnpool(x, i, kernel_shape=[2, 2])", {"c": [4]},
     "indices"),
    ([1, 2, 3, 4], "y = Attention(x, x, x, c)", {"c": [2, 2, 3, 3]}, "the mask"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "nodes", "constants", "message"), WRONG_SHAPES)
def test_parameters_of_a_wrong_shape_are_refused(shape, nodes, constants, message):
    """A parameter neither enlarges a result nor stands for several channels."""
    weights = {name: np.ones(extents, np.float32) for name, extents in constants.items()}
    refused(model(nodes, f"x: {shape}", "y", weights, opset=23), message)


#: the last two are refused by the operators that they become
UNFIT = ["Concat(x, w, axis=1)", "SpaceToDepth(x, blocksize=2)", "Add(x, w)",
         "AveragePool(x, kernel_shape=[4, 4])"]  # fmt: skip


@pytest.mark.parametrize("call", UNFIT)
def test_given_shapes_that_do_not_fit_are_named(call):
    """A shape that the caller gave may be wrong, rather than the model."""
    network = model(f"y = {call}", "x: [1, 1, h, w]", "y", {"w": np.ones((1, 1, 8, 8), np.float32)})
    advice = r"Give other shapes than x=\[1, 1, 3, 2\], or export the model again$"
    message = refused(network, advice, shapes={"x": (1, 1, 3, 2)})
    assert "export it again" not in message and "NNEF" not in message
    refused(network, advice, shapes=(1, 1, 3, 2))


def test_inputs_of_one_number_have_one():
    weights = {"two": np.array([1, 1]), "three": np.ones(3, np.float32), "one": np.array(1)}
    refused(model("y = CumSum(x, two)", weights=weights), "axis has 2 values, wanted one")
    refused(model("h = HannWindow(two); y = Add(x, h)", weights=weights), "wanted one")
    refused(model("y = OneHot(x, one, three)", weights=weights), "wanted 2 numbers")


@pytest.mark.parametrize("index", [-5, -3, 2])
@pytest.mark.parametrize(
    "call",
    ["Gather(x, i, axis=1)", "GatherND(x, i)", "GatherElements(x, i, axis=1)",
     "ScatterND(x, i, u)", "ScatterElements(x, i, v, axis=1)"],
)  # fmt: skip
def test_indices_outside_are_refused(call, index):
    """An index of 2 elements is -2 to 1; only scatters skip others at run time."""
    indices = np.array([[0, index]])
    known = {"i": indices, "u": np.ones(1, np.float32), "v": np.ones((1, 2), np.float32)}
    refused(model(f"y = {call}", "x: [1, 2]", "y", known), f"index {index} of 2 elements")
    if call.startswith("Gather"):
        graph = load(model(f"y = {call}", "x: [1, 2], i: int64[1, 2]", "y"))
        with pytest.raises(CmlError, match="wrong"):
            cml.Session(graph, "cpu").run({"x": np.zeros((1, 2)), "i": indices})


@pytest.mark.parametrize(
    "call",
    ["ReduceSum(x, c)", "Squeeze(x, c)", "Reshape(x, c)", "Expand(x, c)", "Tile(x, c)",
     "Slice(x, c, c)", "Slice(x, d, d, c)", "Pad(x, c)", "Resize(x, _, _, c)", "Resize(x, _, f)",
     "Split(x, c)", "TopK(x, one)", "CumSum(x, one)", "CenterCropPad(x, c)", "OneHot(i, one, d)"],
)  # fmt: skip
def test_matrices_are_no_lists(call):
    """A value that a runtime reads as a list or as one number has one axis at most."""
    given = {"c": np.array([[1], [0]]), "f": np.float32([[1], [1]]), "d": np.array([0, 1]),
             "one": np.array([[1]]), "i": np.array([0])}  # fmt: skip
    refused(model(f"y = {call}", "x: [1, 1]", "y", given, opset=18), r"got .*1\], wanted one axis")


def test_nodes_that_contradict_themselves_are_refused():
    twice = one("Softmax", axis=1)
    twice.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    refused(twice, "a node has the attribute 'axis' twice")
    refused(model("y = Relu(x)", outputs=""), "has no outputs")
    call = model("y = my:F(x, x)", functions=[function("F", "c = Relu(a)")])
    refused(call, "my:F 'y': 2 inputs, the function takes 1")


def test_long_names_do_not_flood_messages():
    """A message loses the middle of a long name, and keeps the next step behind it."""
    network = one("Relu")
    network.graph.node[0].input[0] = name = "n" * 100_000
    message = refused(network, "the model is damaged, export it again$")
    assert len(message) < 5000
    network.graph.node[0].op_type = name
    assert len(refused(network, "cannot be imported.*\n.*\n  bring your own")) < 10_000


def test_duplicate_names_are_refused():
    refused(model("y = Add(x, x)", [X, X]), "two inputs are called 'x'")
    refused(model("y = Relu(x)", outputs=[Y, Y]), "two outputs are named 'y'. Export it once")
    network = one("Add", "x w", {"w": np.ones(4, np.float32)})
    network.graph.initializer.append(network.graph.initializer[0])
    refused(network, "initializer 'w' is there twice")


@pytest.mark.parametrize("opset", [6, 99])
def test_opsets(opset):
    refused(one("Relu", opset=opset), f"opset {opset}, wanted 7 to 28", UnsupportedOp)


def imported(network, *domains):
    """Returns a model that imports these versions of domains and no others."""
    del network.opset_import[:]
    network.opset_import.extend(helper.make_opsetid(*domain) for domain in domains)
    return network


def test_an_operator_needs_one_supported_opset():
    """Operators mean different things in different opsets, so none is assumed."""
    refused(imported(one("Relu")), "it names no opset")
    refused(imported(one("pnnx.Input")), "is no ONNX model: give the .ncnn.param that pnnx wrote")
    missing = "imports no opset of ONNX's own operators, so that Softmax 'y'"
    refused(imported(one("Softmax"), ("com.microsoft", 1)), missing)
    old = imported(function("F", "c = Softmax(a)"), ("my", 1), ("", 5))
    refused(model("y = my:F(x)", functions=[old]), "opset 5, wanted 7 to 28", UnsupportedOp)


#: nodes of a function ``my:F`` of opset 11 in a model of opset 17, and what the error says
IN_FUNCTIONS = {
    "c = Softmax(a, axis=7)": "Softmax 'c' of opset 11 in function 'my:F': axis 7 of 2",
    "c = Add(a, nowhere)": "Add 'c' of opset 11 in function 'my:F': its input 'nowhere'",
    "c = my:G(a)": "Softmax 'c' in function 'my:G': axis 7 of 2",
    "c = my:G(a, a)": "my:G 'c' in function 'my:F': 2 inputs, the function takes 1",
    "c = Reluu(a)": r"Reluu .opset 11.: 'c' in function 'my:F'; did you mean Relu",
    "b = Scatter(a, a, a); c = Scatter(b, b, b)":
        r"Scatter .opset 11.: 2 nodes, first 'b' in function 'my:F'; known in opsets 7-10",
}  # fmt: skip


@pytest.mark.parametrize("nodes", IN_FUNCTIONS)
def test_errors_in_functions_name_the_function_and_its_opset(nodes):
    outer = imported(function("F", nodes), ("my", 1), ("", 11))
    inner = function("G", "c = Softmax(a, axis=7)")
    refused(model("y = my:F(x)", functions=[outer, inner]), IN_FUNCTIONS[nodes])


@pytest.mark.parametrize(
    ("domains", "said"),
    [([("", 5)], "function 'my:F' is of opset 5"), ([("", 99)], "function 'my:F' is of opset 99"),
     ([], "function 'my:F' imports no opset")],
)  # fmt: skip
def test_a_function_without_a_supported_opset_is_named(domains, said):
    wrong = imported(function("F", "c = Softmax(a)"), ("my", 1), *domains)
    refused(model("y = my:F(x)", functions=[wrong]), said)


def test_unknown_operators_are_all_listed():
    nodes = (
        "a = Reluu(x, name='first'); b = Reluu(a); c = my.ops:Thing(b, name='thing'); "
        "y = Gelu(c, approximate='tanh'); nothing = Unneeded(x)"
    )
    message = refused(model(nodes, domains={"my.ops": 3}), "2 operators", UnsupportedOp)
    assert "Reluu (opset 17): 2 nodes, first 'first'; did you mean Relu?" in message
    assert "my.ops:Thing (opset 3): 'thing'" in message
    assert message.count("register it (--ops FILE.py)") == 1
    assert "cml convert --placeholders" in message
    assert "Unneeded" not in message


@pytest.mark.parametrize(
    "op",
    ["StringNormalizer", "com.microsoft:LongformerAttention", "ImageDecoder", "TfIdfVectorizer",
     "Convolution", "com.microsoft:QOrderedMatMul"],
)  # fmt: skip
def test_distant_names_are_not_suggested(op):
    message = refused(model(f"y = {op}(x)"), op)
    assert "did you mean" not in message


def test_omitted_inputs_beyond_the_last_are_accepted():
    assert load(model("y = Clip(x, _, _, _)")).nodes[0].op == "copy"


def test_oversized_masks_are_refused():
    with little_memory():
        refused(model("y = Trilu(x)", "x: [1048576, 1048576]"), "Trilu 'y'.*the shape")
        network = model("y = Attention(x, x, x, is_causal=1, q_num_heads=1, kv_num_heads=1)",
                     "x: [1, 1048576, 4]", opset=23)  # fmt: skip
        refused(network, "Attention 'y'.*the shape")


def test_data_dependent_shapes_are_refused():
    network = model("y = Reshape(x, s)", "x: [1, 4], s: int64[2]")
    assert load(network, constants={"s": np.array([2, 2])}).inputs == ("x",)
    refused(network, "the shape must be known.*'s'", UnsupportedOp)


# -- sizes -----------------------------------------------------------------------------------------


def tensor_of(dims):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT)
    tensor.dims.extend(dims)
    return tensor


@pytest.mark.parametrize("dims", [[2**40], [2**31, 2**31], [-1], [2**62, 4], [1] * 40, [0, 2**62]])
def test_absurd_tensors(dims):
    network = one("Add", "x w")
    network.graph.initializer.append(tensor_of(dims))
    refused(network, "'w' has|does not|broadcast|shape|takes")


def test_absurd_shapes():
    refused(one("Relu"), "shape", shapes={"x": (2**31, 4)})
    refused(one("Relu"), "elements|shape", shapes={"x": (2**20, 2**20)})
    big = {"s": np.array([2**40]), "n": np.array(2**40), "one": np.array(1), "zero": np.array(0)}
    for inputs, op in (("s", "ConstantOfShape"), ("x s", "Expand"), ("zero n one", "Range")):
        refused(one(op, inputs, big), "shape")
    refused(one("Tile", "x s", {"s": np.array([2**30, 2**30])}), "shape")
    refused(one("Pad", "x s", {"s": np.array([0, 2**40, 0, 0])}), "shape")
    ends = np.array([0, 1], np.float32)
    network = one("OneHot", "i d v", {"i": np.arange(4), "d": np.array(2**40), "v": ends})
    refused(network, "shape")
    refused(one("Reshape", "x s", {"s": np.array([-1, -1])}), "shape")
    refused(one("Reshape", "x s", {"s": np.array([3, 3])}), "does not fit")


def test_growing_constants_are_not_computed_at_import():
    """The import does not compute large results of small constants where it needs only a shape."""
    tall, wide = np.ones((2**14, 1), np.float32), np.ones((1, 2**14), np.float32)
    for op in ("Add", "Less", "MatMul"):
        network = model(f"c = {op}(a, b); y = Shape(c)", weights={"a": tall, "b": wide})
        with little_memory():
            load(network)


def test_float64_constants_out_of_range_are_refused():
    """A constant of 1e300 in 64 bits is refused, not turned into infinity.

    Infinity, NaN, the smallest double and a tiny number are accepted.
    """
    nodes = "d = Cast(x, to=11); y = Add(d, w)"
    refused(model(nodes, weights={"w": np.array([1e300, 1])}), r"1e\+300.*32 bits")
    limits = np.array([np.finfo(np.float64).min, np.inf, np.nan, 1e-300])
    loaded = load(model(nodes, weights={"w": limits}))
    (constant,) = loaded.constants.values()
    assert_array_equal(constant, np.array([[-np.inf, np.inf, np.nan, 0]], np.float32))


def test_loops_of_unknown_length_are_refused():
    network = model([loop("n")], "x: [1, 4], n: int64[]", weights={"true": np.array(True)})
    refused(network, "number of iterations must be known", UnsupportedOp)


def test_functions_without_end():
    endless = function("F", "c = my:F(a)")
    refused(model("y = my:F(x)", functions=[endless]), "without end")


def field(number, payload):
    """Returns the bytes of a length-delimited protobuf field with that number."""
    size, length = len(payload), b""
    while True:
        length += bytes([size & 0x7F | (0x80 if size > 0x7F else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + length + payload


def nested(depth):
    """Returns the bytes of a model with ``depth`` nested Ifs, more than the onnx package can
    write."""
    leaf = subgraph("y = Identity(x)", "", "y").SerializeToString()
    output, kind = field(12, Y.SerializeToString()), b"\xa0\x01\x05"
    graph = leaf
    for _ in range(depth):
        branches = [("then_branch", graph), ("else_branch", leaf)]
        named = [field(5, field(1, n.encode()) + field(6, g) + kind) for n, g in branches]
        texts = field(1, b"true") + field(2, b"y") + field(4, b"If")
        graph = field(1, texts + b"".join(named)) + output
    true = numpy_helper.from_array(np.array(True), "true").SerializeToString()
    graph += field(11, X.SerializeToString()) + field(5, true)
    return field(7, graph) + field(8, b"\x10\x11")


def test_nested_without_end():
    assert cml.load(nested(10)).inputs == ("x",)
    refused(nested(200), "nest more than 100 deep")


# -- external data ---------------------------------------------------------------------------------


def external(location, **more):
    network = one("Add", "x w")
    tensor = tensor_of([1, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    network.graph.initializer.append(tensor)
    return network


def test_external_data_beyond_2_gb(tmp_path):
    """External data at an offset beyond 2 GB is read, and only the requested range of the file.

    The file is sparse, so it takes no space on disk.
    """
    begin, values = 2**31 + 16, np.arange(4, dtype=np.float32)
    with (tmp_path / "w.bin").open("wb") as file:
        file.seek(begin)
        file.write(values.tobytes())
    saved(external("w.bin", offset=str(begin), length="16"), tmp_path / "m.onnx")
    outputs = cml.Session(cml.load(tmp_path / "m.onnx"), "cpu").run(
        {"x": np.zeros((1, 4), np.float32)}
    )
    assert_array_equal(outputs["y"][0], values)


def test_external_data_of_a_source():
    values = np.arange(8, dtype=np.float32)
    model = external("./w.bin", offset="16", length="16").SerializeToString()
    pak = FileSource({"net.onnx": model, "w.bin": values.tobytes()}, "net.onnx")
    outputs = cml.Session(cml.load(pak), "cpu").run({"x": np.zeros((1, 4), np.float32)})
    assert_array_equal(outputs["y"][0], values[4:])
    pak.files["w.bin"] = values.tobytes()[:20]
    with pytest.raises(CmlError, match="'w.bin' is truncated|16 bytes at 16"):
        cml.load(pak)
    del pak.files["w.bin"]
    with pytest.raises(
        CmlError, match="in './w.bin', which is not in 'pak:net': put that file beside"
    ):
        cml.load(pak)
    outside = FileSource({"net.onnx": external("../w.bin").SerializeToString()}, "net.onnx")
    with pytest.raises(CmlError, match="'../w.bin', which is not in the model's folder"):
        cml.load(outside)
    assert set(outside.asked) == {"net.onnx"}


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", ".", "a\0b", "..\\x", "C:x"])
def test_external_data_outside_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    saved(external(location), folder / "m.onnx")
    with pytest.raises(CmlError, match="not in the model's folder"):
        cml.load(folder / "m.onnx")
    refused(external("w.bin"), "given as bytes: give its path")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"offset": "-4"}, "offset or length"),
        ({"offset": "99999999999999999999"}, "offset or length"),
        ({"offset": "8"}, "8 bytes for 4 values"),
        ({"length": "4096"}, "truncated"),
    ],
)
def test_external_data_of_wrong_size(tmp_path, more, match):
    (tmp_path / "w.bin").write_bytes(bytes(16))
    saved(external("w.bin", **more), tmp_path / "m.onnx")
    with pytest.raises(CmlError, match=match):
        cml.load(tmp_path / "m.onnx")


# -- types -----------------------------------------------------------------------------------------


def test_sparse_tensors_are_refused_by_name():
    network = one("Relu")
    sparse = network.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "holes"))
    sparse.dims.extend([4])
    refused(network, "sparse tensor 'holes'", UnsupportedOp)


def test_unsupported_types_are_refused():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    refused(model("y = Identity(x)", [text]), "'x' is string", UnsupportedOp)
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])
    refused(model("y = Identity(x)", [sequence]), "'x' is a sequence")
    network = model("y = Add(x, w)", "x: int64[2]", weights={"w": np.array([2**40, 1])})
    refused(network, "Add 'y'.*1,101,659,111,423.*32 bits")


@pytest.mark.filterwarnings("ignore:.*is float64")
def test_bitcast_of_float64_is_refused():
    """A BitCast of a 64-bit float is refused, since it is computed in 32 bits here."""
    network = model("y = BitCast(x, to=7)", "x: float64[2]", opset=27)
    refused(network, "float64 read as int64", UnsupportedOp)


# -- names and shapes that could mislead readers -------------------------------------------------


CONTROLS = ["\x1b[31mred\x1b[2J", "a\x07b", "\x9b31m", "a\u202eb", "a\rb", "\0"]


@pytest.mark.parametrize(
    "command", ["info", "rank --backend cpu --runs 1", "validate --backend cpu", "run -i x=x.npy"]
)
def test_names_never_steer_the_terminal(command, tmp_path, capsys):
    name = "".join(CONTROLS)
    network = model([helper.make_node("Relu", [name], ["y"], name=name)], [value(name, [1, 4])])
    (tmp_path / "m.onnx").write_bytes(network.SerializeToString())
    command, *more = command.split()
    with suppress(SystemExit):
        main([command, str(tmp_path / "m.onnx"), *more])
    out, err = capsys.readouterr()
    assert (out + err).strip()
    assert all(c == "\n" or c.isprintable() for c in out + err), (out + err).encode()


EMPTY = [[0, *[2**31 - 1] * count] for count in (3, 8)]


@pytest.mark.parametrize("shape", EMPTY)
def test_overflowing_empty_shapes_are_refused(shape):
    """Shapes with an extent of 0 and others that NumPy cannot multiply raise an error of the
    engine.

    NumPy would raise an error of its own.
    """
    refused(model("y = Relu(x)", f"x: {shape}"), "shape")
    refused(one("Relu"), "shape|extents", shapes={"x": tuple(shape)})
    for op, inputs in (("Reshape", "e s"), ("Expand", "x s"), ("ConstantOfShape", "s")):
        weights = {"s": np.array(shape), "e": np.zeros(0, np.float32)}
        refused(one(op, inputs, weights), "shape|cannot|axes")
    network = one("Add", "x w")
    network.graph.initializer.append(tensor_of(shape))
    refused(network, "the tensor 'w' has the shape")
    text = (
        "version 1.0;\ngraph g(x) -> (y)\n{{\n    x = external(shape = {});\n    y = relu(x);\n}}\n"
    )
    with pytest.raises(CmlError, match="shape .* wants at most 32 extents"):
        cml.load(cml.nnef.MemoryModel(text.format(shape)))


@pytest.mark.parametrize("name", ["m\0", "a\0b/m.onnx", "m\0.tgz"])
def test_paths_with_a_nul(name, tmp_path):
    graph = load(one("Relu"))
    with pytest.raises(cml.InputError, match="the place to save to: wanted a path, got "):
        cml.save(graph, tmp_path / name)
    with pytest.raises(CmlError):
        cml.load(tmp_path / name)


# -- small files that require much memory or work ------------------------------------------------

MIB = 2**20
#: processor seconds that no hostile file may take; the machine may be busy
SECONDS = 20.0


def called(functions, calls):
    """Returns a model of these calls and functions; ``functions`` has the nodes of each by name."""
    inlined = [function(name, body) for name, body in functions.items()]
    return model(calls, functions=inlined)


def doubling_functions():
    functions = {f"F{i}": f"b = my:F{i + 1}(a); c = my:F{i + 1}(b)" for i in range(40)}
    return called({**functions, "F40": "c = Relu(a)"}, "y = my:F0(x)")


def dead_nodes_in_functions():
    dead = [f"d{i} = Relu(a)" for i in range(5000)]
    calls = [f"t{i + 1} = my:F(t{i})" for i in range(1000)]
    return called({"F": [*dead, "c = Relu(a)"]}, ["t0 = Relu(x)", *calls, "y = Relu(t1000)"])


def many_zeros(count, size):
    zeros = [f"c{i} = ConstantOfShape(n)" for i in range(count)]
    sums = [f"s{i + 1} = Add(s{i}, c{i})" for i in range(count)]
    nodes = ["s0 = Relu(x)", *zeros, *sums, f"y = Relu(s{count})"]
    return model(nodes, "x: [1, 1]", "y", {"n": np.array([size])})


def doubling_concat():
    doubled = [f"c{i + 1} = Concat(c{i}, c{i}, axis=0)" for i in range(40)]
    weights = {"c0": np.ones(1000, np.float32)}
    return model([*doubled, "y = Add(x, c40)"], "x: [1]", "y", weights)


def endless_loop():
    return model([loop("n")], weights={"n": np.array(2**40), "true": np.array(True)})


def long_attribute():
    """Returns a model with an attribute of 4 million numbers, each in a field of its own."""
    network = model("y = Relu(x)")
    attribute = network.graph.node[0].attribute.add()
    attribute.name, attribute.type = "many", onnx.AttributeProto.INTS
    attribute.ints.extend([1] * 4_000_000)
    return network


HOSTILE = {
    "Split into 2^30": (
        lambda: one("Split", opset=18, num_outputs=2**30),
        cml.LoadLimits(),
        "Split 'y': .* needs 1,073,741,824 nodes",
    ),
    "functions that double": (doubling_functions, cml.LoadLimits(), "functions written out"),
    "a loop without end": (endless_loop, cml.LoadLimits(steps=10**5), "a loop or function needs"),
    "many tensors of 60 K": (
        lambda: many_zeros(700, 60_000),
        cml.LoadLimits(memory=52 * MIB),
        r"ConstantOfShape 'c\d+': its tensor of the shape .60000. needs 240,000 bytes",
    ),
    "a tensor that doubles": (doubling_concat, cml.LoadLimits(memory=64 * MIB), "Concat 'c1.'"),
    "Expand": (
        lambda: one("Expand", "w s", {"w": np.ones(1, np.float32), "s": np.array([2**28])}),
        cml.LoadLimits(memory=64 * MIB),
        "1,073,741,824 bytes",
    ),
    "Gather": (
        lambda: one("Gather", "w i", {"w": np.ones((2, 4000), np.float32),
                                      "i": np.zeros(16_000, np.int64)}),
        cml.LoadLimits(memory=64 * MIB),
        "Gather 'y'",
    ),
    "a list of integers": (long_attribute, cml.LoadLimits(steps=10**6), "4,000,000 steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name):
    make, limits, message = HOSTILE[name]
    data, start = bytes(make().SerializeToString()), time.process_time()
    with pytest.raises(OverBudget, match=message) as caught:
        cml.load(data, limits=limits)
    assert time.process_time() - start < SECONDS
    assert "raise the limit: --load-limits" in str(caught.value)


def test_hostile_graphs_load_in_linear_time():
    """A Sum of 20,000 inputs, functions of dead nodes and an operator with a name of 10 million
    characters take at most ``SECONDS`` of processor time."""
    sums = model(f"y = Sum({', '.join(['x'] * 20_000)})")
    unknown = one("Relu")
    unknown.graph.node[0].op_type = "n" * 10_000_000
    for network in (sums, dead_nodes_in_functions(), unknown):
        start = time.process_time()
        with suppress(UnsupportedOp):
            load(network)
        assert time.process_time() - start < SECONDS


def test_constants_as_large_as_a_real_network_s_weights():
    """A ConstantOfShape of 37 million weights loads, as in AlexNet of the ONNX model zoo."""
    graph = load(many_zeros(1, 37_748_736))
    assert max(array.size for array in graph.constants.values()) == 37_748_736
