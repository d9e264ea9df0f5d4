"""Tests that the documents describe the tree and the command line correctly."""

import re
from pathlib import Path

import pytest

from cml_engine.tools import cli

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        ROOT / "tests/README.md",
        ROOT / "SECURITY.md",
    ]
)
TOP = ("cml_engine/", "scheduler/", "shaders_hlsl/", "demo_game/", "tests/", "examples/", "docs/")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_paths_exist(document):
    named = re.findall(r"`([\w./]+)`", document.read_text(encoding="utf-8"))
    paths = {name for name in named if name.startswith(TOP)}
    assert sorted(name for name in paths if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_readme_names_commands_that_exist(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^cml (\w+)", text, re.MULTILINE):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0, command


def test_readme_example_is_python_of_at_most_ten_lines():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(example, "README.md", "exec")
    assert len(example.splitlines()) <= 10


def test_every_folder_of_tests_is_explained():
    text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE))


def test_documented_servers_listen_on_one_address():
    """Documented servers, which have no authentication, listen on 127.0.0.1 only."""
    sources = [*DOCUMENTS, *(p for top in TOP for p in (ROOT / top).rglob("*.py"))]
    lines = [line for p in sources for line in p.read_text(encoding="utf-8").splitlines()]
    bound = {
        r"python -m http\.server": "--bind 127.0.0.1",
        r"\$ dask scheduler": "--dashboard-address 127.0.0.1:",
        r"\$ dask worker": "--no-dashboard",
    }
    for server, option in bound.items():
        found = [line for line in lines if re.search(server, line) and "re.search" not in line]
        assert [line for line in found if option not in line and 'r"' not in line] == []
        assert any(option in line for line in found), server
