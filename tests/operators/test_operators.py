"""Tests every case of every operator on the GPU against NumPy, with guard bands and any partition.

The cases come from the declarations. Each runs with computed and with constant operands, and in the
memory layouts of the kernel: in the suite plain and one other layout, which alternates from case to
case, or one of the two; all of them in the long suite.
"""

import pytest

import cml_engine.demo_game.operators  # noqa: F401  # declares the demo's operators, which have cases
from cml_engine.ops.declaration.registry import registered
from cml_engine.testing import blocked_layouts, case_graph
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param(name, case, i, id=f"{name}-{i}-{case.note or 'case'}".replace(" ", "_"))
    for name, spec in registered().items()
    for i, case in enumerate(spec.cases)
]


#: the cases of operators that have more than so many take turns: one is plain, the next one in
#: another layout
FEW_CASES = 4


@pytest.mark.parametrize(("op", "case", "number"), CASES)
def test_operator(op, case, number, gpu):
    takes_turns = len(registered()[op].cases) > FEW_CASES
    for constants in operands_of(case):
        graph, inputs = case_graph(op, case, constants=constants)
        blocked = list(blocked_layouts(graph))
        turn = constants + (number // 2 if takes_turns else number)
        layouts = [{}, *([blocked[turn % len(blocked)]] if blocked else [])]
        if takes_turns:
            layouts = layouts[-1:] if number % 2 else layouts[:1]
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
