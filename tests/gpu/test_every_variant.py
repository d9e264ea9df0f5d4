"""Every option of every choice of kernels: against NumPy, guard bands, any partition of the work.

What a table of variants may choose must be right whether or not it is the default anywhere.
"""

from dataclasses import replace

import pytest

from cml_engine.layout import C4
from cml_engine.ops import load_families, registered
from cml_engine.ops.choice import VariantTable
from cml_engine.ops.lowering import Limits
from cml_engine.ops.spec import lookup
from cml_engine.passes.lower import lower
from cml_engine.testing import case_graph, check_graph

load_families()
#: as much of a layout's freedom as the options' code depends on
LAYOUTS = ({}, {"x0": C4, "y0": C4})


def graph_of(op, case):
    return case_graph(op, case, constants=len(case.inputs) > 1)


def choices_of(op, case, software):
    graph, _ = graph_of(op, case)
    return lower(graph, replace(Limits(), software=software)).choices


CASES = [
    pytest.param(name, case, software, id=f"{name}-{i}-{'software' if software else 'hardware'}")
    for name, spec in registered().items()
    for i, case in enumerate(spec.cases)
    for software in (True, False)
    if spec.kernel is not None and choices_of(name, case, software)
]


@pytest.mark.parametrize(("op", "case", "software"), CASES)
def test_every_option_gives_the_reference(op, case, software, gpu, monkeypatch):
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, software=software))
    graph, inputs = graph_of(op, case)
    for layouts in LAYOUTS if lookup(op).kernel.layouts == "any" else LAYOUTS[:1]:
        for choice in lower(graph, gpu.limits, layouts).choices:
            for option in choice.options:
                table = VariantTable.forcing(choice.key, option)
                try:
                    check_graph(graph, inputs, gpu, layouts=layouts, variants=table)
                except AssertionError as error:
                    raise AssertionError(f"{choice.key}, {option}, {layouts}: {error}") from error
