"""Tests of every command's help, and of the lists of cml ops and cml docs."""

import argparse
import ast
import importlib.util
import re
import shlex

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.io.arrays import write_outputs
from cml_engine.nnef.expansion.signatures import EXTENSIONS, STDLIB
from cml_engine.tools import cli
from cml_engine.tools.cli.commands.installation import documentation_pages
from cml_engine.tools.cli.main import COMMAND_GROUPS, parser
from cml_engine.tools.cli.options import COMMANDS as DECLARED
from cml_engine.tools.cli.options import GROUPS
from cml_engine.tools.report.operator_support import operator_doc, operator_text
from tests.fixtures.operators import declare
from tests.fixtures.pages import ROOT
from tests.players.deno import need_core

(_SUBPARSERS,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
COMMANDS = _SUBPARSERS.choices


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_one_line_an_example_and_titled_options(command):
    found, made = DECLARED[command], COMMANDS[command]
    assert len(found.help.splitlines()) == 1
    assert found.group in COMMAND_GROUPS
    shown = made.format_help()
    assert shown.startswith(f"usage: cml {command}") and f"example:\n  {found.example}" in shown
    assert {group.title for group in made._action_groups if group._group_actions} <= set(GROUPS)
    assert [a.dest for a in made._actions if not a.help] == []


def test_cml_help_lists_every_command_in_its_group(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert sorted(re.findall(r"^  ([a-z]+) +[A-Z]", printed, re.MULTILINE)) == sorted(COMMANDS)
    assert all(f"\n{group}:\n" in printed for group in COMMAND_GROUPS)
    assert max(map(len, printed.splitlines())) <= 100


def test_every_command_that_plans_for_a_gpu_takes_an_adapter():
    """Every command with ``--half`` has ``--adapter``, except ``export``.

    A web page is for the browser's GPU, and an ONNX file for none.
    """
    options = {name: made.format_help() for name, made in COMMANDS.items()}
    lacking = [n for n, shown in options.items() if "--half" in shown and "--adapter" not in shown]
    assert lacking == ["export"]


@pytest.mark.parametrize("command", ["info", "run", "validate", "simulate"])
def test_unknown_adapter_is_named(command, workplace, refused):
    more = {"run": "--random-inputs", "info": "--budget-ms 2"}.get(command, "")
    message = refused(f"{command} {workplace}/enlarge.onnx {more} --adapter", "no such GPU")
    assert "no GPU is called 'no such GPU'" in message


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the examples in the help name, with a network of one conv.

    The network that ``cml example`` writes has tests in tests/examples/test_example_network.py.
    """
    folder = tmp_path_factory.mktemp("examples")
    net = cml.GraphBuilder("enlarge")
    image = net.input("image", [1, 3, 64, 64])
    conv = net.conv(image, np.full((3, 3, 3, 3), 0.1, np.float32), 0.0)
    cml.save(net.graph(enlarged=net.relu(conv)), folder / "enlarge.onnx")
    pixels = np.random.default_rng(1).random((1, 3, 64, 64), np.float32)
    write_outputs({"image": folder / "photo.png"}, {"image": pixels})
    np.savez(folder / "samples.npz", image=np.repeat(pixels, 8, axis=0))
    (folder / "tiles").mkdir()
    np.save(folder / "tiles/0.npy", pixels)
    return folder


@pytest.fixture
def _workers_in_this_process(monkeypatch):
    """Lets a cluster of one's own have its workers in threads, which start at once."""
    if importlib.util.find_spec("distributed"):
        import distributed

        start = distributed.LocalCluster
        in_threads = {"processes": False, "host": None}
        monkeypatch.setattr(distributed, "LocalCluster", lambda **o: start(**{**o, **in_threads}))


@pytest.mark.usefixtures("_workers_in_this_process", "gpu")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_runs(command, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    if command == "export":
        need_core()
    words = shlex.split(DECLARED[command].example)[1:]
    assert cli.main(words) == 0, capsys.readouterr().err


PAGE = ROOT / "docs/operators.md"
NAMES = [*STDLIB.fragments, *EXTENSIONS.fragments]


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_a_description(name):
    doc = operator_doc(name)
    assert doc.endswith(".") and len(doc) >= 3
    assert "made by the engine" not in doc
    shown = operator_text(name)
    assert f"signature  {name}(" in shown and f"meaning    {doc}" in shown and "runs  " in shown


def test_operators_page_has_the_same_descriptions():
    """docs/operators.md has the same description of every operator as ``cml ops``.

    ``python -m tests.proofs.operator_calls`` writes the page.
    """
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| [a-z]", PAGE.read_text("utf-8"), re.MULTILINE))
    assert rows == {name: operator_doc(name).replace("|", "\\|") for name in NAMES}


def test_one_operator_shows_its_attributes_kernels_and_limits(run_cml):
    printed = run_cml("ops conv").out
    assert "attribute  groups: integer, default 1" in printed
    assert "conv/winograd.hlsl" in printed and "agree within" in printed


def test_an_expanded_operator_shows_its_body(run_cml):
    assert "mean, variance = moments(" in run_cml("ops layer_norm").out


def test_an_unknown_operator_has_similar_ones(refused):
    assert "no operator is called 'cnv'; did you mean 'conv'" in refused("ops cnv")


@pytest.mark.parametrize(
    ("doc", "says"), [("Twice the input.", "Twice the input."), ("", "give its cml.OpSpec a doc")]
)
@pytest.mark.usefixtures("own_operators")
def test_game_operator_has_a_description(doc, says):
    declare(signature="twice", cpu=lambda attrs, x: 2 * x, doc=doc)
    shown = operator_text("twice")
    assert f"meaning    {says}" in shown or says in shown
    assert "signature  twice(x: tensor<scalar>)" in shown and "refused on the GPU" in shown


PAGES = documentation_pages()


def test_docs_lists_all_pages(run_cml):
    lines = run_cml("docs").out.splitlines()
    assert [line.split()[0] for line in lines] == list(PAGES)
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == {*PAGES, "index"}
    assert all(18 < len(line) <= 100 for line in lines)
    assert run_cml("docs index").out.splitlines() == lines


@pytest.mark.parametrize("given", ["frame_budget", "frame_budget.md", "docs/frame_budget.md"])
def test_a_page_is_printed(given, run_cml):
    assert run_cml(f"docs {given}").out.startswith("# The frame budget\n")


def test_an_unknown_page_has_a_similar_one(refused):
    message = refused("docs frame_buget")
    assert "there is no page 'frame_buget'; did you mean 'frame_budget'" in message


def test_a_page_opens(monkeypatch, run_cml):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run_cml("docs faster --open")
    run_cml("docs index --open")
    run_cml("docs --open")
    index = (ROOT / "docs/index.md").as_uri()
    assert opened == [PAGES["faster"].as_uri(), index, index]


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
