"""Tests of every command's help: a purpose, an example that runs, grouped options."""

import argparse
import importlib.util
import re
import shlex

import numpy as np
import pytest

from cml_engine.io.arrays import write_outputs
from cml_engine.tools import cli
from cml_engine.tools.cli.main import COMMAND_GROUPS, parser
from cml_engine.tools.cli.options import COMMANDS as DECLARED
from cml_engine.tools.cli.options import GROUPS
from tests.fixtures.models import write_model

(_SUBPARSERS,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
COMMANDS = _SUBPARSERS.choices
#: the network of the examples, as docs/your_model.md exports it from PyTorch
RELU = """version 1.0;
graph small(image) -> (enlarged)
{
    image = external<scalar>(shape = [1, 3, 64, 64]);
    enlarged = relu(image);
}
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_one_line_an_example_and_titled_options(command):
    found, made = DECLARED[command], COMMANDS[command]
    assert len(found.help.splitlines()) == 1
    assert found.group in COMMAND_GROUPS
    shown = made.format_help()
    assert shown.startswith(f"usage: cml {command}") and f"example:\n  {found.example}" in shown
    assert {group.title for group in made._action_groups if group._group_actions} <= set(GROUPS)
    assert [a.dest for a in made._actions if not a.help] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_a_command_line_of_its_command(command):
    words = shlex.split(DECLARED[command].example)
    assert words[:2] == ["cml", command]
    assert parser().parse_args(words[1:]).command_name == command


def test_cml_help_lists_every_command_in_its_group(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert sorted(re.findall(r"^  ([a-z]+) +[A-Z]", shown, re.MULTILINE)) == sorted(COMMANDS)
    assert all(f"\n{group}:\n" in shown for group in COMMAND_GROUPS)
    assert max(map(len, shown.splitlines())) <= 100


def test_every_command_that_plans_for_a_gpu_takes_an_adapter():
    """Every command with ``--half`` has ``--adapter``, except ``export``.

    A web page is for the browser's GPU, and an ONNX file for none.
    """
    options = {name: made.format_help() for name, made in COMMANDS.items()}
    lacking = [n for n, shown in options.items() if "--half" in shown and "--adapter" not in shown]
    assert lacking == ["export"]


@pytest.mark.parametrize("command", ["info", "run", "validate", "simulate"])
def test_unknown_adapter_is_named(command, tmp_path, refused):
    model = write_model(tmp_path / "m.nnef", RELU)
    more = {"run": ["--random-inputs"], "info": ["--budget-ms", "2"]}.get(command, [])
    said = refused(command, model, "--adapter", "no such GPU", *more)
    assert "no GPU is called 'no such GPU'" in said


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the examples in the help name."""
    folder = tmp_path_factory.mktemp("examples")
    assert cli.main(["example", str(folder)]) == 0
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
    code = cli.main(shlex.split(DECLARED[command].example)[1:])
    assert code == 0, capsys.readouterr().err
