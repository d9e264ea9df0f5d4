"""Tests of the elementwise kernels beyond their cases: float extremes, sizes, mixed layouts."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import cml_engine.ops.elementwise.elementwise  # noqa: F401
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.spec import Case, Random
from cml_engine.ops.elementwise.elementwise_op import ROWS
from cml_engine.tools.testing import case_graph, check_on_gpu

EDGES = np.array(
    [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 88, -88, 89, 1e20, -1e20, 1e-20, 3.4e38, 0.5, 2],
    np.float32,
)
UNARY = [name for name, row in ROWS.items() if row.types == ("scalar",) and not row.custom]
ATTRS = {"alpha": 0.5, "lambda": 2.0, "epsilon": 1e-3}


def attrs_of(op):
    return {name: ATTRS[name] for name in ROWS[op].attrs}


@pytest.mark.parametrize("op", [op for op in UNARY if op not in ("sin", "cos", "tan")])
def test_the_edges_of_float(op, gpu):
    check_on_gpu(op, Case((EDGES,), attrs_of(op)), gpu)


@pytest.mark.parametrize("op", ["pow", "min", "max", "lt", "ge", "eq", "ne"])
def test_every_pair_of_edges(op, gpu):
    pairs = (EDGES.reshape(-1, 1), EDGES.reshape(1, -1))
    check_on_gpu(op, Case(pairs), gpu)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_many_turns(op, gpu):
    check_on_gpu(op, Case((Random((4096,), -5000, 5000),)), gpu)


@pytest.mark.parametrize("chosen", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("op", ["sub", "lt"])
def test_any_mix_of_layouts(op, chosen, gpu):
    """Any mix of plain and blocked tensors works; a comparison's result is always plain."""
    shape = (2, 8, 3, 5)
    blocked = [n for n, c in zip(("x0", "x1", "y0"), chosen, strict=True) if c]
    if op == "lt":
        blocked = [n for n in blocked if n != "y0"]
    check_on_gpu(op, Case((shape, shape)), gpu, layouts=dict.fromkeys(blocked, C4))


@pytest.mark.parametrize("size", [1, 3, 4, 255, 256, 257, 1023, 1024, 1025, 65535 * 4])
def test_sizes_around_the_workgroup(size, gpu):
    check_on_gpu("neg", Case(((size,),)), gpu)


def test_more_workgroups_than_a_dimension_takes(gpu, monkeypatch):
    """More workgroups than a dimension allows (7 here) use further dimensions of the dispatch."""
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, max_groups_per_dimension=7))
    graph, _ = case_graph("neg", Case(((65535 * 4,),)))
    (step,) = lower(graph, gpu.limits).steps
    assert step.groups > 49 and step.groups % 7
    check_on_gpu("neg", Case(((65535 * 4,),)), gpu, partitions=3)


def test_a_new_shape_needs_no_new_pipeline(gpu):
    """All shapes whose rows are a multiple of four share one pipeline."""
    variants = set()
    for shape, channels in itertools.product([(2, 8, 4, 4), (3, 12, 8, 2), (5, 3, 7, 4)], [1, 0]):
        operand = (1, shape[1]) if channels else (shape[0],)
        graph, _ = case_graph("mul", Case((shape, operand)))
        plan = lower(graph, Limits())
        variants |= {tuple(sorted(s.defines.items())) for s in plan.steps}
    assert len(variants) == 1
