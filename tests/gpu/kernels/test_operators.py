"""Every operator's every case: GPU against NumPy, guard bands, any partition of the workgroups.

The cases come from the declarations. Each runs with computed operands and with constant ones, and
in every memory layout that the kernel takes.
"""

import pytest

from cml_engine.ops import load_families, registered
from cml_engine.testing import blocked_layouts, case_graph, check_graph

load_families()
CASES = [
    pytest.param(name, case, id=f"{name}-{i}-{case.note or 'case'}".replace(" ", "_"))
    for name, spec in registered().items()
    for i, case in enumerate(spec.cases)
]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_operator(op, case, gpu):
    for constants in (False, True) if len(case.inputs) > 1 else (False,):
        graph, inputs = case_graph(op, case, constants=constants)
        for layouts in ({}, *blocked_layouts(graph)):
            try:
                check_graph(graph, inputs, gpu, layouts=layouts)
            except AssertionError as error:
                raise AssertionError(
                    f"{op} {case.id} constants={constants} layouts={layouts}: {error}"
                ) from error
