"""Tests of the import rules, which keep everything but the GPU backend testable without a GPU."""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

from tests.fixtures.pages import ROOT

#: folders of the tree whose modules are parts of ``cml_engine``, by links in it
LINKED = ("scheduler", "shaders_hlsl", "demo_game")
PACKAGES = ("cml_engine", *(f"cml_engine/{name}" for name in LINKED))
#: the packages of the engine, from the lowest layer to the highest
PACKAGE_ORDER = (
    "errors", "ir", "io", "nnef", "ops", "cpu", "compiler", "gpu", "formats", "runtime", "tuning",
    "cooked", "distributed", "panel", "tools",
)  # fmt: skip
#: the only folders that may import wgpu, at any depth
WGPU_PLACES = (Path("cml_engine/gpu"), Path("cml_engine/demo_game"))


def modules_after(*statements):
    """Runs the statements in order in a new Python process.

    Returns the set of top-level modules that were loaded after each statement, by statement.
    """
    code = "import json, sys\nfound = {}\n"
    for statement in statements:
        code += f"{statement}\nfound[{statement!r}] = [n.split('.')[0] for n in sys.modules]\n"
    code += "print(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {statement: set(names) for statement, names in json.loads(done.stdout).items()}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree, typing=True):
    """Yields every statement of a syntax tree, and every part of one that contains statements.

    Without ``typing`` those under ``TYPE_CHECKING`` are left out.
    """
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, field, [])


def imported(tree):
    """Yields the name and the line of every module that a syntax tree imports, in functions too.

    Imports under ``TYPE_CHECKING`` and relative imports are left out.
    """
    for node in statements(tree, typing=False):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


@functools.cache
def imports_of(path):
    return tuple(imported(tree_of(path)))


def offenders(folder, forbidden, allowed=()):
    """Returns a message for every import of a ``forbidden`` module in a folder's files.

    Files in ``allowed`` are not checked. A message is like ``file:line imports name``.
    """
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = path.relative_to(ROOT)
        if any(place.is_relative_to(a) for a in allowed):
            continue
        for name, line in imports_of(path):
            if any(name == f or name.startswith(f + ".") for f in forbidden):
                found.append(f"{place.as_posix()}:{line} imports {name}")
    return found


def test_neither_imports_nor_public_names_bring_wgpu_or_the_compiler():
    found = modules_after(
        "import cml_engine.scheduler",
        "import cml_engine",
        "import cml_engine.nnef",
        "import cml_engine.tools.cli",
        "[getattr(cml_engine, n) for n in cml_engine.__all__ if n != 'Gpu']",
    )
    brought = {statement: names & {"wgpu", "slangpy"} for statement, names in found.items()}
    assert not any(brought.values()), brought
    assert "numpy" in found["import cml_engine.scheduler"], "what is imported is seen"


