"""Tests sessions that run in ONNX Runtime (``CompileOptions(cpu="onnxruntime")``)."""

import os
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("onnxruntime")

import cml_engine as cml
from cml_engine import ops
from cml_engine.demo_game.chain import MODELS
from tests.fixtures.models import write_model
from tests.proofs.onnx_nodes import difference, on_cpu, random_inputs

PEER = cml.CompileOptions(cpu="onnxruntime")
COUNTER = """version 1.0;
extension KHR_enable_operator_expressions;
graph g(x, z) -> (y)
{
    x = external<scalar>(shape = [2]);
    z = external<scalar>(shape = [2]);
    sum = variable<scalar>(shape = [2], label = 'sum');
    twice = x * 2.0;
    next = update(sum, sum + twice + z);
    y = sum * 2.0;
}"""


@pytest.fixture
def counter(tmp_path):
    return cml.load(write_model(tmp_path / "g", COUNTER, sum=np.float32([1, 2])))


def test_a_network_agrees_with_numpy():
    graph = cml.load(MODELS / "population.nnef")
    inputs = random_inputs(graph)
    outputs = cml.Session(graph, "cpu", PEER).run(inputs)
    assert difference(outputs, on_cpu(graph, inputs)) == ""


def test_variables_kept_tensors_and_retained_inputs(counter):
    options = cml.CompileOptions(cpu="onnxruntime", keep=("twice", "sum"))
    peer = cml.Session(counter, "cpu", options, retain=True)
    ours = cml.Session(counter, "cpu", cml.CompileOptions(keep=("twice", "sum")), retain=True)
    first = {"x": np.float32([1, 2]), "z": np.float32([5, 5])}
    for given in (first, {"x": np.float32([3, 4])}, {}):
        assert difference(peer.run(given), ours.run(given)) == ""
        for name in ("twice", "sum", "y"):
            assert_array_equal(peer.tensor(name).read(), ours.tensor(name).read())
    assert peer.timer(first)() > 0
    assert difference(peer.run({}), ours.run({})) == "", "a timer leaves the variables"
    peer.reset()
    assert_array_equal(peer.run({})["y"], [2, 4])


def test_other_shapes(tmp_path):
    text = "version 1.0;\ngraph g(x) -> (y) { x = external(shape = [1, 4]); y = relu(x); }"
    session = cml.Session(cml.load(write_model(tmp_path / "g", text)), "cpu", PEER)
    wide = session.reshaped({"x": (2, 6)})
    assert_array_equal(wide.run({"x": -np.ones((2, 6), np.float32)})["y"], 0)


@pytest.mark.parametrize(("given", "cores", "taken"), [(None, 1, 1), (None, 9, 4), (3, 9, 3)])
def test_threads_are_half_of_the_cores_and_do_not_spin(given, cores, taken, counter, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    options = cml.CompileOptions(cpu="onnxruntime", cpu_threads=given)
    made = cml.Session(counter, "cpu", options).program._runner.get_session_options()
    assert made.intra_op_num_threads == taken
    assert made.get_session_config_entry("session.intra_op.allow_spinning") == "0"


# -- what is refused ------------------------------------------------------------------------------


def test_without_the_package(counter, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(cml.DeviceError, match=r'pip install "cml-engine\[onnxruntime\]", or leave'):
        cml.Session(counter, "cpu", PEER)


def test_watching_and_ranking(counter):
    session = cml.Session(counter, "cpu", PEER)
    with pytest.raises(cml.InputError, match=r"watch: ONNX Runtime runs a network as a whole"):
        session.run(random_inputs(counter), watch=print)
    with pytest.raises(cml.InputError, match=r"rank: ONNX Runtime runs a network as a whole"):
        session.rank()


def test_operators_that_onnx_runtime_lacks(tmp_path, own_operators):
    cml.register(cml.OpSpec("my_sum", infer=ops.same_as(0), cpu=lambda attrs, x: x))
    text = """version 1.0;
extension KHR_enable_fragment_definitions;
fragment my_sum(x: tensor<scalar>) -> (y: tensor<scalar>);
graph g(x) -> (y) { x = external(shape = [1]); y = OP; }"""
    graph = cml.load(write_model(tmp_path / "own", text.replace("OP", "my_sum(x)")))
    with pytest.raises(cml.ModelError, match=r"no operator 'my_sum' of 'g'.*NumPy runs it"):
        cml.Session(graph, "cpu", PEER)
    text = text.replace("fragment my_sum", "fragment to_bits").replace("scalar>);", "integer>);")
    graph = cml.load(write_model(tmp_path / "late", text.replace("OP", "to_bits(x)")))
    with pytest.raises(cml.ModelError, match=r"needs opset 26.*or leave cpu='onnxruntime' out"):
        cml.Session(graph, "cpu", PEER)


def test_integer_network():
    graph = cml.load(MODELS / "integer" / "upres.nnef")
    with pytest.raises(cml.InputError, match=r"is an integer network.*ONNX Runtime rounds"):
        cml.Session(graph, "cpu", PEER)


def test_sliders_of_attributes_are_refused(tmp_path):
    text = "version 1.0;\ngraph g(x) -> (y) { x = external(shape = [4]); y = leaky_relu(x, 0.5); }"
    graph = cml.load(write_model(tmp_path / "g", text), sliders={"slope": "y.alpha"})
    with pytest.raises(cml.InputError, match="slider 'slope' of an attribute"):
        cml.Session(graph, "cpu", PEER)


def test_what_onnx_runtime_does_not_load(counter, monkeypatch):
    from cml_engine.runtime.session import onnxruntime_program

    monkeypatch.setattr(onnxruntime_program, "onnx_parts", lambda graph: [b"damaged"])
    with pytest.raises(cml.ModelError, match=r"'g' does not load in ONNX Runtime \d.*; leave cpu="):
        cml.Session(counter, "cpu", PEER)


def test_the_command_line(tmp_path, run_cml, refused):
    graph = cml.load(MODELS / "texture.nnef")
    line = f"run {MODELS}/texture.nnef"
    for name, array in random_inputs(graph).items():
        np.save(tmp_path / f"{name}.npy", array)
        line += f" -i {name}={tmp_path}/{name}.npy"
    found = []
    for backend in ("cpu", "onnxruntime"):
        out = tmp_path / f"{backend}.npy"
        run_cml(f"{line} -o {graph.outputs[0]}={out} --backend {backend}")
        found.append(np.load(out))
    assert 0 < np.abs(found[0] - found[1]).max() < 1e-5
    message = refused(f"rank {MODELS}/texture.nnef --backend onnxruntime")
    assert "ONNX Runtime runs a network as a whole" in message
    message = refused(f"{line} --half --backend onnxruntime")
    assert "--half needs a GPU: leave --backend onnxruntime out" in message
