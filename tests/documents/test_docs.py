"""Tests that the documents describe the tree, the command line and the operators correctly."""

import doctest
import re
from collections import Counter

import pytest

from benchmarks import devices
from cml_engine.compiler.planning.plan_graph import PLAN_STAGES
from cml_engine.tools import cli
from tests.fixtures.pages import ROOT, examples
from tests.proofs import onnx_nodes
from tests.reference.calls import SIGNATURES

FOLDERS = ("docs", "tests", "players", "examples", "demo_game")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
PACKAGES = ("cml_engine", "scheduler", "shaders_hlsl", "benchmarks", *FOLDERS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_paths_exist(document):
    named = re.findall(r"`([\w./]+)`", document.read_text(encoding="utf-8"))
    paths = {name for name in named if name.split("/")[0] in PACKAGES and "/" in name}
    assert sorted(name for name in paths if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_example_is_python(document):
    for text in examples(document):
        compile(text, str(document), "exec")


def test_the_values_on_the_way_to_a_frame_print_as_on_their_page():
    found = doctest.testfile(str(ROOT / "docs/design/graph.md"), module_relative=False)
    assert found.failed == 0 and found.attempted > 10


def test_the_stages_of_planning_are_those_of_the_table():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| stage |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == [name for name, _, _ in PLAN_STAGES]


def test_the_flags_of_a_browser_are_those_of_our_tests():
    page = (ROOT / "docs/ship_it.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^chromium .*?```", page, re.MULTILINE | re.DOTALL)
    given = set(re.findall(r"--[\w-]+(?:=\w+)?", command))
    tested = (ROOT / "tests/players/web/browser.js").read_text(encoding="utf-8")
    flags = set(re.findall(r'"(--[\w-]+(?:=\w+)?)"', tested))
    assert given <= flags and len(given) == 8
    graphics = {f for f in flags if re.search("gpu|vulkan|angle", f, re.IGNORECASE)}
    assert graphics <= given


def test_readme_names_commands_that_exist(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^cml (\w+)", text, re.MULTILINE):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0, command


def test_the_table_of_devices_is_that_of_their_reports():
    """The page of devices is what ``python -m benchmarks.devices --write`` makes of the reports."""
    reports = devices.stored_reports()
    assert reports and devices.PAGE.read_text(encoding="utf-8") == devices.page(reports)


def test_readme_is_short_and_its_example_shorter():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
    (printed,) = examples("README.md")
    assert len([line for line in printed.splitlines() if line.strip()]) <= 13


def test_every_folder_of_tests_is_explained():
    text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE))


def test_documented_servers_listen_on_one_address():
    """Commands of servers in documents and sources bind to 127.0.0.1, since they have no
    authentication."""
    sources = [*DOCUMENTS, *(p for top in PACKAGES for p in (ROOT / top).rglob("*.py"))]
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


def test_every_compared_feature_names_a_test_or_a_reason():
    text = (ROOT / "docs/design/features_compared.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    features = [row for row in rows if row[0] != "its feature"]
    untested = [row for row in features if not row[-1].startswith("`tests/")]
    assert len(features) > 100
    assert [
        row for row in untested if not re.match(r"no\b|none\b|inference only|one ", row[1])
    ] == []


def test_the_table_of_operators_is_that_of_the_importer():
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.operator_table() in text, "run python -m tests.proofs.onnx_nodes --write"
    assert onnx_nodes.operator_table().count("\n") > 200


def test_the_table_of_operators_is_that_of_the_exporter():
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.export_table() in text, "run python -m tests.proofs.onnx_nodes --write"
    assert Counter(map(onnx_nodes.class_of, SIGNATURES)) == {
        onnx_nodes.EXPORTED: 119,
        onnx_nodes.FUNCTION: 25,
        onnx_nodes.EXPANDED: 42,
        onnx_nodes.GRAPH: 4,
    }