def test_the_package_and_the_help_are_imported_fast():
    """The package imports nothing, and the help none of the packages that do the work."""
    script = "import json, sys; print(json.dumps([n for n in sys.modules if 'cml_engine.' in n]))"
    found = {}
    for name, statement in (
        ("package", "import cml_engine, sys; assert 'numpy' not in sys.modules"),
        ("help", "from cml_engine.tools.cli.main import parser; parser().format_help()"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"{statement}\n{script}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[name] = {module.split(".")[1] for module in json.loads(done.stdout)}
    assert found["package"] == {"lazy"}
    assert found["help"] <= {"errors", "io", "ir", "lazy", "tools"}


def test_optional_packages_are_imported_only_where_used():
    apart = {
        "import cml_engine.panel": {"imgui_bundle"},
        "import cml_engine.tools.cli.main, cml_engine.distributed": {"dask", "distributed", "zarr"},
        "import cml_engine.runtime.session.onnxruntime_program": {"onnxruntime", "onnx"},
        "import cml_engine.demo_game.game": {"imgui_bundle"},
    }
    found = modules_after(*apart)
    brought = {statement: found[statement] & names for statement, names in apart.items()}
    assert not any(brought.values()), brought
    assert "wgpu" not in found[next(iter(apart))]


def test_imported_packages_are_declared():
    """A package that only another one brings goes when that one no longer needs it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in listed}
    # distributions whose name is not that of the module that is imported
    names = {"PIL": "pillow", "direct": "panda3d", "google_crc32c": "google-crc32c",
             "imgui_bundle": "imgui-bundle"}  # fmt: skip
    known = sys.stdlib_module_names | {"cml_engine", "examples"}
    missing = {
        f"{path.relative_to(ROOT).as_posix()}:{line} imports {name}"
        for folder in ("cml_engine", *LINKED, "examples")
        for path in (ROOT / folder).rglob("*.py")
        for name, line in imports_of(path)
        if (top := name.partition(".")[0]) not in known
        and names.get(top, top).lower() not in declared
    }
    assert not missing


def test_slangpy_is_never_imported():
    """No module imports slangpy, which would open a device; only its shared library is used."""
    assert [line for p in PACKAGES for line in offenders(p, ("slangpy",))] == []


def test_only_the_gpu_folder_imports_wgpu():
    assert [line for p in PACKAGES for line in offenders(p, ("wgpu",), WGPU_PLACES)] == []


def test_dependencies_run_one_way():
    # some commands run frames, and their facts predict these; the package re-exports names
    above = (
        Path("cml_engine/tools/cli/commands"),
        Path("cml_engine/tools/report"),
        Path("cml_engine/tools/selftest"),
        Path("cml_engine/__init__.py"),
    )
    scheduler, demo = "cml_engine.scheduler", "cml_engine.demo_game"
    assert offenders("cml_engine", (scheduler, demo), above) == []
    assert offenders("cml_engine/scheduler", ("wgpu", "numpy", demo, "cml_engine.gpu")) == []


def test_packages_import_only_packages_before_them():
    """No package of the engine imports one that comes later in ``PACKAGE_ORDER``.

    The table in docs/architecture.md has the same order.
    """
    for index, part in enumerate(PACKAGE_ORDER):
        later = tuple(f"cml_engine.{name}" for name in PACKAGE_ORDER[index + 1 :])
        assert offenders(f"cml_engine/{part}", later) == []
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert tuple(row.rstrip("/") for row in rows[: len(PACKAGE_ORDER)]) == PACKAGE_ORDER


def test_the_engine_has_only_the_packages_of_the_order():
    entries = {p.name for p in (ROOT / "cml_engine").iterdir()} - {"__pycache__", "py.typed"}
    modules = {"__init__.py", "__main__.py", "lazy.py", "integer.py", "testing.py"}
    assert entries == {*PACKAGE_ORDER, *LINKED, *modules}


@pytest.mark.parametrize("name", LINKED)
def test_a_folder_of_the_tree_is_a_part_of_the_package(name):
    link = ROOT / "cml_engine" / name
    assert link.is_dir() and link.resolve() == ROOT / name


@pytest.mark.parametrize("name", ("scheduler", "demo_game"))
def test_a_folder_of_the_tree_is_no_second_package(name):
    code = f"import {name}; from cml_engine import {name} as part; print({name} is part)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


def test_the_game_uses_public_names_only():
    """The demo game imports only public modules of the engine and of the scheduler."""
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"automodule:: (\S+)", api))
    inner = [
        line
        for line in offenders("cml_engine/demo_game", ("cml_engine",))
        if (name := line.rsplit(" ", 1)[1]) not in public
        and not name.startswith("cml_engine.demo_game")
    ]
    assert inner == []


#: dependencies of every installation that ship type information
TYPED = {"numpy", "PIL", "platformdirs", "rich"}
OURS = {"cml_engine", "benchmarks", "examples", "tests"}


def test_the_type_checker_needs_nothing_that_an_extra_installs():
    """Mypy's overrides list every foreign package that the checked files import and that has no
    types.

    Mypy therefore needs no package that only an extra installs.
    """
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    known = {name.removesuffix(".*") for rule in mypy["overrides"] for name in rule["module"]}
    foreign = {
        name.partition(".")[0]: path.name
        for folder in map(ROOT.joinpath, (*mypy["files"], *PACKAGES))
        for path in folder.rglob("*.py")
        for name, _ in imports_of(path)
    }
    assert "wgpu" in foreign
    unknown = foreign.keys() - known - TYPED - OURS - sys.stdlib_module_names
    assert {name: foreign[name] for name in unknown} == {}


# --- import cycles

#: packages without an import cycle; imports under TYPE_CHECKING count too
WITHOUT_CIRCLES = ("benchmarks", "cml_engine", "cml_engine/scheduler", "cml_engine/demo_game")


def module_graph(package):
    """Returns, for each module of a package, the set of the package's modules that it imports.

    Imports in functions and under ``TYPE_CHECKING`` count too.
    """
    sources = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        sources[".".join(parts).removesuffix(".__init__")] = path
    return {
        name: {m for m in named_modules(path, sources) if m != name}
        for name, path in sources.items()
    }


def named_modules(path, modules):
    """Yields those of ``modules`` that a file imports or from which it imports a name."""
    # a package with lazy names imports them when they are first used
    is_lazy = path.name == "__init__.py" and "lazy_names" in path.read_text(encoding="utf-8")
    for node in statements(tree_of(path), typing=not is_lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} is a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name in modules else node.module for name in inner} & {*modules}


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_modules_import_each_other_in_a_circle(package):
    graph = module_graph(package)
    assert any(graph.values())
    TopologicalSorter(graph).prepare()  # a CycleError names the modules


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import wgpu", ["wgpu"]),
        ("def f():\n    from wgpu.utils import x", ["wgpu.utils"]),
        ("if TYPE_CHECKING:\n    import wgpu", []),
        ("from . import wgpu", []),
    ],
)
def test_the_rule_can_fail(source, expected):
    assert [name for name, _ in imported(ast.parse(source))] == expected
