"""Tests of the import of ONNX models: placeholders, random weights, and the nodes' names."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

import cml_engine as cml
from cml_engine.errors import CmlError
from tests.fixtures.onnx_models import load, model, node, saved, values

pytestmark = pytest.mark.usefixtures("own_operators")

DECLARED = (
    "fragment Warp(x1: tensor<scalar>, x2: tensor<scalar>, amount: scalar, mode: string, "
    "steps: integer[]) -> (y1: tensor<scalar>)"
)


def warp(call="b = game:Warp(a, w, name='/net/Warp')", **attrs):
    attrs = {"amount": 0.5, "mode": "soft", "steps": [1, 2], **attrs}
    return node(call, **attrs)


def network(path, *nodes, infos="b: [1, 3, h, 4], c: [1, 3, h, 4]"):
    """Writes a model of these nodes with the shapes ``infos`` to ``path``; returns the path."""
    made = model(
        ["a = Relu(x, name='/pre/Relu')", *nodes],
        "x: [1, 3, h, 4]",
        "y: [1, 3, h, 4]",
        {"w": np.float32([1, 2, 3])},
    )
    made.graph.value_info.extend(values(infos))
    return saved(made, path)


def two(path):
    second = warp("c = game:Warp(b, w, name='/net/Warp_2')", amount=2.0)
    return network(path, warp(), second, "y = Add(c, x, name='/out/Add')")


@pytest.fixture
def convert(run_cml):
    """A function that converts a network with placeholders; returns the printed messages."""

    def run(source, folder, ends=0):
        words = "--placeholders --shape x=1,3,5,4"
        return run_cml(f"convert {source} {folder} {words}", ends=ends).err

    return run


def test_placeholders_are_declared_and_filled(tmp_path, convert, run_cml, refused):
    convert(two(tmp_path / "m.onnx"), tmp_path / "m")
    text = (tmp_path / "m/graph.nnef").read_text()
    assert f"\n{DECLARED};" in text
    assert "# Warp: the node game:Warp '/net/Warp_2'\n" in text
    assert "'Warp' is not implemented here: register it (--ops FILE.py" in refused(
        f"info {tmp_path}/m"
    )
    ops = tmp_path / "warp.py"
    ops.write_text(
        "import cml_engine as cml\n"
        "cml.register(cml.OpSpec('Warp', cml.ops.same_as(0), signature=" + repr(DECLARED) + ",\n"
        "    cpu=lambda attrs, x, w: attrs.amount * x * w[:, None, None]))\n"
    )
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    for source in ("m", "m.onnx --shape x=1,3,5,4"):
        files = f"-i x={tmp_path}/x.npy -o y={tmp_path}/y.npy"
        run_cml(f"run {tmp_path}/{source} --ops {ops} --backend cpu {files}")
        scale = np.array([1, 4, 9], np.float32)[:, None, None]
        expected = np.maximum(x, 0) * scale + x
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-6)
        cml.ops.unregister("Warp")


def test_an_operator_of_two_signatures_has_two_names(tmp_path, convert):
    second = warp("c = game:Warp(b, name='/net/Other')")
    path = network(tmp_path / "m.onnx", warp(), second, "y = Add(c, x)")
    convert(path, tmp_path / "m")
    text = (tmp_path / "m/graph.nnef").read_text()
    assert "fragment Warp(x1: tensor<scalar>, x2" in text
    assert "fragment Warp_(x1: tensor<scalar>, amount" in text


@pytest.mark.parametrize(
    ("damaged", "infos", "message"),
    [
        (warp(), "", "/net/Warp': the file does not say the shape of 'b', which an unknown"),
        (
            warp(steps=helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])),
            "b: [1, 3, h, 4]",
            "attribute 'steps' of game:Warp '/net/Warp' is no number",
        ),
    ],
)
def test_nodes_that_cannot_be_placeholders_are_refused(tmp_path, convert, damaged, infos, message):
    path = network(tmp_path / "m.onnx", damaged, "y = Add(b, x)", infos=infos)
    assert message in convert(path, tmp_path / "m", ends=2)
    assert not (tmp_path / "m").exists()


def test_an_output_without_a_shape_hides_no_value_info(tmp_path, run_cml):
    network = model([warp("b = game:Warp(a, a)")], "a: [1, 3]", "b")
    network.graph.value_info.extend(values("b: [1, 3]"))
    path = saved(network, tmp_path / "m.onnx")
    run_cml(f"convert {path} {tmp_path}/m.nnef --placeholders")


def test_placeholders_are_for_onnx(tmp_path, refused):
    assert "placeholders cannot be given for NNEF" in refused(
        f"convert {tmp_path} {tmp_path}/m --placeholders"
    )


# -- weights at random -----------------------------------------------------------------------------


def without_its_data(path):
    """Writes a network whose external data file is missing to ``path``; returns the path."""
    shapes = {"f": (8, 3, 3, 3), "b": (8,), "s": (8,), "o": (8,), "m": (8,), "v": (8,), "w": (8, 5)}
    nodes = (
        "c = Conv(x, f, b); n = BatchNormalization(c, s, o, m, v); g = GlobalAveragePool(n); "
        "h = Flatten(g); y = MatMul(h, w)"
    )
    network = model(nodes, "x: [1, 3, 8, 8]", "y: [1, 5]")
    for name, shape in shapes.items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        network.graph.initializer.append(tensor)
    return saved(network, path)


def test_missing_external_data_may_be_random(tmp_path):
    path = without_its_data(tmp_path / "m.onnx")
    for source in (path, path.read_bytes()):
        graph = cml.load(source, random_weights=5)
        assert "RANDOM (seed 5): 7 tensors, 296 values" in graph.notes[-1]
        y = cml.Session(graph, "cpu").run({"x": np.ones((1, 3, 8, 8), np.float32)})["y"]
        assert np.isfinite(y).all() and 1e-3 < y.std() < 1e3
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(CmlError, match="has 20 bytes|bytes for"):
        cml.load(path, random_weights=5)


# -- names of nodes --------------------------------------------------------------------------------


def named(path):
    """Writes a network whose nodes have names like PyTorch's to ``path``; returns the path."""
    network = model(
        ["s = Shape(x, name='/up/Shape')",
         "c = Conv(x, f, name='/net/conv1/Conv')",
         "r = Relu(c, name='/net/act/Relu')",
         "n = LayerNormalization(r, g, name='/net/norm/LayerNormalization')",
         "y = Reshape(n, s, name='/up/Reshape')"],
        "x: [1, 3, 4, 4]",
        "y: [1, 3, 4, 4]",
        {"f": np.ones((3, 3, 1, 1), np.float32), "g": np.ones(4, np.float32)},
    )  # fmt: skip
    return saved(network, path)


