"""Tests of ``cml.load(..., outputs=)`` of NNEF and ncnn: it reads only what the outputs need."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from cml_engine.formats.ncnn.conversion import LAYERS, REFUSED, WITHOUT_WEIGHTS
from tests.fixtures.ncnn_models import write

X = np.array([[-1, 2, -3, 4]], np.float32)
WEIGHTS = np.array([[1, 2, 3, 4]], np.float32)
TEXT = """version 1.0;
extension KHR_enable_fragment_definitions;
extension KHR_enable_operator_expressions;
fragment draw(x: tensor<scalar>) -> (y: tensor<scalar>);
graph net(x, noise) -> (mean, drawn, both)
{
    x = external<scalar>(shape = [1, 4]);
    noise = external<scalar>(shape = [1, 4]);
    w = variable<scalar>(shape = [1, 4], label = 'w');
    unread = variable<scalar>(shape = [1, 4], label = 'unread');
    total = x + w;
    stored = update(w, total);
    mean = neg(total);
    offset = noise + unread;
    drawn = draw(offset);
    both = [drawn, mean];
}
"""


@pytest.fixture
def stateful():
    """A model with an operator that is not implemented, and a tensor file that is missing."""
    return cml.nnef.MemoryModel(TEXT.replace("both = [drawn, mean]", "both = drawn * mean"),
                           {"w": WEIGHTS})  # fmt: skip


def test_the_refusal_names_the_outputs_that_do_without(stateful):
    with pytest.raises(UnsupportedOp, match="'draw' is not implemented") as error:
        cml.load(stateful)
    assert error.value.message.endswith(
        "The output 'mean' can be loaded without the rest: --output mean, or "
        'cml.load(…, outputs=["mean"])'
    )
    for names in (["drawn"], ["both"]):
        with pytest.raises(UnsupportedOp) as error:
            cml.load(stateful, outputs=names)
        assert "can be loaded" not in str(error.value)


def test_chosen_outputs_of_nnef(stateful):
    """The update of a variable that an output reads stays; other inputs and files do not matter."""
    graph = cml.load(stateful, outputs=["mean", "total"])
    assert (graph.inputs, graph.outputs) == (("x",), ("mean", "total"))
    assert set(graph.constants) == {"w"}
    session = cml.Session(graph, "cpu")
    for expected in (X + WEIGHTS, X + X + WEIGHTS):
        found = session.run({"x": X})
        np.testing.assert_array_equal(found["total"], expected)
        np.testing.assert_array_equal(found["mean"], -expected)
    wide = cml.load(stateful, outputs=["offset"], random_weights=1)
    assert wide.inputs == ("noise",)


def test_weights_of_tensors_that_are_not_read_are_allowed(tmp_path):
    """A file of all weights fits a model of which some outputs are loaded."""
    text = "version 1.0; graph g(x) -> (a, b) { x = external<scalar>(shape = [2]); "
    for label in "ab":
        text += f"{label}w = variable<scalar>(shape = [2], label = '{label}w'); "
        text += f"{label} = add(x, {label}w); "
    header = '{"aw":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},' \
             '"bw":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'  # fmt: skip
    data = len(header).to_bytes(8, "little") + header.encode() + np.arange(4, dtype="f4").tobytes()
    graph = cml.load(cml.nnef.MemoryModel(text + "}"), weights=data, outputs=["b"])
    assert graph.constants["bw"].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["men"], "has no tensor 'men'; did you mean 'mean'"),
        (["x"], "has no tensor 'x'"),
        (["mean", "mean"], "'mean' is given 2 times"),
        ([], "at least one name"),
        ("mean", "wanted names in parentheses"),
        ([3], "wanted names in parentheses"),
    ],
)
def test_wrong_choices_are_refused(stateful, names, message):
    with pytest.raises(cml.InputError, match=message):
        cml.load(stateful, outputs=names)


# -- ncnn ------------------------------------------------------------------------------------------

SCALE = np.array([2, 3, 4, 5], "<f4")
HEADS = [
    "Input a 0 1 in 0=4",
    "Input b 0 1 prior 0=4",
    "Split s 1 2 in x0 x1",
    "Scale first 1 1 x0 h0 0=4",
    "DetectionOutput d 2 1 h0 prior boxes",
    "Scale second 1 1 x1 h1 0=4",
    "ReLU r 1 1 h1 score",
]


def test_chosen_outputs_of_ncnn(tmp_path):
    """Weights that the chosen outputs do not need are skipped; the others are read correctly."""
    path = write(tmp_path, HEADS, np.concatenate([SCALE, 10 * SCALE]).tobytes())
    with pytest.raises(UnsupportedOp, match="DetectionOutput.*") as error:
        cml.load(path)
    assert "The output 'score' can be loaded without the rest: --output score" in str(error.value)
    graph = cml.load(path, outputs=["score"])
    assert (graph.inputs, graph.outputs) == (("in",), ("score",))
    assert set(graph.constants) == {name for name in graph.constants if name.startswith("second")}
    found = cml.Session(graph, "cpu").run({"in": X})["score"]
    np.testing.assert_array_equal(found, np.maximum(10 * SCALE * X, 0))
    inner = cml.load(path, outputs=["h0", "h1"])
    assert (inner.inputs, inner.outputs) == (("in",), ("h0", "h1"))


def test_what_stands_behind_the_chosen_layers_of_ncnn_is_not_read(tmp_path):
    lines = [*HEADS[:4], "Own t 1 1 h0 own 0=7", "Scale second 1 1 x1 score 0=4"]
    path = write(tmp_path, lines, np.concatenate([SCALE, 10 * SCALE]).tobytes())
    assert cml.load(path, outputs=["h0"]).outputs == ("h0",)
    # the weights of an unknown layer have no known size, so what follows it cannot be loaded
    for outputs in (None, ["score"]):
        with pytest.raises(UnsupportedOp, match="Own, 1 x") as error:
            cml.load(path, outputs=outputs)
        assert ("'prior' can be loaded" in str(error.value)) == (outputs is None)
        assert "score" not in str(error.value)
    with pytest.raises(cml.InputError, match="has no tensor 'scores'; did you mean 'score'"):
        cml.load(path, outputs=["scores"])


@pytest.mark.parametrize(
    "line", ["ReLU u 1 1 x0 up 77=1", "Reduction u 1 1 x0 up 0=0 1=1 7=1", "Own u 1 1 x0 up"]
)
def test_unsupported_variants_of_ncnn_name_the_other_outputs(tmp_path, line):
    lines = [HEADS[0], HEADS[2], line, "ReLU r 1 1 x1 y", "ReLU s 1 1 up z"]
    path = write(tmp_path, lines)
    with pytest.raises(UnsupportedOp, match="cannot be converted") as error:
        cml.load(path)
    assert "The output 'y' can be loaded without the rest" in str(error.value)
    for output in ("x1", "y"):
        assert cml.load(path, outputs=[output]).inputs == ("in",)


def test_layers_without_weights_are_known():
    """A layer that is not listed may have weights, so that a new one is not skipped by mistake."""
    assert LAYERS.keys() | REFUSED.keys() >= WITHOUT_WEIGHTS
