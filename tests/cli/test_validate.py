"""Tests of ``cml validate`` and ``cml run --backend gpu``, and of the tolerances of their
checks."""

from dataclasses import replace

import numpy as np
import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.cpu.compare import compare, node_tolerance, propagated_error
from cml_engine.ops import register
from cml_engine.ops.declaration.registry import lookup, unregister
from cml_engine.ops.declaration.spec import NO_TRAITS, Case, OpSpec, Random
from cml_engine.runtime.node_check import check_nodes
from cml_engine.testing import case_graph
from tests.fixtures.graphs import Net
from tests.fixtures.models import write_model_abc
from tests.fixtures.operators import check_on_gpu

#: the blog's model has no version line, which is a notice
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def test_validate_fails_with_one_and_names_file_and_line(tmp_path, gpu, run_cml):
    folder = write_model_abc(tmp_path / "abc")
    right = lookup("min_reduce")
    unregister("min_reduce")
    register(
        OpSpec(
            **{
                **vars(right),
                "traits": NO_TRAITS,
                "cpu": lambda attrs, x: x.max(tuple(attrs.axes), keepdims=True),
            }
        )
    )
    try:
        printed = run_cml("validate", folder, ends=1).out
    finally:
        unregister("min_reduce")
    assert "first divergence" in printed and "graph.nnef:9" in printed and "min_reduce" in printed


def test_large_activations_are_judged_by_their_size(gpu):
    """A conv of inputs up to 300, as in trained networks, is within its tolerance.

    The tolerance grows with the summed terms.
    """
    case = Case((Random((1, 64, 24, 24), -300, 300), (64, 64, 3, 3), (1, 64)))
    assert check_on_gpu("conv", case, gpu, constants=True) < 1


def test_every_result_of_an_operator_is_looked_at(gpu, monkeypatch):
    graph, inputs = case_graph("moments", Case(((2, 3, 4),), {"axes": [2]}))
    (check,) = check_nodes(graph, gpu, inputs)
    assert check.ok
    spec, right = lookup("moments"), lookup("moments").cpu

    def wrong(attrs, x):
        mean, variance = right(attrs, x)
        return mean, variance * 1.01

    monkeypatch.setitem(vars(spec), "cpu", wrong)
    (check,) = check_nodes(graph, gpu, inputs)
    assert not check.ok


def test_tolerance_covers_errors_amplified_by_fused_operators(gpu):
    """The tolerance covers rounding errors that a fused operator amplifies.

    In ``exp(exp(x))`` near 1e18, one ulp of the inner value is seven of the outer one.
    """
    net = Net(1, 4, 30)
    graph = optimize(net.graph("exp(exp(x))"))
    inputs = {"x": np.linspace(3.7, 3.76, 120, dtype=np.float32).reshape(1, 4, 30)}
    (node,) = graph.nodes
    (check,) = check_nodes(graph, gpu, inputs)
    assert len(node.epilogues) == 1 and check.ok
    off = propagated_error(node, [inputs["x"]])
    expected = np.exp(np.exp(inputs["x"].astype(np.float64)))
    assert (off / expected > 1e-5).all() and (off / expected < 1e-3).all()
    assert not compare(expected + 3 * off, expected, node_tolerance(node), off).ok
    single = graph.with_(nodes=(replace(node, epilogues=()),))
    assert not propagated_error(single.nodes[0], [inputs["x"]]).any()


def test_tolerance_covers_cancellation_in_means(gpu, monkeypatch):
    """The check of a mean of values up to 1e6 that cancel accepts an error of 1 and rejects one of
    4.

    The tolerance depends on the terms: 4e-6 of half a million.
    """
    spec, right = lookup("mean_reduce"), lookup("mean_reduce").cpu
    x = np.linspace(-1e6, 1e6, 64, dtype=np.float32).reshape(1, 64)
    graph, inputs = case_graph("mean_reduce", Case((x,), {"axes": [1]}))
    for off, ok in ((0.0, True), (1.0, True), (4.0, False)):
        monkeypatch.setitem(vars(spec), "cpu", lambda a, x, off=off: right(a, x) + np.float32(off))
        (check,) = check_nodes(graph, gpu, inputs)
        assert check.ok == ok