def test_node_names_are_retained(tmp_path, run_cml):
    path = named(tmp_path / "m.onnx")
    out = run_cml(f"info {path}").out
    assert "    LayerNormalization 1: '/net/norm/LayerNormalization'\n" in out
    assert "    Shape 1: '/up/Shape'\n" in out
    out = run_cml(f"rank {path} --runs 1 --backend cpu").out
    assert re.search(r"conv 'net_act_Relu' .* ms  .*m.onnx: Conv '/net/conv1/Conv'\n", out)


def test_many_nodes_of_an_operator_are_counted(tmp_path):
    nodes = [f"s{i} = Shape(x, name='/{i}/Shape')" for i in range(5)]
    nodes += ["s = Concat(s0, s1, s2, s3, s4, axis=0)", "y = Expand(x, s)"]
    notes = load(model(nodes, "x: [1]")).notes
    assert "    Shape 5: '/0/Shape', '/1/Shape' and 3 more" in notes


def test_convert_reports_renamed_tensors(tmp_path, run_cml):
    network = model("y = Relu(größe)", "größe: [2]")
    saved(network, tmp_path / "m.onnx")
    assert (
        "  'größe' is 'gr__e' there: NNEF's names"
        in run_cml(f"convert {tmp_path}/m.onnx {tmp_path}/m.nnef").out
    )
    assert cml.load(tmp_path / "m.nnef").inputs == ("gr__e",)


def test_a_trace_names_the_nodes(tmp_path, gpu, run_cml):
    path = named(tmp_path / "m.onnx")
    trace = tmp_path / "t.json"
    run_cml(f"trace {path} -o {trace} --runs 1")
    events = json.loads(trace.read_text())["traceEvents"]
    places = {e["args"].get("place") for e in events}
    assert f"{path}: Conv '/net/conv1/Conv'" in places


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_converted_depth_to_space_can_be_reshaped(op, mode, tmp_path, rng):
    network = model(f"y = {op}(x, blocksize=2, mode='{mode}')", "x: [1, 8, h, w]")
    path = saved(network, tmp_path / "m.onnx")
    cml.save(cml.load(path, shapes={"x": (1, 8, 4, 6)}), tmp_path / "m.tgz")
    x = rng.random((1, 8, 10, 2), np.float32)
    direct, converted = (
        cml.Session(cml.load(tmp_path / name, shapes={"x": x.shape}), "cpu").run({"x": x})["y"]
        for name in ("m.onnx", "m.tgz")
    )
    np.testing.assert_array_equal(converted, direct)
