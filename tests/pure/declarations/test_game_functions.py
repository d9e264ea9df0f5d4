"""Tests of exceptions in the functions of a game's operator: the error names type, line and
operator."""

import sys

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.plugins import load_file
from cml_engine.errors import OperatorError
from cml_engine.ir.limits import Limits
from tests.fixtures.models import write_model

pytestmark = pytest.mark.usefixtures("own_operators")

#: an operator whose functions call a function of a neighbouring file
OPS = """\
import cml_engine as cml
import helper

SOURCE = "void kernel(uint thread) { y[thread] = x[thread]; }"
cml.register(cml.OpSpec(
    "twice",
    signature="fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)",
    infer=cml.same_as(0),
    cpu=lambda attrs, x: 2 * x,
    kernel=cml.Kernel(source=SOURCE),
))
"""
HELPER = "\n\ndef fail(*given):\n    return {}[given[0].strde]\n"
MODEL = """\
version 1.0;
graph g(x) -> (z) { x = external<scalar>(shape = [1, 4, 8, 8]);
  y = twice(x);
  z = relu(y);
}
"""
BROKEN = {
    "infer": ("infer=cml.same_as(0)", "infer=helper.fail"),
    "cpu": ("cpu=lambda attrs, x: 2 * x", "cpu=helper.fail"),
    "prepare": ("cpu=", "prepare=helper.fail, cpu="),
    "cost": ("cpu=", "cost=helper.fail, cpu="),
    "threads": ("source=SOURCE", "source=SOURCE, threads=helper.fail"),
    "lower": ("source=SOURCE", "source=SOURCE, lower=helper.fail"),
    "half": (
        "source=SOURCE",
        "source=' ', params='n:u', lower=lambda op: [], layouts='any', half=helper.fail",
    ),
}


@pytest.fixture(autouse=True)
def _helper_of_this_test(monkeypatch):
    monkeypatch.delitem(sys.modules, "helper", raising=False)


def use(model, function):
    """Loads the model and does what first calls the named function of its operator.

    It runs the model on the CPU for ``cpu`` and ``prepare``, and plans it for a GPU for all others.
    """
    graph = cml.load(model)
    if function in ("cpu", "prepare"):
        cml.Session(graph, "cpu").run({"x": np.ones((1, 4, 8, 8), np.float32)})
    else:
        plan_graph(optimize(graph), Limits(), "half")


@pytest.mark.parametrize("function", BROKEN)
def test_a_failing_function_names_its_type_line_and_operator(tmp_path, function):
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "ops.py").write_text(OPS.replace(*BROKEN[function]))
    load_file(tmp_path / "ops.py")
    with pytest.raises(OperatorError) as caught:
        use(write_model(tmp_path / "m.nnef", MODEL), function)
    message = str(caught.value)
    assert f"twice 'y': its {function} function failed: " in message
    assert "AttributeError" in message and f"({tmp_path / 'helper.py'}:4)" in message
    assert "graph.nnef:3" in message
    assert isinstance(caught.value.__cause__, AttributeError)


class Refused(cml.ModelError):
    """A game's own error, whose constructor differs from that of ``CmlError``."""

    def __init__(self, extent):
        super().__init__(f"wanted 3 channels, got {extent}")
        self.extent = extent


@pytest.mark.parametrize("function", ["infer", "cpu", "lower"])
def test_game_error_keeps_its_class_and_gets_the_model_line(tmp_path, function):
    def refuse(*given):
        raise Refused(4)

    functions = {"infer": cml.same_as(0), "cpu": lambda attrs, x: x, "lower": None}
    functions[function] = refuse
    kernel = cml.Kernel(source="void kernel(uint thread) {}", lower=functions.pop("lower"))
    signature = "fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)"
    cml.register(cml.OpSpec("twice", signature=signature, kernel=kernel, **functions))
    with pytest.raises(Refused, match="graph.nnef:3.*wanted 3 channels, got 4") as caught:
        use(write_model(tmp_path / "m.nnef", MODEL), function)
    assert caught.value.extent == 4
    assert caught.traceback[-1].name == "refuse"


def test_the_command_line_shows_both_lines(tmp_path, refused):
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "ops.py").write_text(OPS.replace(*BROKEN["infer"]))
    model = write_model(tmp_path / "m.nnef", MODEL)
    message = refused(f"info {model} --ops {tmp_path}/ops.py")
    assert "graph.nnef:3" in message and "helper.py:4" in message and "Traceback" not in message
