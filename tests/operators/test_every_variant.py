"""Tests every option of every kernel choice against NumPy, with guard bands and any partition.

A variant table may choose any option, so each must be right even if it is no default.
"""

from dataclasses import replace

import pytest

from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.layout import C4, C4H
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.registry import lookup, registered
from cml_engine.testing import case_graph
from tests.fixtures.operators import check_graph

pytestmark = [pytest.mark.gpu, pytest.mark.long]
#: kernels that take minutes to build: the declared cases alternate between the two types of device
#: (test_operators.py runs the defaults on all cases)
SLOW = ("conv", "deconv", "matmul", "matmul_heads", "matmul_parts", "linear")


def graph_of(op, case):
    return case_graph(op, case, constants=len(case.inputs) > 1)


def choices_of(op, case, software):
    graph, _ = graph_of(op, case)
    return lower(graph, replace(Limits(), software=software)).choices


CASES = [
    pytest.param(
        name,
        case,
        software,
        C4H if i // 2 % 2 else C4,
        id=f"{name}-{i}-{'software' if software else 'hardware'}",
    )
    for name, spec in registered().items()
    if spec.kernel is not None
    for i, case in enumerate(spec.cases)
    for software in (True, False)
    if (name not in SLOW or software == (i % 2 == 0)) and choices_of(name, case, software)
]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case", "software", "blocked"), CASES)
def test_every_option_gives_the_reference(op, case, software, blocked, gpu, set_limits):
    set_limits(software=software)
    graph, inputs = graph_of(op, case)
    layouts = {"x0": blocked, "y0": blocked} if lookup(op).kernel.layouts == "any" else {}
    choices = lower(graph, gpu.limits, layouts).choices
    assert choices
    for choice in choices:
        for option in choice.options:
            table = VariantTable.forcing(choice.key, option)
            try:
                check_graph(graph, inputs, gpu, layouts=layouts, variants=table)
            except AssertionError as error:
                raise AssertionError(f"{choice.key}, {option}, {layouts}: {error}") from error


def test_each_option_of_a_choice_gives_another_plan():
    """Each option of a conv that a table forces gives a different plan, so these tests run every
    option."""
    graph, _ = graph_of("conv", lookup("conv").cases[0])
    (choice,) = choices_of("conv", lookup("conv").cases[0], True)
    plans = set()
    for option in choice.options:
        table = VariantTable.forcing(choice.key, option)
        limits = replace(Limits(), software=True)
        plan = lower(graph, limits, options=PlanOptions(variants=table))
        assert plan.choices[0].chosen == option
        plans.add(tuple((s.path, repr(s.defines), s.groups) for s in plan.steps))
    assert len(plans) == len(choice.options) > 2
