"""Tests of chosen outputs of ONNX models: ``outputs=`` and ``--output``."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cml_engine as cml  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from tests.fixtures.onnx_models import (  # noqa: E402
    function,
    load,
    model,
    node,
    saved,
    subgraph,
)

NODES = [
    "features = Relu(x)", "deterministic = Neg(features)", "scaled = Mul(features, noise)",
    "drawn = my.ops:Draw(scaled)", "both = Add(drawn, deterministic)",
]  # fmt: skip
X = np.array([[-1, 2, -3, 4]], np.float32)


def policy(**more):
    return model(NODES, "x: [1, 4], noise: [n, 4]", "drawn, deterministic, both", **more)


def advice(made, **options):
    with pytest.raises(UnsupportedOp) as error:
        load(made, **options)
    return error.value.message.partition("can be loaded without the rest: ")[2]


def test_unsupported_operators_elsewhere_do_not_matter():
    graph = load(policy(), outputs=["deterministic"])
    assert (graph.inputs, graph.outputs) == (("x",), ("deterministic",))
    found = cml.Session(graph, "cpu").run({"x": X})["deterministic"]
    np.testing.assert_array_equal(found, -np.maximum(X, 0))
    assert advice(policy()) == '--output deterministic, or cml.load(…, outputs=["deterministic"])'
    assert advice(policy(), outputs=["both"]) == ""
    assert advice(policy(), outputs=["both", "features"]).startswith("--output features, or")


def test_inner_tensors_can_be_chosen():
    graph = load(policy(), outputs=["scaled", "features"], shapes={"noise": (1, 4)})
    assert (graph.inputs, graph.outputs) == (("x", "noise"), ("scaled", "features"))
    assert load(policy(), outputs=["features"]).reshaped({"x": (2, 4)}).outputs == ("features",)


@pytest.mark.parametrize(
    "failing",
    [
        "drawn = Reshape(scaled, wanted)",
        "drawn = my:twice(scaled)",
        node("drawn = If(yes)", then_branch=subgraph("d = my.ops:Draw(scaled)", "", "d: [1, 4]"),
             else_branch=subgraph("d = Neg(scaled)", "", "d: [1, 4]")),
    ],
    ids=["a value that is not known", "a function", "a branch"],
)  # fmt: skip
def test_every_refusal_names_the_outputs_that_do_without(failing):
    nodes = [failing if text.startswith("drawn") else text for text in NODES]
    outputs = "drawn, deterministic, both, features"
    inputs = "x: [1, 4], noise: [1, 4], wanted: int64[2]"
    weights = {"yes": np.array(True)}
    inner = function("twice", "b = my.ops:Draw(a); c = Add(b, a)")
    made = model(nodes, inputs, outputs, weights, functions=[inner], domains={"my.ops": 1})
    assert advice(made).startswith("--output deterministic --output features, or cml.load(")
    assert load(made, outputs=["deterministic", "features"]).inputs == ("x",)


def test_inputs_that_are_no_numbers_matter_only_where_they_are_read():
    made = model("y = Relu(x); z = StringConcat(text, text)", "x: [1, 4], text: [1]", "y, z")
    made.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.STRING
    assert advice(made).startswith("--output y, or")
    made.graph.node[1].op_type = "Identity"  # an operator that is known
    assert advice(made).startswith("--output y, or")
    assert load(made, outputs=["y"]).inputs == ("x",)


def test_weights_that_are_not_needed_are_not_read(tmp_path):
    """A tensor of another branch may be sparse in memory, damaged, or in a file that is missing."""
    made = model("y = Relu(x); z = Add(x, w)", outputs="y, z", weights={"w": np.ones(4, "f4")})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "missing.bin"
    path = saved(made, tmp_path / "m.onnx")
    with pytest.raises(cml.ModelError, match="missing.bin"):
        cml.load(path)
    assert cml.load(path, outputs=["y"]).constants == {}


def test_a_quantized_branch_that_is_not_needed_leaves_a_network_of_floats():
    weights = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = "y = Exp(x); q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z); o = Neg(d)"
    graph = load(model(nodes, outputs="y, o", weights=weights), outputs=["y"])
    assert not any("integer" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["determinstic"], "has no tensor 'determinstic'; did you mean 'deterministic'"),
        (["x"], "has no tensor 'x'"),
        (["noise", "both"], "has no tensor 'noise'"),
    ],
)
def test_unknown_outputs_are_refused(names, message):
    with pytest.raises(cml.InputError, match=message):
        load(policy(), outputs=names)


@pytest.mark.parametrize(
    "line",
    ["info {}", "rank {} --backend cpu --runs 1", "validate {}", "convert {} out",
     "simulate {}", "export {} out.onnx", "run {} -i x=x.npy -o deterministic=y.npy"],
)  # fmt: skip
def test_every_command_that_loads_takes_outputs(tmp_path, line, monkeypatch, run_cml, refused):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    saved(policy(), "m.onnx")
    line = line.format("m.onnx")
    assert "--output deterministic, or" in refused(line)
    run_cml(f"{line} --output deterministic")


def test_the_option_that_chooses_is_not_the_one_that_writes(tmp_path, refused):
    path = saved(policy(), tmp_path / "m.onnx")
    message = refused(f"run {path} -i x=x.npy --output deterministic=y.npy")
    assert "wanted the name of an output to compute; -o NAME=FILE writes one" in message
