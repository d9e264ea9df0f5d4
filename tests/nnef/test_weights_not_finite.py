"""Tests that loading gives one warning that names all NaN or infinite weights, except masks."""

import warnings

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.tools.cli import main
from tests.fixtures.models import write_model

TEXT = """version 1.0;
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
    return cml.load(cml.MemoryModel(TEXT, {"w": w, "b": b}))


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
    shown = capsys.readouterr()
    assert "notice: 'net' has weights that are NaN or infinite" in shown.err
    assert ("warning    'net'" in shown.out) == (command == "info")


@pytest.mark.filterwarnings("default")
def test_nan_output_suggests_stop_at_nan(model, run_cml):
    run = f"run {model} --random-inputs 7 --backend cpu"
    shown = run_cml(run)
    assert "the inputs without a file are random, of seed 7" in shown.err
    assert "'y' has 1 of 4 values that are NaN or infinite; --stop-at-nan" in shown.err
    assert "y: scalar[1,4]  min nan" in shown.out
    assert "--stop-at-nan shows" not in run_cml(f"{run} --stop-at-nan", ends=1).err


def test_random_inputs_are_the_same_in_every_run_of_a_seed(tmp_path, run_cml, refused):
    text = "\n".join(line for line in TEXT.splitlines() if "variable" not in line)
    model = str(write_model(tmp_path / "m.nnef", text.replace("linear(x, w, b)", "relu(x)")))
    shown = []
    for seed in ("3", "3", "4"):
        shown.append(run_cml(f"run {model} --random-inputs {seed} --backend cpu").out)
    assert shown[0] == shown[1] != shown[2]
    assert "--random-inputs" in refused(f"run {model} --backend cpu")
