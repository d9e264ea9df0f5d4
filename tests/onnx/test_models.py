"""Tests of ONNX models against ONNX Runtime and against the ``onnx`` package."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from tests.fixtures.onnx_models import (  # noqa: E402
    exported_cnn,
    function,
    load,
    model,
    node,
    nodes_of,
    run,
    saved,
    shuffled,
    subgraph,
)
from tests.proofs.onnx_nodes import run_onnx  # noqa: E402


@pytest.fixture
def cnn(rng, tmp_path):
    return saved(exported_cnn(rng), tmp_path / "cnn.onnx")


SHAPE = (1, 3, 8, 8)


def test_exported_network(rng, cnn):
    network = exported_cnn(rng)
    graph = load(network, shapes={"image": SHAPE})
    x = rng.standard_normal(SHAPE, np.float32)
    expected = run_onnx(network.SerializeToString(), {"image": x})
    outputs = cml.Session(graph, "cpu").run({"image": x})
    assert outputs.keys() == expected.keys()
    assert_allclose(outputs["output"], expected["output"], rtol=1e-5, atol=1e-6)
    assert {n.op for n in graph.nodes} >= {"conv", "prelu", "deconv", "linear", "softmax"}
    assert "conv1_Conv" in graph.facts
    assert str(graph.nodes[0].source).endswith("<bytes>: Conv '/conv1/Conv'")


def test_missing_shapes_are_named(cnn):
    with pytest.raises(cml.InputError, match="'image'.*'batch', 'height', 'width'.*--shape image="):
        cml.load(cnn)
    with pytest.raises(cml.InputError, match="no input 'picture'.*image"):
        cml.load(cnn, shapes={"picture": SHAPE})
    with pytest.raises(cml.InputError, match=r"cnn\.onnx': the shape .* 3 extents"):
        cml.load(cnn, shapes={"image": (1, 3, 8)})


def test_constant_conflicting_with_a_given_shape_is_refused(cnn):
    for constant, why in ((np.zeros((1, 3, 9, 8)), "leave it out of shapes="), (1.0, "rank 0")):
        with pytest.raises(cml.InputError, match=rf"cnn\.onnx': the constant 'image' .*{why}"):
            cml.load(cnn, shapes={"image": SHAPE}, constants={"image": constant})


def test_operators_that_need_elements_refuse_empty_tensors():
    weights = {"w": np.ones((1, 8, 4), "f4"), "r": np.ones((1, 8, 2), "f4")}
    lstm = model("y = LSTM(x, w, r, hidden_size=2)", "x: [t, n, 4]", "y", weights)
    with pytest.raises(cml.ModelError, match="an extent of its inputs is 0: give shapes"):
        load(lstm, shapes={"x": (0, 1, 4)})
    without_batch = cml.Session(load(lstm, shapes={"x": (3, 0, 4)}), "cpu")
    assert without_batch.run({"x": np.zeros((3, 0, 4), "f4")})["y"].shape == (3, 1, 0, 2)


def test_a_graph_is_reshaped_without_its_file(rng, cnn):
    graph = cml.load(cnn, shapes={"image": SHAPE})
    network = onnx.load(cnn)
    cnn.unlink()
    x = rng.standard_normal((2, *SHAPE[1:]), np.float32)
    outputs = cml.Session(graph.reshaped({"image": x.shape}), "cpu").run({"image": x})
    for name, expected in run_onnx(network.SerializeToString(), {"image": x}).items():
        assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(cml.ModelError, match="Gemm '/fc/Gemm'.*120 channels"):
        graph.reshaped({"image": (2, 3, 10, 12)})
    with pytest.raises(cml.InputError, match="no input 'imag'; did you mean 'image'"):
        graph.reshaped({"imag": SHAPE})
    with pytest.raises(cml.InputError, match="wanted a whole number of 0"):
        graph.reshaped({"image": (1, 3, -8, 8)})
    assert pickle.loads(pickle.dumps(graph)).facts == graph.facts


def test_unnamed_extents_are_independent():
    """Extents named '?' may differ from each other, while equal other names must have equal
    extents.

    Some exporters name every open extent '?'.
    """
    network = model("y = Relu(x)", "x: [?, ?]")
    assert load(network, shapes={"x": (2, 3)}).facts["y"].shape == (2, 3)
    with pytest.raises(cml.InputError, match=r"leaves an extent open.*--shape x=N,N"):
        load(network)
    with pytest.raises(cml.InputError, match="'n' as 2 and as 3"):
        load(model("y = Relu(x)", "x: [n, n]"), shapes={"x": (2, 3)})


def test_nonzero_has_a_count_output():
    """An output with a counted axis comes back with its true length.

    Another output has the number; the fact has the largest extent.
    """
    network = model("y = NonZero(x)", "x: [2, 3]", "y: int64")
    graph = load(network)
    assert graph.outputs == ("y", "y_count") and graph.facts["y"].shape == (2, 6)
    x = np.array([[0, 2, 0], [0, 0, 3]], np.float32)
    got = cml.Session(graph, "cpu").run({"x": x})
    assert got["y_count"] == 2
    assert_array_equal(got["y"], [[0, 1], [1, 2]])


def test_local_functions_are_inlined():
    """A model's own function is inlined with the attribute of the call or with its default.

    A note of the graph counts the inlined functions.
    """
    inner = node("b = LeakyRelu(scaled)")
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    sharp = function("Sharp", ["scaled = Add(a, a)", inner, "c = Identity(b)"], ["slope"])
    calls = "h = my:Sharp(x, slope=0.5, name='first'); y = my:Sharp(h, name='second')"
    network = model(calls, "x: [3]", "y: [3]", functions=[sharp])
    graph = load(network)
    x = np.array([-1, 0, 2], np.float32)
    outputs = cml.Session(graph, "cpu").run({"x": x})
    assert_allclose(outputs["y"], [-0.02, 0, 8], rtol=1e-6)
    assert "2 functions inlined" in graph.notes[0]
    assert "first_b" in graph.facts


def test_game_operator_in_an_onnx_file(tmp_path, own_operators):
    spec = cml.OpSpec(
        name="sharpen",
        infer=cml.ops.same_as(0),
        cpu=lambda attrs, x, y: x + np.float32(attrs.amount) * y,
        signature="fragment sharpen(x: tensor<scalar>, y: tensor<scalar>, amount: scalar = 1.0)"
        " -> (z: tensor<scalar>);",
    )
    nodes = "h = my.game:sharpen(x, w, amount=0.5); y = my.game:sharpen(h, w)"
    weights = {"w": np.float32([2, 4])}
    network = model(nodes, "x: [2]", "y: [2]", weights)
    with pytest.raises(cml.ModelError, match="my.game:sharpen"):
        load(network)
    cml.register(spec)
    graph = load(network)
    cml.save(graph, tmp_path / "m")
    for loaded in (graph, cml.load(tmp_path / "m")):
        outputs = cml.Session(loaded, "cpu").run({"x": np.zeros(2, np.float32)})
        assert_array_equal(outputs["y"], [3, 6])
    network.graph.node[0].attribute[0].CopyFrom(onnx.helper.make_attribute("amount", "much"))
    with pytest.raises(cml.ModelError, match="'amount' wants scalar, got string 'much'"):
        load(network)
    network.graph.node[0].attribute[0].CopyFrom(onnx.helper.make_attribute("amount", 1))
    first = load(network).nodes[0]
    assert isinstance(first.attrs["amount"], float)
    del network.graph.node[1].input[1]
    with pytest.raises(cml.ModelError, match="1 inputs and 1 outputs, wanted sharpen"):
        load(network)


@pytest.mark.parametrize("op", ["Neg", "Abs"])
def test_the_smallest_integer_of_its_type_has_no_opposite(op):
    network = model(f"y = {op}(x)", "x: int8[3]", "y: int8[3]")
    assert_array_equal(run(network, x=np.int8([-128, -127, -5]))["y"], [-128, 127, 5])


def test_loops_and_branches_are_written_out(rng):
    body = subgraph(
        "b = Add(a, w); s = Mul(b, b); more = Identity(go)",  # w is a name of the outer graph
        "i: int64[], go: bool[], a: [4]",
        "more: bool[], b: [4], s: [4]",
    )
    then, other = (subgraph(f"t = {op}(last)", "", "t: [4]") for op in ("Neg", "Abs"))
    nodes = [
        *nodes_of("n = Shape(x); trips = Squeeze(n); few = Less(trips, five)"),
        node("last, all = Loop(trips, true, x)", body=body),
        node("y = If(few)", then_branch=then, else_branch=other),
    ]
    weights = {"true": np.array(True), "five": np.array(5), "w": np.ones(4, np.float32)}
    network = model(nodes, "x: [4]", "y: [4], all", weights)
    x = rng.standard_normal(4, np.float32)
    outputs = run(network, x=x)
    assert_allclose(outputs["y"], -(x + 4), rtol=1e-6)
    assert_allclose(outputs["all"], [(x + k) ** 2 for k in range(1, 5)], rtol=1e-5)


@pytest.mark.parametrize("trips", [0, -2])
@pytest.mark.parametrize("condition", [True, False])
def test_a_loop_that_never_runs_gives_empty_lists(trips, condition, rng):
    body = subgraph(
        "b = Add(a, a); s = Concat(b, b, axis=0); more = Identity(go); n = Cast(i, to=6)",
        "i: int64[], go: bool[], a: [4]",
        "more: bool[], b: [4], s: [8], n: int32[]",
    )
    made = node("y, all, numbers = Loop(trips, go, x)", body=body)
    weights = {"go": np.array(condition), "trips": np.array(trips if condition else 3)}
    network = model([made], "x: [4]", "y: [4], all: [0, 8], numbers: int32[0]", weights)
    x = rng.standard_normal(4, np.float32)
    outputs = run(network, x=x)
    assert_array_equal(outputs["y"], x)
    assert (outputs["all"].shape, outputs["numbers"].shape) == ((0, 8), (0,))
    assert outputs["numbers"].dtype == np.int32


def nested_network():
    """Returns a model whose loop, branches and function read names of the graph around them."""
    body = subgraph(
        "more = Identity(go); c = Neg(w); b = Add(a, c); s = Mul(b, b)",
        "i: int64[], go: bool[], a: [4]",
        "more: bool[], b: [4], s: [4]",
    )
    then = subgraph("e = Exp(w); t = Neg(e)", "", "t: [4]")
    other = subgraph("e = Sqrt(w); t = Abs(e)", "", "t: [4]")
    nodes = [
        "n = Shape(x)", "trips = Squeeze(n)", "few = Less(trips, five)", "w = Sigmoid(x)",
        node("last, all = Loop(trips, true, x)", body=body),
        node("chosen = If(few)", then_branch=then, else_branch=other),
        "called = my:twice(last)", "y = Sub(called, chosen)",
    ]  # fmt: skip
    weights = {"true": np.array(True), "five": np.array(5)}
    twice = function("twice", "b = Exp(a); c = Add(b, a)")
    return model(nodes, "x: [4]", "y: [4], all", weights, functions=[twice])


@pytest.mark.parametrize("make", [exported_cnn, nested_network])
def test_nodes_may_stand_in_any_order(make, rng):
    network = make(rng) if make is exported_cnn else make()
    x = rng.standard_normal(SHAPE if make is exported_cnn else 4).astype(np.float32)
    name = network.graph.input[0].name
    expected = run_onnx(network.SerializeToString(), {name: x})
    in_order = load(network, shapes={name: x.shape})
    for _ in range(5):
        graph = load(shuffled(network, rng), shapes={name: x.shape})
        assert {node.op for node in graph.nodes} == {node.op for node in in_order.nodes}
        for output, value in cml.Session(graph, "cpu").run({name: x}).items():
            assert_allclose(value, expected[output], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [[4], [], [1, 1, 1]])
def test_an_if_of_a_computed_condition_selects(backend, rng, shape):
    """Both branches are computed; the one that is not taken may be infinite or NaN."""
    then = subgraph("a = Sqrt(x); n = Shape(x)", "", "a: [4], n: int64[1]")
    other = subgraph("a = Neg(x); n = Neg(two)", "", "a: [4], n: int64[1]")
    nodes = [
        "m = ReduceMin(x, keepdims=0)", "d = Reshape(m, single)", "c = GreaterOrEqual(d, zero)",
        node("y, n = If(c)", then_branch=then, else_branch=other),
    ]  # fmt: skip
    weights = {"zero": np.float32(0), "two": np.array([2]), "single": np.ones(1, np.int64)}
    network = model(nodes, "x: [4]", "y: [4], n: int64[1]", weights)
    session = cml.Session(load(network), backend)
    for x in (np.abs(rng.standard_normal(4, np.float32)), np.array([1, -4, 0, 9], np.float32)):
        found = session.run({"x": x})
        for name, value in run_onnx(network.SerializeToString(), {"x": x}).items():
            assert_allclose(found[name], value, rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "said"),
    [("a = Unsqueeze(x, zero)", r"which are float32\[4\] and float32\[1,4\]"),
     ("a = Cast(x, to=7)", r"which are float32\[4\] and int64\[4\]")],
)  # fmt: skip
def test_an_if_of_a_computed_condition_wants_results_of_one_shape(made, said):
    branches = [subgraph(text, "", "a") for text in ("a = Neg(x)", made)]
    nodes = [
        "m = ReduceMin(x, keepdims=0)", "c = Cast(m, to=9)",
        node("y = If(c)", then_branch=branches[0], else_branch=branches[1]),
    ]  # fmt: skip
    with pytest.raises(
        UnsupportedOp, match=f"--constant x=.*give its branches results of one.*{said}"
    ):
        load(model(nodes, "x: [4]", weights={"zero": np.array([0])}))


def test_inner_graphs_may_use_names_of_the_graph_around_them(rng):
    """A branch may give its own tensor a name that the graph around it uses, and reads its own."""
    branches = [subgraph(f"y = {op}(x); t = Neg(y)", "", "t: [4]") for op in ("Exp", "Abs")]
    nodes = [node("y = If(true)", then_branch=branches[0], else_branch=branches[1])]
    network = model(nodes, "x: [4]", "y: [4]", {"true": np.array(True)})
    x = rng.standard_normal(4, np.float32)
    assert_allclose(run(network, x=x)["y"], -np.exp(x), rtol=1e-6)


def test_a_quantized_model_in_any_order_is_the_same_integer_network(rng):
    nodes = (
        "q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z); e = DequantizeLinear(w, s, z);"
        " p = MatMul(d, e); r = QuantizeLinear(p, s, z); y = DequantizeLinear(r, s, z)"
    )
    weights = {
        "s": np.float32(0.05), "z": np.int8(0), "w": rng.integers(-9, 9, (4, 4)).astype(np.int8)
    }  # fmt: skip
    network = model(nodes, weights=weights)
    x, expected = rng.standard_normal((1, 4), np.float32), None
    for made in (network, *(shuffled(network, rng) for _ in range(3))):
        graph = load(made)
        assert graph.integer
        found = cml.Session(graph, "cpu").run({"x": x})["y"]
        expected = found if expected is None else expected
        assert_array_equal(found, expected)


def one_by_one(tensor):
    """Returns the bytes of a tensor in which each number is in a field of its own."""
    (field, numbers), *_ = [
        (field, numbers) for field, numbers in tensor.ListFields() if field.name.endswith("_data")
    ]
    key = bytes([field.number << 3 | {"float_data": 5, "double_data": 1}.get(field.name, 0)])
    # without the key and the length that a packed field begins with
    items = [onnx.TensorProto(**{field.name: [n]}).SerializeToString()[2:] for n in numbers]
    tensor.ClearField(field.name)
    return tensor.SerializeToString() + b"".join(key + item for item in items)


@pytest.mark.parametrize("how", ["raw", "packed", "one by one"])
@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float32", "float64", "bool", "int4", "uint4", "int8", "uint8",
     "int16", "uint16", "int32", "int64", "uint32", "uint64"],
)  # fmt: skip
def test_tensors_are_read_as_the_package_reads_them(dtype, how):
    from cml_engine.formats.onnx.protobuf import Message
    from cml_engine.formats.onnx.tensors import ExternalData, read_tensor

    element = onnx.TensorProto.DataType.Value(dtype.upper().replace("FLOAT64", "DOUBLE")
                                              .replace("FLOAT32", "FLOAT"))  # fmt: skip
    numbers = [0, 1, 3, 7, 5] if dtype[0] in "ub" else [0, -1, 3, 7, -8]
    if dtype[-2:] in ("32", "64") and "int" in dtype:
        numbers[2:4] = np.iinfo(dtype).min, np.iinfo(dtype).max
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    array = np.array([[n % 2 for n in numbers] if dtype == "bool" else numbers * 800], kind)
    if how == "raw":
        proto = onnx.numpy_helper.from_array(array, "t")
    else:
        proto = onnx.helper.make_tensor("t", element, array.shape, array.ravel().tolist())
    data = one_by_one(proto) if how == "one by one" else proto.SerializeToString()
    tensor = read_tensor(Message(memoryview(data), "m.onnx"), ExternalData(None))
    found = tensor.values()
    assert tensor.name == "t"
    assert_array_equal(found, array.astype(found.dtype))


@pytest.mark.filterwarnings("ignore:.*is float64")
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_computed_in_32_bits(rng, dtype):
    weights = {"w": rng.standard_normal((4, 4)).astype(dtype), "k": np.array(1, dtype)}
    nodes = "a = MatMul(x, w); b = Add(a, k); y = Cast(b, to=1)"
    network = model(nodes, f"x: {dtype}[2, 4]", "y: [2, 4]", weights)
    x = rng.standard_normal((2, 4)).astype(dtype)
    expected = x.astype(np.float64) @ weights["w"].astype(np.float64) + 1
    assert_allclose(run(network, x=x)["y"], expected, rtol=1e-5, atol=1e-5)


def test_names_that_nnef_cannot_have(rng, tmp_path):
    """A session takes the file's names, such as ``out:0``; a saved model has valid names
    instead."""
    nodes = "0.5 = Mul(1, half); out:0 = Add(0.5, 1); true = Relu(1)"
    outputs = "out:0: [2], 0.5: [2], true: [2]"
    graph = load(model(nodes, "1: [2]", outputs, {"half": np.float32(0.5)}))
    x = np.array([1, -2], np.float32)
    actual = cml.Session(graph, "cpu").run({"1": x})
    assert_array_equal(actual["out:0"], 1.5 * x)
    assert_array_equal(actual["0.5"], 0.5 * x)
    cml.save(graph, tmp_path / "m")
    again = cml.Session(cml.load(tmp_path / "m"), "cpu")
    (name,) = again.inputs
    actual = list(again.run({name: x}).values())
    assert_array_equal(actual[0], 1.5 * x)


def test_shape_of_nonzero_uses_the_count():
    nodes = "places = NonZero(x); rows = Transpose(places); shape = Shape(rows); size = Size(rows)"
    network = model(nodes, "x: [2, 3]", "shape: int64[2], size: int64[]")
    outputs = run(network, x=np.float32([[0, 5, 0], [7, 0, 0]]))
    assert outputs["shape"].tolist() == [2, 2] and outputs["size"] == 4


# -- the table against the operators' schemas ------------------------------------------------------


def test_rows_have_the_attributes_and_defaults_of_every_opset():
    """The importer knows every attribute with its default, and all inputs, in all versions of
    ONNX."""
    from cml_engine.formats.onnx import operators  # noqa: F401
    from cml_engine.formats.onnx.op_schemas import (
        FIRST_OPSET,
        LAST_OPSET,
        MANY,
        find_schema,
        find_schemas,
    )

    assert onnx.defs.onnx_opset_version() <= LAST_OPSET
    wrong = []
    max_inputs = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.deprecated or not find_schemas("", schema.name):
            continue
        opset = max(schema.since_version, FIRST_OPSET)
        if (schema.name, opset) == ("Scan", 8):
            continue  # refused
        newest = onnx.defs.get_schema(schema.name, opset, "")
        if newest.since_version != schema.since_version:
            continue  # of opsets before the first supported one
        row = find_schema("", schema.name, opset)
        if row is None:
            wrong.append(f"{schema.name} {opset}: no row")
            continue
        key = (schema.name, row.since)
        max_inputs[key] = max(max_inputs.get(key, 0), schema.max_input)
        for name, attribute in schema.attributes.items():
            default = onnx.helper.get_attribute_value(attribute.default_value)
            has_default = attribute.default_value.type != 0
            if (schema.name, name) in EXCEPTIONS:
                continue
            if name not in row.attrs:
                wrong.append(f"{schema.name} {opset}: lacks {name}")
            elif has_default and not _same(row.attrs[name].default, default):
                ours = row.attrs[name].default
                wrong.append(f"{schema.name} {opset}: {name}={ours}, wanted {default}")
            elif attribute.required and not row.attrs[name].required:
                wrong.append(f"{schema.name} {opset}: {name} must be given")
    assert wrong == []
    row_inputs = {
        key: row.inputs
        for key in max_inputs
        for row in find_schemas("", key[0])
        if row.since == key[1]
    }
    assert {k: min(n, MANY - 1) for k, n in max_inputs.items()} == {
        k: min(n, MANY - 1) for k, n in row_inputs.items()
    }


#: Constant has its value by any of its attributes; Clip's bounds are none; an RNN's activations are
#: one for each direction
EXCEPTIONS = {
    ("Constant", "value"), ("Clip", "min"), ("Clip", "max"), ("RNN", "activations"),
}  # fmt: skip


def _same(ours, theirs):
    theirs = theirs.decode() if isinstance(theirs, bytes) else theirs
    if isinstance(theirs, float):
        return bool(np.float32(ours) == np.float32(theirs))
    return bool(ours == theirs)


def test_a_known_float_beyond_half_is_infinite():
    """Transformers cast a bias of -1e38 to float16."""
    nodes = "h = Cast(k, to=10); c = Cast(h, to=1); y = Max(x, c)"
    made = model(nodes, "x: [1, 4]", "y", {"k": np.array([-1e38, 1e38, 7, 8], np.float32)})
    y = run(made, x=np.zeros((1, 4), np.float32))["y"]
    assert y.tolist() == [[0.0, np.inf, 7.0, 8.0]]


#: operators that ONNX defines for every element type, and the shape of x
OF_EVERY_TYPE = {
    "y = DepthToSpace(x, blocksize=2)": (1, 8, 2, 3),
    "y = DepthToSpace(x, blocksize=2, mode='CRD')": (1, 8, 2, 3),
    "y = SpaceToDepth(x, blocksize=2)": (1, 2, 4, 6),
    "y = Col2Im(x, extents, block)": (1, 4, 4),
    "y = GridSample(x, grid, mode='nearest')": (1, 2, 3, 4),
    "y = Resize(x, _, scales)": (1, 2, 3, 4),
}


@pytest.mark.parametrize("dtype", ("uint8", "int32", "bool"))
@pytest.mark.parametrize("call", OF_EVERY_TYPE)
def test_integers_and_truth_values_give_the_results_of_floats(rng, call, dtype):
    shape = OF_EVERY_TYPE[call]
    weights = {
        "extents": np.array([3, 3]), "block": np.array([2, 2]),
        "grid": rng.uniform(-1, 1, (1, 2, 3, 2)).astype(np.float32),
        "scales": np.array([1, 1, 2, 1.5], np.float32),
    }  # fmt: skip
    given = {name: array for name, array in weights.items() if name in call}
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape)
    results = [
        run(model(call, f"x: {kind}{list(shape)}", f"y: {kind}", given, 18), x=x.astype(kind))["y"]
        for kind in (dtype, "float32")
    ]
    assert_array_equal(results[0], results[1].astype(results[0].dtype))
    assert results[0].dtype.kind == ("b" if dtype == "bool" else "i")
