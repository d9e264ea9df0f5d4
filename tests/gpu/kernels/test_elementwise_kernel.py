"""Tests of the elementwise kernels beyond their cases: extreme floats, sizes, mixed layouts."""

import itertools
from dataclasses import replace

import pytest

import cml_engine.ops.elementwise.elementwise  # noqa: F401
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.layout import C4
from cml_engine.ops.declaration.spec import Case
from cml_engine.tools.testing import case_graph, check_on_gpu


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
    """A kernel with more workgroups than one or two dimensions allow (7 each here) is right."""
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, max_groups_per_dimension=7))
    graph, _ = case_graph("neg", Case(((65535 * 4,),)))
    (step,) = lower(graph, gpu.limits).steps
    assert step.groups > 49 and step.groups % 7
    check_on_gpu("neg", Case(((65535 * 4,),)), gpu, partitions=3)
