"""``cml validate`` and ``cml run --backend gpu`` from the command line."""

import pytest

from cml_engine.backends.shadow import shadow_run
from cml_engine.cli import main
from cml_engine.ops.spec import Case, OpSpec, Random, lookup, register, unregister
from cml_engine.testing import case_graph, check_on_gpu
from tests.models import write_model_abc

#: the blog's model has no version line, which is a notice
pytestmark = pytest.mark.filterwarnings("default")


def test_validate_passes_on_model_abc(tmp_path, capsys, gpu):
    assert main(["validate", str(write_model_abc(tmp_path / "abc"))]) == 0
    assert "all operators agree" in capsys.readouterr().out


def test_validate_fails_with_one_and_names_file_and_line(tmp_path, capsys, gpu):
    folder = write_model_abc(tmp_path / "abc")
    right = lookup("min_reduce")
    unregister("min_reduce")
    register(
        OpSpec(**{**vars(right), "cpu": lambda attrs, x: x.max(tuple(attrs.axes), keepdims=True)})
    )
    try:
        assert main(["validate", str(folder)]) == 1
    finally:
        unregister("min_reduce")
    said = capsys.readouterr().out
    assert "first divergence" in said and "graph.nnef:9" in said and "min_reduce" in said


def test_large_activations_are_judged_by_their_size(gpu):
    """Rounding goes by what is added: a trained network's values reach hundreds."""
    case = Case((Random((1, 64, 24, 24), -300, 300), (64, 64, 3, 3), (1, 64)))
    assert check_on_gpu("conv", case, gpu, constants=True) < 1


def test_every_result_of_an_operator_is_looked_at(gpu):
    graph, inputs = case_graph("moments", Case(((2, 3, 4),), {"axes": [2]}))
    right = lookup("moments")
    unregister("moments")

    def wrong(attrs, x):
        mean, variance = right.cpu(attrs, x)
        return mean, variance * 1.01

    register(OpSpec(**{**vars(right), "cpu": wrong}))
    try:
        (found,) = shadow_run(graph, gpu, inputs)
    finally:
        unregister("moments")
        register(right)
    assert not found.ok
