"""Tests of the example programs that ``cml example`` lists and copies."""

import ast
import re

import pytest

from cml_engine.tools.example_programs import example_programs, is_runnable, program_files
from tests.fixtures.pages import ROOT


def imported_examples(path):
    """Returns the modules of ``examples`` that a file imports, as paths below its folder."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("examples"):
            yield node.module.replace(".", "/")
        for name in node.names if isinstance(node, ast.Import) else ():
            assert not name.name.startswith("examples"), "program_files finds `from` only"


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", example_programs())
def test_a_copy_has_all_that_it_imports(name, workplace, run_cml):
    printed = run_cml("example", name).out
    assert set(printed.split()) >= set(program_files(name))
    assert (f"python -m examples.{name}" in printed) == is_runnable(name)
    for path in (workplace / "examples").rglob("*.py"):
        assert path.read_bytes() == (ROOT / path.relative_to(workplace)).read_bytes()
        for module in imported_examples(path):
            place = workplace / module
            assert place.with_suffix(".py").is_file() or place.is_dir(), module


def test_pages_that_run_a_program_say_how_to_copy_it():
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name in set(re.findall(r"python -m examples\.(\w+)", text)) - {"NAME"}:
            assert f"cml example {name}" in text, (page.name, name)
            assert name in example_programs()


def test_the_list_describes_every_program_in_one_line(run_cml):
    lines = run_cml("example", "--list").out.splitlines()
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/__init__.py")}
    assert {line.split()[0] for line in lines} == folders | {"network"}
    assert all(len(line) <= 100 and len(line.split()) > 3 for line in lines)


def test_programs_share_modules_and_changed_files_stay(workplace, run_cml, refused):
    run_cml("example", "plain_loop", "games")
    assert "plain_loop" not in run_cml("example", "pygfx_host", "games").out.split("\n")[0]
    changed = workplace / "games/examples/plain_loop/cartoon.py"
    changed.write_text("# mine\n")
    assert "cartoon.py" in refused("example", "plain_loop", "games")
    assert changed.read_text() == "# mine\n"
    run_cml("example", "plain_loop", "games", "--overwrite")
    assert changed.read_text() != "# mine\n"


def test_an_unknown_name_copies_nothing(workplace, refused):
    assert "there is no example 'plain_lop'; did you mean 'plain_loop'" in refused(
        "example", "plain_lop"
    )
    assert list(workplace.iterdir()) == []
