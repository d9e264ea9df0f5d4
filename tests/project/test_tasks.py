"""Tests of ``tasks.py``: the state that it caches, and its messages about missing tools."""

import subprocess
import sys
from pathlib import Path

import pytest

import tasks


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """Makes ``tasks`` use an empty virtual environment; returns a list of the commands that it
    calls.

    The commands are recorded and not run.
    """
    calls = []
    monkeypatch.setattr(tasks, "VENV", tmp_path)
    monkeypatch.setattr(tasks, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(tasks, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(tasks, "probe_gpu", lambda: "some GPU")

    def call(command, quiet=False, env=None):
        calls.append([str(word) for word in command])
        tasks.PYTHON.touch()
        return 0

    monkeypatch.setattr(tasks, "call", call)
    return calls


def test_a_bake_needs_its_extra_and_no_arguments(venv, monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks, "fingerprint", lambda: "same")
    assert tasks.main(["bake"]) == 0
    assert [call[-1] for call in venv if "install" in call] == [".[compiler,bake]"]
    assert venv[-1][1:] == ["-m", "demo_game.bake", *tasks.BAKED]
    assert (tmp_path / "out").is_dir()  # the folder of the planet
    assert tasks.main(["bake", "--region", "0:1,0:1"]) == 0
    assert venv[-1][1:] == ["-m", "demo_game.bake", "--region", "0:1,0:1"]


def test_text_files_that_git_wrote_for_links_become_links(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    for name in ("cml_engine", *tasks.LINKED):
        (tmp_path / name).mkdir()
    for name in tasks.LINKED:
        (tmp_path / "cml_engine" / name).write_text(f"../{name}")
    for _ in range(2):
        tasks.link_packages()
        for name in tasks.LINKED:
            assert (tmp_path / "cml_engine" / name).resolve() == tmp_path / name


def test_optional_extra_that_fails_to_install_is_skipped(venv, monkeypatch, capsys):
    tried = []

    def call(command, **_):
        tried.append(command[-1])
        return int("oracles" in command[-1])

    monkeypatch.setattr(tasks, "call", call)
    tasks.install(["", "compiler", "oracles", "game"])
    assert tried == [".[compiler,oracles,game]", ".[compiler]", ".[oracles]", ".[game]"]
    printed = capsys.readouterr().out
    assert "going on without 'oracles'" in printed
    assert "without 'game'" not in printed


def test_failing_pip_is_one_readable_message(venv, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "call", lambda command, **_: int("install" in command))
    assert tasks.main(["test"]) == 1
    notice = capsys.readouterr().err
    assert notice.startswith("error: pip could not install this project")
    assert "network" in notice
    assert "Traceback" not in notice


def test_missing_gpu_is_reported_with_next_step(venv, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "probe_gpu", lambda: tasks.NONE)
    monkeypatch.setattr(tasks, "install_debian", lambda what, packages: False)
    assert tasks.find_gpu() == tasks.NONE
    printed = capsys.readouterr().out
    assert "going on with the CPU" in printed
    assert tasks.driver_advice() in printed


def test_unknown_command_lists_the_commands(capsys):
    assert tasks.main(["dmo"]) == 2
    assert "demo" in capsys.readouterr().err


@pytest.mark.parametrize("name", tasks.COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_command_installs_nothing(name, flag, venv, capsys, tmp_path):
    assert tasks.main([name, flag]) == 0
    printed = capsys.readouterr().out
    assert f"usage: python tasks.py {name}" in printed and tasks.COMMANDS[name].__doc__ in printed
    assert ("not installed yet" in printed) == (name in tasks.PROGRAMS)
    assert venv == [] and not list(tmp_path.iterdir())


def test_help_of_an_installed_program_has_its_options(monkeypatch, capsys):
    monkeypatch.setattr(tasks, "PYTHON", Path(sys.executable))
    assert tasks.main(["prove", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "python -m tests.proofs:" in printed and "--cold" in printed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["lint", "scheduler"], 2, "'lint' takes no arguments: leave scheduler out"),
        (["cook", "x", "y"], 2, "'cook' takes no arguments: leave x y out"),
        (["setup", "games"], 1, "no extra is called 'games': choose among compiler, game"),
    ],
)
def test_arguments_that_a_command_does_not_take(words, code, said, venv, capsys):
    assert tasks.main(words) == code
    assert said in capsys.readouterr().err and venv == []


def test_tasks_need_only_the_standard_library():
    """``tasks.py help`` lists every command in a Python without site-packages (``-I -S``)."""
    command = [sys.executable, "-I", "-S", str(tasks.ROOT / "tasks.py"), "help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, task in tasks.COMMANDS.items():
        assert f"{name:8} {task.__doc__}" in done.stdout
