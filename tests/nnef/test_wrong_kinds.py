"""Tests of arguments of a wrong type, of other frameworks' models, and of weights that are NaN."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.errors import InputError
from cml_engine.tools.cli import main
from tests.fixtures.models import write_model

TEXT = """version 1.0;
graph g(x) -> (y) { x = external<scalar>(shape = [1, 3]); y = relu(x); }
"""
GRAPH = cml.load(cml.nnef.MemoryModel(TEXT, {}))
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
    message = str(caught.value)
    assert line in message and "cml docs your_model" in message and str(file) in message


def test_a_saved_model_is_a_folder(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(InputError, match="tf2onnx.convert --saved-model"):
        cml.load(tmp_path)


LINEAR = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 4]);
    w = variable<scalar>(shape = [4, 4], label = 'w');
    b = variable<scalar>(shape = [1, 4], label = 'b');
    y = linear(x, w, b);
}
"""
FINE = np.ones((4, 4), np.float32) / 3


def broken(*values):
    array = FINE.copy()
    array.ravel()[: len(values)] = values
    return array


def load(w, b=FINE[:1]):
    return cml.load(cml.nnef.MemoryModel(LINEAR, {"w": w, "b": b}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([np.nan], "1 of the 16 values of 'w'"),
        ([np.inf, -np.inf, 0], "2 of the 16 values of 'w'"),
        ([np.nan] * 16, "16 of the 16 values of 'w'"),
    ],
)
def test_a_load_warns_once_and_names_the_tensor(values, says):
    with pytest.warns(RuntimeWarning, match=says) as caught:
        graph = load(broken(*values))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert any(says in note for note in graph.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.reshaped({"x": (2, 4)})


def test_several_tensors_are_one_warning():
    with pytest.warns(RuntimeWarning, match="of 'b', 1 of the 16 values of 'w'|of 'w', .* of 'b'"):
        load(broken(np.nan), broken(np.inf)[:1])


@pytest.mark.parametrize(
    "w",
    [
        FINE,
        np.full((4, 4), -np.inf, np.float32),
        np.triu(np.full((4, 4), -np.inf, np.float32), 1),
        np.full((4, 4), 3e38, np.float32),
    ],
    ids=["finite", "all infinite", "mask", "large"],
)
def test_masks_and_large_weights_are_no_warning(w):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(w)


@pytest.fixture
def model(tmp_path):
    with pytest.warns(RuntimeWarning):
        graph = load(broken(np.nan))
    cml.save(graph, tmp_path / "net.nnef")
    return str(tmp_path / "net.nnef")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("command", ["info", "cook", "validate"])
def test_commands_show_the_warning(command, model, tmp_path, capsys, gpu):
    more = ["-o", str(tmp_path / "net.cml")] if command == "cook" else []
    main([command, model, *more])
    printed = capsys.readouterr()
    assert "notice: 'net' has weights that are NaN or infinite" in printed.err
    assert ("warning    'net'" in printed.out) == (command == "info")


@pytest.mark.filterwarnings("default")
def test_nan_output_suggests_stop_at_nan(model, run_cml):
    run = f"run {model} --random-inputs 7 --backend cpu"
    shown = run_cml(run)
    assert "the inputs without a file are random, of seed 7" in shown.err
    assert "'y' has 1 of 4 values that are NaN or infinite; --stop-at-nan" in shown.err
    assert "y: scalar[1,4]  min nan" in shown.out
    assert "--stop-at-nan shows" not in run_cml(f"{run} --stop-at-nan", ends=1).err


def test_random_inputs_are_the_same_in_every_run_of_a_seed(tmp_path, run_cml, refused):
    text = "\n".join(line for line in LINEAR.splitlines() if "variable" not in line)
    model = str(write_model(tmp_path / "m.nnef", text.replace("linear(x, w, b)", "relu(x)")))
    shown = []
    for seed in ("3", "3", "4"):
        shown.append(run_cml(f"run {model} --random-inputs {seed} --backend cpu").out)
    assert shown[0] == shown[1] != shown[2]
    assert "--random-inputs" in refused(f"run {model} --backend cpu")
