"""Tests that every operator's declaration is complete."""

from pathlib import Path

import pytest

from cml_engine import ops
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.limits import Limits
from cml_engine.nnef.expansion.signatures import EXTENSIONS, STDLIB
from cml_engine.ops.declaration.choice import NO_VARIANTS, VariantTable
from cml_engine.ops.declaration.registry import load_families, registered
from cml_engine.ops.kernel_files import KERNEL_FOLDER
from cml_engine.testing import variants
from cml_engine.tools.report.operator_support import (
    EXTENSION,
    STANDARD,
    SupportTable,
    operator_support,
    operator_table,
)

load_families()
#: operators of the engine; other tests may have registered a game's
SPECS = [spec for spec in registered().values() if not spec.is_custom]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_declaration_is_complete(spec):
    assert spec.cpu is not None
    assert spec.kernel is not None or spec.alias
    assert len(spec.cases) >= 3, "at least three cases"
    assert spec.allowed_error.why
    known = {*STDLIB.signatures, *EXTENSIONS.signatures}
    assert spec.name in known or spec.custom


def test_every_kernel_has_its_file_and_every_file_its_kernel():
    folder = KERNEL_FOLDER
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*.hlsl")}
    assert {str(spec.kernel.path) for spec in SPECS if spec.kernel} <= files
    package = Path(ops.__file__).parents[1]
    users = [*(package / "ops").rglob("*.py"), package / "gpu/textures/kernels.py"]
    declarations = "".join(file.read_text() for file in users)
    assert [file for file in files if f'"{file}"' not in declarations] == []


def test_every_operator_is_listed_once_with_a_state():
    rows = list(operator_support())
    listed = [row.name for row in rows]
    assert {*STDLIB.signatures, *EXTENSIONS.signatures} <= set(listed)
    assert len(set(listed)) == len(listed)
    states = {"native", "expanded", "graph", "refused"}
    assert all({row.gpu, row.cpu} <= states for row in rows)
    assert {row.name for row in rows if row.cpu == "graph"} == {
        "external", "variable", "constant", "update"}  # fmt: skip
    table = operator_table().splitlines()
    for row in rows:
        shown = next(line for line in table if line.split()[:1] == [row.name])
        assert row.gpu in shown and row.cpu in shown


def test_all_of_nnef_and_every_extension_runs_on_both_backends():
    rows = [row for row in operator_support() if row.origin in (STANDARD, EXTENSION)]
    assert [row.name for row in rows if not row.runs] == []
    assert sum(row.origin == STANDARD for row in rows) == 119
    assert "NNEF 1.0.5: 119 of 119 run on both backends" in operator_table()


def test_expansion_calling_an_unsupported_operator_is_refused():
    fragments = {**STDLIB.fragments}
    specs = {name: spec for name, spec in registered().items() if name != "exp"}
    table = SupportTable({k: v for k, v in specs.items() if k != "silu"}, fragments)
    assert table.support("silu").runs  # it expands to sigmoid, which is native
    assert table.support("exp").gpu == "refused"
    without = {k: v for k, v in specs.items() if k not in ("silu", "sigmoid")}
    row = SupportTable(without, fragments).support("silu")
    assert (row.gpu, row.cpu, row.note) == ("refused", "refused", "needs sigmoid")


@pytest.mark.parametrize("spec", [s for s in SPECS if s.kernel], ids=lambda s: s.name)
def test_every_kernel_has_a_case_of_several_workgroups(spec):
    """Otherwise no check runs a part of it, because partitions are made of whole workgroups."""
    most = {}
    for graph in (graph for _, graph, _, layouts in variants(spec) if not layouts):
        for choice in lower(graph, Limits()).choices or (None,):
            for option in choice.options if choice else ("",):
                if most.get(option, 0) < 2:
                    table = VariantTable.forcing(choice.key, option) if choice else NO_VARIANTS
                    steps = lower(graph, Limits(), options=PlanOptions(variants=table)).steps
                    most[option] = max([most.get(option, 0), *(step.groups for step in steps)])
    if len(most) > 1:
        most.pop("", None)  # empty results, which leave nothing to choose
    assert [option for option, groups in most.items() if groups < 2] == []
