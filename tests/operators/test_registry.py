"""Tests that every operator's declaration is complete."""

from pathlib import Path

import pytest

from cml_engine import ops
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
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


#: the folders of kernels whose modules lie elsewhere than in ``cml_engine/ops``
MODULE_FOLDERS = {"textures": Path("gpu/textures")}
#: kernels that another module names than the one that launches them: the folder -> that module
NAMED_ELSEWHERE = {
    "textures": Path("gpu/textures/pipelines.py"),  # it builds their pipelines together
}


def modules_of(kernel):
    """Returns the places where the module that launches the kernel may lie, in ``cml_engine``.

    It has the kernel's name and stands in the same order of folders. Kernels in a folder of their
    own are launched one after the other, by the module with the folder's name.
    """
    family, name = kernel.parts[0], Path(kernel.parts[1]).stem
    folder = MODULE_FOLDERS.get(family, Path("ops", family))
    return folder / f"{name}.py", folder / "kernels" / f"{name}.py"


def test_every_kernel_is_launched_by_the_module_of_its_name():
    package = Path(ops.__file__).parents[1]
    modules = [*(package / "ops").rglob("*.py"), *(package / "gpu/textures").glob("*.py")]
    texts = {file.relative_to(package): file.read_text() for file in modules}
    kernels = {file.relative_to(KERNEL_FOLDER) for file in KERNEL_FOLDER.rglob("*.hlsl")}
    assert {Path(spec.kernel.path) for spec in SPECS if spec.kernel} <= kernels
    for kernel in kernels:
        names = (f'"{kernel.as_posix()}"', f'"{kernel.parent.as_posix()}/{{name}}.hlsl"')
        users = {module for module, text in texts.items() if any(name in text for name in names)}
        beside = [module for module in modules_of(kernel) if module in texts]
        by_name = NAMED_ELSEWHERE.get(kernel.parts[0])
        assert len(users) == 1 and beside, f"{kernel} is named in {users}"
        assert users == {by_name} if by_name else users <= {*beside}, f"{kernel}: {users}"


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
    """Every kernel has a case of several workgroups, so that checks can run it in parts."""
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
