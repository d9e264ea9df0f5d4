"""Who may import whom. These rules keep everything but the backends testable without a GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cml_engine", "scheduler", "shaders_hlsl", "demo_game")
#: the only places that may name wgpu, at whatever depth of a function
WGPU_PLACES = (Path("cml_engine/gpu"), Path("demo_game"))


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh Python has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def imported(source: str) -> Iterator[tuple[str, int]]:
    """Every module that the source imports, at any depth, with its line; what only the type
    checker sees is left out."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
        pending.extend(ast.iter_child_nodes(node))


def offenders(folder: str, forbidden: tuple[str, ...], allowed: tuple[Path, ...] = ()) -> list[str]:
    """``file:line imports module`` for every import of a forbidden module outside ``allowed``."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = path.relative_to(ROOT)
        if any(place.is_relative_to(a) for a in allowed):
            continue
        for name, line in imported(path.read_text(encoding="utf-8")):
            if any(name == f or name.startswith(f + ".") for f in forbidden):
                found.append(f"{place.as_posix()}:{line} imports {name}")
    return found


@pytest.mark.parametrize("module", ["cml_engine", "cml_engine.cli", "cml_engine.nnef", "scheduler"])
def test_import_brings_neither_wgpu_nor_the_compiler(module: str) -> None:
    assert not modules_after(f"import {module}") & {"wgpu", "slangpy"}


def test_public_names_bring_neither_wgpu_nor_the_compiler() -> None:
    statement = (
        "import cml_engine; [getattr(cml_engine, n) for n in cml_engine.__all__ if n != 'Gpu']"
    )
    assert not modules_after(statement) & {"wgpu", "slangpy"}


def test_scheduler_brings_neither_wgpu_nor_numpy() -> None:
    assert not modules_after("import scheduler") & {"wgpu", "numpy"}


def test_slangpy_is_never_imported() -> None:
    """Only the shared library inside its wheel is used: importing it would open a device."""
    assert [line for p in PACKAGES for line in offenders(p, ("slangpy",))] == []


def test_only_the_gpu_folder_imports_wgpu() -> None:
    assert [line for p in PACKAGES for line in offenders(p, ("wgpu",), WGPU_PLACES)] == []


def test_dependencies_run_one_way() -> None:
    above = (Path("cml_engine/cli/frames.py"),)  # the commands that know of frames
    assert offenders("cml_engine", ("scheduler", "demo_game"), above) == []
    assert offenders("scheduler", ("wgpu", "numpy", "demo_game", "cml_engine.gpu")) == []
    assert offenders("shaders_hlsl", ("cml_engine", "scheduler", "demo_game")) == []


def test_graph_and_plan_know_no_gpu() -> None:
    """Everything from the text to the plan is data: it needs no device."""
    backends = ("cml_engine.gpu", "cml_engine.session")
    for part in ("nnef", "ops", "passes", "planning"):
        assert offenders(f"cml_engine/{part}", backends) == []


def test_the_game_uses_public_names_only() -> None:
    """It is the engine's first customer: what it needs, any game can have."""
    modules = ("files.atomic_write", "memory", "nnef", "ranges")
    public = {"cml_engine", "scheduler", *(f"cml_engine.{name}" for name in modules)}
    inner = [
        line
        for line in offenders("demo_game", ("cml_engine", "scheduler"))
        if line.rsplit(" ", 1)[1] not in public
    ]
    assert inner == []


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import wgpu", ["wgpu"]),
        ("def f():\n    from wgpu.utils import x", ["wgpu.utils"]),
        ("if TYPE_CHECKING:\n    import wgpu", []),
        ("from . import wgpu", []),
    ],
)
def test_the_rule_can_fail(source: str, expected: list[str]) -> None:
    assert [name for name, _ in imported(source)] == expected
