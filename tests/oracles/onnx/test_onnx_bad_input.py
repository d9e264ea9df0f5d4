"""Tests that invalid ONNX files give one error of the engine, soon and without a large
allocation."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from numpy.testing import assert_array_equal

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cml_engine as cml  # noqa: E402
from cml_engine.errors import CmlError, UnsupportedOp  # noqa: E402
from cml_engine.tools.cli import main  # noqa: E402
from tests.fixtures.onnx_models import (  # noqa: E402
    exported_cnn,
    loop,
    model,
    node,
    one,
    saved,
    value,
)

X, Y = value("x", [1, 4]), value("y", None)
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


@pytest.fixture(scope="module")
def data():
    return bytes(exported_cnn(np.random.default_rng(1)).SerializeToString())


def test_not_a_model(tmp_path):
    refused(b"", "no graph")
    refused(b"some text that is no network's", "damaged or no ONNX model")
    with pytest.raises(CmlError, match="cannot read"):
        cml.load(tmp_path / "missing.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CmlError, match="cannot read"):
        cml.load(tmp_path / "folder.onnx")


# -- graphs ----------------------------------------------------------------------------------------


def test_cycle():
    made = model([node("a = Add(x, b)"), node("b = Relu(a)"), node("y = Relu(b)")], [X], [Y])
    refused(made, "comes from no node before it.*cycle")


def test_duplicate_names_are_refused():
    twice = model([node("y = Relu(x)"), node("y = Abs(x)")], [X], [Y])
    refused(twice, "'y' is made twice")
    refused(model([node("y = Add(x, x)")], [X, X], [Y]), "two inputs are called 'x'")
    refused(model([node("y = Relu(x)")], [X], [Y, Y]), "two outputs have one name")
    made = one("Add", "x w", {"w": np.ones(4, np.float32)})
    made.graph.initializer.append(made.graph.initializer[0])
    refused(made, "initializer 'w' is there twice")


def test_unknown_output_and_input():
    refused(model([node("z = Relu(x)")], [X], [Y]), "the graph's output 'y' comes from no node")
    refused(model([node("y = Relu(q)")], [X], [Y]), "Relu 'y': its input 'q'")


@pytest.mark.parametrize("opset", [6, 99])
def test_opsets(opset):
    refused(one("Relu", opset=opset), f"opset {opset}, wanted 7 to 28", UnsupportedOp)


def test_unknown_operators_are_all_listed():
    nodes = [
        node("a = Reluu(x, name='first')"),
        node("b = Reluu(a)"),
        helper.make_node("Thing", ["b"], ["c"], domain="my.ops", name="thing"),
        node("y = Gelu(c, approximate='tanh')"),
        node("nothing = Unneeded(x)"),
    ]
    made = model(nodes, [X], [Y], domains={"my.ops": 3})
    said = refused(made, "2 operators", UnsupportedOp)
    assert "Reluu (opset 17): 2 nodes, first 'first'; did you mean Relu?" in said
    assert "my.ops:Thing (opset 3): 'thing'" in said
    assert said.count("register it (--ops FILE.py)") == 1
    assert "Unneeded" not in said


@pytest.mark.parametrize(
    ("op", "domain"),
    [("StringNormalizer", ""), ("DynamicQuantizeLSTM", "com.microsoft"), ("SequenceMap", ""),
     ("TfIdfVectorizer", ""), ("Convolution", ""), ("QLinearAdd", "com.microsoft")],
)  # fmt: skip
def test_distant_names_are_not_suggested(op, domain):
    made = helper.make_node(op, ["x"], ["y"], domain=domain)
    said = refused(model([made], [X], [Y], domains={domain: 1} if domain else {}), op)
    assert "did you mean" not in said


def test_more_inputs_than_an_operator_takes():
    made = model([node("y = Relu(x, x, name='/act')")], [X], [Y])
    refused(made, "Relu '/act'.*2 inputs, the operator takes 1", UnsupportedOp)
    made = model([node("y = LSTM(x, x, x, x, x, x, x, x, x)")], [X], [Y])
    refused(made, "LSTM 'y'.*9 inputs, the operator takes 8", UnsupportedOp)
    made = model([node("y = Clip(x, _, _, _)")], [X], [Y])
    assert cml.load(made.SerializeToString()).nodes[0].op == "copy"


def test_oversized_masks_are_refused():
    wide = value("x", [1 << 20, 1 << 20])
    with little_memory():
        refused(model([node("y = Trilu(x)")], [wide], [Y]), "Trilu 'y'.*the shape", CmlError)
        made = model([node("y = Attention(x, x, x, is_causal=1, q_num_heads=1, kv_num_heads=1)")],
                     [value("x", [1, 1 << 20, 4])], [Y], opset=23)  # fmt: skip
        refused(made, "Attention 'y'.*the shape", CmlError)


def test_wrong_attributes():
    refused(one("LeakyRelu", alfa=0.1), "unknown attribute 'alfa'.*alpha")
    refused(one("LeakyRelu", alpha="much"), "attribute 'alpha' is 'much', wanted a number")
    refused(one("Concat"), "attribute 'axis' is missing")
    made = one("ConstantOfShape", "s", {"s": np.array([2])}, value=3)
    refused(made, "attribute 'value' is 3, wanted a tensor")
    refused(one("Softmax", axis=7), "axis 7 of 2")
    refused(one("Transpose", perm=[0, 0]), "name one twice")


def test_messages_name_the_node():
    made = one("MatMul", "x w", {"w": np.ones((5, 4), np.float32)})
    assert "<bytes>: MatMul 'y': matmul" in refused(made, "matmul")
    made = one("Gather", "x w", {"w": np.array([9])}, axis=1)
    assert "Gather 'y': index 9 of 4" in refused(made, "index 9")


def test_data_dependent_shapes_are_refused():
    made = model([node("s = Cast(x, to=7)"), node("y = Expand(x, s)")], [X], [Y])
    refused(made, "Expand 'y'.*computed from 'x'.*constants=", UnsupportedOp)
    made = model([node("y = Reshape(x, s)")], [X, value("s", [2], "int64")], [Y])
    assert cml.load(made.SerializeToString(), constants={"s": np.array([2, 2])}).inputs == ("x",)
    refused(made, "the shape must be known.*'s'", UnsupportedOp)


# -- sizes -----------------------------------------------------------------------------------------


def tensor_of(dims):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT)
    tensor.dims.extend(dims)
    return tensor


@pytest.mark.parametrize("dims", [[2**40], [2**31, 2**31], [-1], [2**62, 4], [1] * 40, [0, 2**62]])
def test_absurd_tensors(dims):
    made = one("Add", "x w")
    made.graph.initializer.append(tensor_of(dims))
    refused(made, "'w' has|does not|broadcast|shape|takes")


def test_absurd_shapes():
    refused(one("Relu"), "shape", shapes={"x": (2**31, 4)})
    refused(one("Relu"), "elements|shape", shapes={"x": (2**20, 2**20)})
    big = {"s": np.array([2**40]), "n": np.array(2**40), "one": np.array(1), "zero": np.array(0)}
    for inputs, op in (("s", "ConstantOfShape"), ("x s", "Expand"), ("zero n one", "Range")):
        refused(one(op, inputs, big), "shape")
    refused(one("Tile", "x s", {"s": np.array([2**30, 2**30])}), "shape")
    refused(one("Pad", "x s", {"s": np.array([0, 2**40, 0, 0])}), "shape")
    ends = np.array([0, 1], np.float32)
    made = one("OneHot", "i d v", {"i": np.arange(4), "d": np.array(2**40), "v": ends})
    refused(made, "shape")
    refused(one("Reshape", "x s", {"s": np.array([-1, -1])}), "shape")
    refused(one("Reshape", "x s", {"s": np.array([3, 3])}), "does not fit")


def test_growing_constants_are_not_computed_at_import():
    """The import does not compute large results of small constants where it needs only a shape."""
    tall, wide = np.ones((2**14, 1), np.float32), np.ones((1, 2**14), np.float32)
    for op in ("Add", "Less", "MatMul"):
        nodes = [node(f"c = {op}(a, b)"), node("y = Shape(c)")]
        with little_memory():
            cml.load(model(nodes, [X], [Y], {"a": tall, "b": wide}).SerializeToString())


def test_float64_constants_out_of_range_are_refused():
    """A constant of 1e300 in 64 bits is refused, not turned into infinity.

    Infinity, NaN, the smallest double and a tiny number are accepted.
    """
    nodes = [node("d = Cast(x, to=11)"), node("y = Add(d, w)")]
    refused(model(nodes, [X], [Y], {"w": np.array([1e300, 1])}), "1e\\+300.*32 bits")
    limits = np.array([np.finfo(np.float64).min, np.inf, np.nan, 1e-300])
    loaded = cml.load(model(nodes, [X], [Y], {"w": limits}).SerializeToString())
    (held,) = loaded.constants.values()
    assert_array_equal(held, np.array([[-np.inf, np.inf, np.nan, 0]], np.float32))


def test_loops_of_unknown_length_are_refused():
    made = model([loop("n")], [X, value("n", [], "int64")], [Y], {"true": np.array(True)})
    refused(made, "number of iterations must be known", UnsupportedOp)


def test_functions_without_end():
    inner = helper.make_node("F", ["a"], ["b"], domain="my")
    function = helper.make_function(
        "my", "F", ["a"], ["b"], [inner], [helper.make_opsetid("my", 1)]
    )
    call = helper.make_node("F", ["x"], ["y"], domain="my")
    made = model([call], [X], [Y], domains={"my": 1}, functions=[function])
    refused(made, "without end")


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
    leaf = helper.make_graph([node("y = Identity(x)")], "g", [], [Y]).SerializeToString()
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
    made = one("Add", "x w")
    tensor = tensor_of([1, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    made.graph.initializer.append(tensor)
    return made


def test_external_data_beyond_2_gb(tmp_path):
    """External data at an offset beyond 2 GB is read, and only the requested range of the file.

    The file is sparse, so it takes no space on disk.
    """
    begin, values = 2**31 + 16, np.arange(4, dtype=np.float32)
    with (tmp_path / "w.bin").open("wb") as file:
        file.seek(begin)
        file.write(values.tobytes())
    saved(external("w.bin", offset=str(begin), length="16"), tmp_path / "m.onnx")
    got = cml.Session(cml.load(tmp_path / "m.onnx"), "cpu").run({"x": np.zeros((1, 4), np.float32)})
    assert_array_equal(got["y"][0], values)


class Pak:
    """A model source with files in memory; ``asked`` has the files whose size was requested."""

    name, graph = "pak:net", "net.onnx"

    def __init__(self, files):
        self.files = files
        self.asked: set[str] = set()

    def size(self, file):
        self.asked.add(file)
        return len(self.files[file]) if file in self.files else None

    def read(self, file, offset, count):
        return self.files[file][offset : offset + count]


def test_external_data_of_a_source():
    values = np.arange(8, dtype=np.float32)
    model = external("./w.bin", offset="16", length="16").SerializeToString()
    session = cml.Session(cml.load(Pak({"net.onnx": model, "w.bin": values.tobytes()})), "cpu")
    got = session.run({"x": np.zeros((1, 4), np.float32)})
    assert_array_equal(got["y"][0], values[4:])
    with pytest.raises(CmlError, match="No such file in 'pak:net'.*belongs beside"):
        cml.load(Pak({"net.onnx": model}))
    with pytest.raises(CmlError, match="'w.bin' is truncated|16 bytes at 16"):
        cml.load(Pak({"net.onnx": model, "w.bin": values.tobytes()[:20]}))
    outside = Pak({"net.onnx": external("../w.bin").SerializeToString()})
    with pytest.raises(CmlError, match="'../w.bin', which is not in the model's folder"):
        cml.load(outside)
    assert outside.asked == {"net.onnx"}


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", ".", "link", "a\0b", "..\\x"])
def test_external_data_outside_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "secret")
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
    saved(external("missing.bin"), tmp_path / "m.onnx")
    with pytest.raises(CmlError, match="missing.bin.*it belongs beside"):
        cml.load(tmp_path / "m.onnx")


# -- types -----------------------------------------------------------------------------------------


def test_sparse_tensors_are_refused_by_name():
    made = one("Relu")
    sparse = made.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "holes"))
    sparse.dims.extend([4])
    refused(made, "sparse tensor 'holes'", UnsupportedOp)


def test_unsupported_types_are_refused():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    refused(model([node("y = Identity(x)")], [text], [Y]), "'x' is string", UnsupportedOp)
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])
    refused(model([node("y = Identity(x)")], [sequence], [Y]), "'x' is a sequence")
    made = model([node("y = Add(x, w)")], [value("x", [2], "int64")], [Y],
                 {"w": np.array([2**40, 1])})  # fmt: skip
    refused(made, "Add 'y'.*1099511627776.*32 bits")


@pytest.mark.filterwarnings("ignore:.*is float64")
def test_bitcast_of_float64_is_refused():
    """A BitCast of a 64-bit float is refused, since it is computed in 32 bits here."""
    wide = value("x", [2], "float64")
    refused(model([node("y = BitCast(x, to=7)")], [wide], [Y], opset=27),
            "float64 read as int64", UnsupportedOp)  # fmt: skip


# -- names and shapes that could mislead readers -------------------------------------------------


CONTROLS = ["\x1b[31mred\x1b[2J", "a\x07b", "\x9b31m", "a\u202eb", "a\rb", "\0"]


@pytest.mark.parametrize(
    "command", ["info", "rank --backend cpu --runs 1", "validate --backend cpu", "run -i x=x.npy"]
)
def test_names_never_steer_the_terminal(command, tmp_path, capsys):
    name = "".join(CONTROLS)
    made = model([helper.make_node("Relu", [name], ["y"], name=name)], [value(name, [1, 4])], [Y])
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
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
    refused(model([node("y = Relu(x)")], [value("x", shape)], [Y]), "shape")
    refused(one("Relu"), "shape|extents", shapes={"x": tuple(shape)})
    for op, inputs in (("Reshape", "e s"), ("Expand", "x s"), ("ConstantOfShape", "s")):
        weights = {"s": np.array(shape), "e": np.zeros(0, np.float32)}
        refused(one(op, inputs, weights), "shape|cannot|axes")
    made = one("Add", "x w")
    made.graph.initializer.append(tensor_of(shape))
    refused(made, "the tensor 'w' has the shape")
    text = (
        "version 1.0;\ngraph g(x) -> (y)\n{{\n    x = external(shape = {});\n    y = relu(x);\n}}\n"
    )
    with pytest.raises(CmlError, match="shape .* wants at most 32 extents"):
        cml.load(cml.MemoryModel(text.format(shape)))


@pytest.mark.parametrize("name", ["m\0", "a\0b/m.onnx", "m\0.tgz"])
def test_paths_with_a_nul(name, tmp_path):
    graph = cml.load(one("Relu").SerializeToString())
    with pytest.raises(cml.InputError, match="no path has a NUL"):
        cml.save(graph, tmp_path / name)
    with pytest.raises(CmlError):
        cml.load(tmp_path / name)
