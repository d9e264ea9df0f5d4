"""Tests of the demo's networks as ncnn's files: ncnn computes what NumPy computes."""

import numpy as np
import pytest

import cml_engine as cml
from benchmarks.contenders import Workload, ncnn_net, run_ncnn
from benchmarks.models import AGENTS, MODELS
from benchmarks.ncnn_files import write_ncnn
from cml_engine.formats import ImportBuilder

pytest.importorskip("ncnn")


@pytest.mark.parametrize("name", ["upres", "texture", "population"])
def test_ncnn_agrees_with_numpy(name, tmp_path):
    workload = Workload(tmp_path)
    MODELS[f"agent-{name}"](workload)
    inputs = workload.load_inputs()
    net, _ = ncnn_net(workload, on_gpu=False)
    (got,) = run_ncnn(net, inputs, net.output_names())
    graph = cml.load(AGENTS / f"{name}.nnef")
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    np.testing.assert_allclose(got[None], expected, atol=3e-6 * np.abs(expected).max())


def test_operator_without_a_layer_is_named(tmp_path):
    make = ImportBuilder()
    graph = make.graph("g", [make.node("tanh", [make.input("x", (1, 2, 3, 4))], "y")])
    with pytest.raises(ValueError, match="tanh 'y' has no layer of ncnn here"):
        write_ncnn(graph, tmp_path / "network.param", tmp_path / "network.bin")
