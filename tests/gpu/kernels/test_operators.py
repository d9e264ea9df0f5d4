"""Tests every case of every operator on the GPU against NumPy, with guard bands and any partition.

The cases come from the declarations. Each runs with computed and with constant operands, and in the
memory layouts of the kernel: plain and one other layout in the suite, which alternates from case to
case; all of them in the long suite.
"""

import pytest

from cml_engine.ops import load_families, registered
from cml_engine.tools.testing import blocked_layouts, case_graph, check_graph

load_families()
CASES = [
    pytest.param(name, case, i, id=f"{name}-{i}-{case.note or 'case'}".replace(" ", "_"))
    for name, spec in registered().items()
    for i, case in enumerate(spec.cases)
]


#: kernels that take long to build: one case has its computed operands plain and its constant ones
#: in the other layout; the next case has them the other way round
SLOW = ("conv", "deconv", "matmul", "linear")


@pytest.mark.parametrize(("op", "case", "number"), CASES)
def test_operator(op, case, number, gpu):
    for constants in operands_of(case):
        graph, inputs = case_graph(op, case, constants=constants)
        more = list(blocked_layouts(graph))
        layouts = [{}, *([more[(2 * number + constants) % len(more)]] if more else [])]
        if op in SLOW:
            layouts = layouts[-1:] if (number + constants) % 2 else layouts[:1]
        for chosen in layouts:
            check(op, case, graph, inputs, gpu, chosen)


@pytest.mark.long
@pytest.mark.parametrize(("op", "case"), [pytest.param(*c.values[:2], id=c.id) for c in CASES])
def test_operator_in_every_layout(op, case, gpu):
    for constants in operands_of(case):
        graph, inputs = case_graph(op, case, constants=constants)
        for layouts in ({}, *blocked_layouts(graph)):
            check(op, case, graph, inputs, gpu, layouts)


def operands_of(case):
    """Returns the values of ``constants`` to test a case with: both if it has several inputs."""
    return (False, True) if len(case.inputs) > 1 else (False,)


def check(op, case, graph, inputs, gpu, layouts):
    try:
        check_graph(graph, inputs, gpu, layouts=layouts)
    except AssertionError as error:
        constants = sorted(graph.constants)
        raise AssertionError(f"{op} {case.id} {constants=} {layouts=}: {error}") from error
