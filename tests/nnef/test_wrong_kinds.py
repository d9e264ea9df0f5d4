"""Tests that arguments of a wrong type and models of other frameworks raise helpful errors."""

from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.errors import InputError

TEXT = """version 1.0;
graph g(x) -> (y) { x = external<scalar>(shape = [1, 3]); y = relu(x); }
"""
GRAPH = cml.load(cml.MemoryModel(TEXT, {}))
INPUTS = [
    (None, "inputs: wanted a dictionary of arrays by name, {'image': array}, got None"),
    ("x.npy", "inputs: wanted a dictionary of arrays by name"),
    ([1, 2, 3], "inputs: wanted a dictionary of arrays by name"),
    (np.zeros((1, 3)), "inputs: wanted a dictionary of arrays by name"),
    ({1: np.zeros((1, 3))}, "inputs: wanted a dictionary of arrays by name"),
    ({"x": None}, r"input 'x': wanted an array of numbers, got None \(NoneType\)"),
    ({"x": "a.npy"}, r"input 'x': wanted an array of numbers, got 'a.npy' \(str\). A file is read"),
    ({"x": Path("a.npy")}, r"numpy.load for a .npy"),
    ({"x": [1, [2]]}, r"input 'x': wanted an array of numbers, got \[1, \[2\]\] \(list\)"),
    ({"x": {}}, r"input 'x': wanted an array of numbers, got {} \(dict\)"),
    ({"x": [["a", "b", "c"]]}, "input 'x': wanted an array of numbers"),
    ({"x": [[1, 2]]}, r"input 'x': wanted shape \[1, 3\], got \[1, 2\]"),
]


@pytest.mark.parametrize(("inputs", "says"), INPUTS, ids=[str(i)[:20] for i, _ in INPUTS])
def test_inputs_of_a_wrong_kind_are_named_at_a_run(inputs, says):
    with pytest.raises(InputError, match=says):
        cml.Session(GRAPH, "cpu").run(inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("inputs", "says"), INPUTS, ids=[str(i)[:20] for i, _ in INPUTS])
def test_inputs_of_a_wrong_kind_are_named_at_a_submit(inputs, says, gpu):
    with pytest.raises(InputError, match=says):
        FrameScheduler(gpu).submit(cml.Session(GRAPH, gpu), inputs)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (None, r"the model: wanted a path, .* got None \(NoneType\)"),
        (["m.onnx"], r"the model: wanted a path, .* got \['m.onnx'\] \(list\)"),
        (np.zeros(3), r"got \[0\. 0\. 0\.\] \(ndarray\)|got array"),
        (GRAPH, "'g' is loaded already: cml.Session"),
    ],
    ids=["None", "list", "array", "graph"],
)
def test_a_model_of_a_wrong_kind_is_named(model, says):
    with pytest.raises(InputError, match=says):
        cml.load(model)


@pytest.mark.gpu
@pytest.mark.parametrize("budget", ["spar", "4", None])
def test_invalid_budget_lists_the_choices(budget, gpu):
    with pytest.raises(InputError, match="a number of milliseconds such as 4.0, or 'spare'"):
        FrameScheduler(gpu, budget_ms=budget)


@pytest.mark.gpu
@pytest.mark.parametrize("session", [None, "net", GRAPH, cml.Session(GRAPH, "cpu")],
                         ids=["None", "text", "graph", "cpu"])  # fmt: skip
def test_submit_requires_a_gpu_session(session, gpu):
    with pytest.raises(InputError, match="session: wanted one on a GPU, got") as caught:
        FrameScheduler(gpu).submit(session, {})
    assert len(str(caught.value)) < 140


def test_quantize_requires_a_graph():
    with pytest.raises(InputError, match="the graph to quantize .*got 'm.onnx'"):
        cml.quantize("m.onnx", [])


@pytest.mark.parametrize(
    ("suffix", "line"),
    [
        (".pt", 'torch.onnx.export(model.eval(), (example_input,), "net.onnx")'),
        (".pth", "torch.onnx.export("),
        (".PT", "torch.onnx.export("),
        (".safetensors", "cml.load(MODEL, weights="),
        (".tflite", "python -m tf2onnx.convert --tflite"),
        (".pb", "python -m tf2onnx.convert --graphdef"),
        (".h5", '.export("net.onnx", format="onnx")'),
        (".keras", '.export("net.onnx", format="onnx")'),
        (".mlmodel", "onnxmltools.convert_coreml("),
        (".bin", ".param"),
        (".cml", "cml.load_cooked("),
    ],
)
def test_model_of_another_framework_names_the_converter(suffix, line, tmp_path):
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"whatever")
    with pytest.raises(InputError) as caught:
        cml.load(file)
    said = str(caught.value)
    assert line in said and "cml docs your_model" in said and str(file) in said


def test_a_saved_model_is_a_folder(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(InputError, match="tf2onnx.convert --saved-model"):
        cml.load(tmp_path)
