"""Tests of inputs given as constants at loading: ``--constant`` and ``constants=``."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cml_engine as cml  # noqa: E402
from tests.fixtures.onnx_models import model, node, saved, subgraph  # noqa: E402


@pytest.fixture
def rates(tmp_path):
    """The path of a network that computes -x if its inputs ``rate`` and ``wanted`` are equal, else
    |x| with one axis less.

    Files with values of the inputs are beside it.
    """
    neg = subgraph("z = Neg(x)", "", "z: [1, 4]")
    absolute = subgraph("a = Abs(x); z = Squeeze(a)", "", "z: [4]")
    nodes = [
        "same = Equal(rate, wanted)",
        node("y = If(same)", then_branch=neg, else_branch=absolute),
    ]
    path = tmp_path / "rates.onnx"
    saved(model(nodes, "x: [1, 4], rate: int64[1], wanted: int64[1]"), path)
    np.save(tmp_path / "x.npy", np.arange(-2, 2, dtype=np.float32).reshape(1, 4))
    np.save(tmp_path / "rate.npy", np.array([16000]))
    np.save(tmp_path / "other.npy", np.array([8000]))
    return path


@pytest.fixture
def run(rates, run_cml):
    """A function that runs the network with further words; returns its result as a list."""

    def run(more):
        folder = rates.parent
        files = f"-i x={folder}/x.npy -o y={folder}/y.npy --backend cpu"
        run_cml(f"run {rates} {files} {more}")
        return np.load(folder / "y.npy").reshape(-1).tolist()

    return run


NEG, ABS = [2.0, 1.0, 0.0, -1.0], [2.0, 1.0, 0.0, 1.0]


def test_constants_of_the_command_line(rates, run):
    for rate, found in (("16000", NEG), ("[8000]", ABS), (f"{rates.parent}/rate.npy", NEG)):
        assert run(f"--constant wanted=16000 --constant rate={rate}") == found


def test_files_of_inputs_decide_a_condition(rates, run):
    folder = rates.parent
    for file, found in (("rate", NEG), ("other", ABS)):
        assert run(f"-i rate={folder}/{file}.npy -i wanted={folder}/rate.npy") == found
    assert run(f"-i rate={folder}/rate.npy --constant wanted=8000") == ABS


@pytest.mark.parametrize(
    "line",
    ["info {}", "rank {} --backend cpu --runs 1", "validate {}", "convert {} out", "simulate {}",
     "export {} out.onnx", "report {} -o report"],
)  # fmt: skip
def test_every_command_that_loads_takes_constants(rates, line, monkeypatch, run_cml, refused):
    monkeypatch.chdir(rates.parent)
    line = line.format(rates)
    message = refused(line)
    assert "If 'y': the condition must be known" in message
    assert "--constant rate=VALUE|FILE --constant wanted=VALUE|FILE, or cml.load" in message
    run_cml(f"{line} --constant rate=1 --constant wanted=1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rate", "wanted NAME=VALUE or NAME=FILE.npy"),
        ("rate=", "wanted NAME=VALUE or NAME=FILE.npy"),
        ("rate=lots", "wanted a number, true or false, a list"),
        ("rate=[1,[2]]", "wanted a number, true or false, a list"),
        ('rate="16"', "wanted a number, true or false, a list"),
        ("rate=no.npy", "no such file"),
        ("rate=[1.5]", "the constant 'rate' has values that are no int64"),
        ("rate=[[1]]", "the constant 'rate' has rank 2"),
        ("speed=1", "speed"),
    ],
)
def test_mismatched_constants_are_refused(rates, given, said, refused):
    assert said in refused(f"info {rates} --constant wanted=1 --constant {given}")


def test_constants_of_other_formats_are_refused(tmp_path):
    with pytest.raises(cml.InputError, match="constants cannot be given for NNEF"):
        cml.load(cml.nnef.MemoryModel("version 1.0;\n"), constants={"x": np.zeros(1)})


def test_a_branch_that_cannot_be_imported_names_the_constants_of_its_condition(rng):
    """The case of a network for two rates of sound, of which one branch fits the given shape."""
    fits = subgraph("z = Neg(x)", "", "z: [1, 4]")
    lstm = subgraph("z = LSTM(x, w, w, hidden_size=1)", "", "z: [1, 4]")
    nodes = ["same = Equal(rate, wide)", node("y = If(same)", then_branch=fits, else_branch=lstm)]
    known = {"wide": np.array([16000]), "w": np.zeros((1, 4, 4), np.float32)}
    network = model(nodes, "x: [1, 4], rate: int64[1]", weights=known).SerializeToString()
    with pytest.raises(cml.errors.NeedsConstant) as refused:
        cml.load(network)
    assert refused.value.inputs == ("rate",)
    message = str(refused.value)
    assert "If 'y': the condition must be known" in message
    assert "LSTM 'z': its input is float32[1,4], wanted 3 axes" in message
    graph = cml.load(network, constants={"rate": np.array([16000])})
    assert cml.Session(graph, "cpu").run({"x": np.ones((1, 4), np.float32)})["y"].sum() == -4
