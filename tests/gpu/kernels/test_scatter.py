"""Tests that each of the three scatter algorithms is right on every case that it supports."""

from dataclasses import replace

import pytest

from cml_engine.compiler.planning.lower import lower
from cml_engine.ops import Case, Random, load_families, lookup
from cml_engine.ops.indexing import scatter
from cml_engine.tools.testing import case_graph, check_graph

load_families()
CASES = [
    pytest.param(op, case, id=f"{op}-{case.note}".replace(" ", "_"))
    for op in ("scatter_elements", "scatter_nd")
    for case in lookup(op).cases
    if case.attrs["reduction"] == "none"
]


def ways(graph, gpu):
    """Returns the scatter algorithm of each step in the graph's plan: a define that is 1, or
    "LOOKED"."""
    return [
        next((d for d, v in s.defines.items() if v == 1), "LOOKED")
        for s in lower(graph, gpu.limits).steps
    ]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_marking(op, case, gpu, monkeypatch):
    graph, inputs = case_graph(op, case)
    monkeypatch.setattr(scatter, "_LOOKS", -1)
    check_graph(graph, inputs, gpu)
    if graph.facts["y0"].size:
        assert ways(graph, gpu)[-1] == "TAKE"


@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
def test_the_way_goes_by_what_is_known(op, gpu):
    case = lookup(op).cases[0]
    assert ways(case_graph(op, case)[0], gpu) == ["LOOKED"]
    assert ways(case_graph(op, case, constants=True)[0], gpu) == ["COPY", "LISTED"]


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
def test_ranges_of_slots(op, software, gpu, monkeypatch):
    """A scatter into more slots than threads is right; each thread then handles a range of
    slots."""
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, software=software))
    attrs = {"reduction": "add"} | ({"axis": 0} if op == "scatter_elements" else {})
    indices = Random((99, 3) if op == "scatter_elements" else (99, 1), -5001, 5001, "integer")
    case = Case(((5001, 3), indices, (99, 3)), attrs)
    graph, inputs = case_graph(op, case)
    assert ways(graph, gpu) == ["LOOKED"]
    check_graph(graph, inputs, gpu)
