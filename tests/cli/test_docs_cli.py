"""Tests of ``cml docs``, and of the pages that messages and help name."""

import ast
import re

import pytest

from cml_engine.tools.cli.commands.installation import documentation_pages
from cml_engine.tools.cli.main import parser
from tests.fixtures.pages import ROOT

PAGES = documentation_pages()


def test_docs_lists_all_pages(run_cml):
    lines = run_cml("docs").out.splitlines()
    assert [line.split()[0] for line in lines] == list(PAGES)
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == {*PAGES, "index"}
    assert all(18 < len(line) <= 100 for line in lines)


@pytest.mark.parametrize("given", ["frame_budget", "frame_budget.md", "docs/frame_budget.md"])
def test_a_page_is_printed(given, run_cml):
    assert run_cml(f"docs {given}").out.startswith("# The frame budget\n")


def test_an_unknown_page_has_a_similar_one(refused):
    said = refused("docs frame_buget")
    assert "there is no page 'frame_buget'; did you mean 'frame_budget'" in said


def test_a_page_opens(monkeypatch, run_cml):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run_cml("docs faster --open")
    assert opened == [PAGES["faster"].as_uri()]


def messages():
    """Yields (file, text) for every string of the packages that is not a docstring.

    Only files that contain "docs" are read.
    """
    for package in ("cml_engine", "scheduler", "demo_game"):
        for file in (ROOT / package).rglob("*.py"):
            if "docs" not in (source := file.read_text(encoding="utf-8")):
                continue
            tree = ast.parse(source)
            said = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            for node in ast.walk(tree):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text and id(node) not in said:
                    yield file.relative_to(ROOT).as_posix(), node.value


def test_messages_cite_existing_pages():
    """Messages name no file in ``docs/``, and only existing pages of ``cml docs``."""
    wrong = [(file, text) for file, text in messages() if re.search(r"docs/\w+\.md", text)]
    assert wrong == []
    named = {m for _, text in messages() for m in re.findall(r"cml docs (\w+)", text)}
    assert len(named) >= 8
    assert named <= PAGES.keys()


def test_help_cites_existing_pages():
    (choices,) = (a.choices for a in parser()._actions if a.choices)
    shown = " ".join(" ".join(made.format_help().split()) for made in choices.values())
    assert set(re.findall(r"cml docs (\w+)", shown)) <= PAGES.keys()
