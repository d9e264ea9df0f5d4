"""Tests of ``cml cook``, and of cooked files as the model of every command."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.gpu.shaders import compilers
from cml_engine.tools.cli import main
from cml_engine.tools.cli.commands import ship
from cml_engine.tools.cli.common import load_model
from cml_engine.tools.cli.main import parser
from tests.fixtures.cooked import changed, small_inputs, small_model

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the model ``small.nnef``, its cooked file ``small.cml``, and an input."""
    made = tmp_path_factory.mktemp("cook")
    cml.save(small_model(), made / "small.nnef")
    np.save(made / "image.npy", small_inputs()["image"])
    assert main(["cook", str(made / "small.nnef"), "-o", str(made / "small.cml")]) == 0
    return made


def refused(capsys, *words) -> str:
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def test_cook_says_what_it_wrote(folder, capsys, tmp_path):
    file = tmp_path / "net.cml"
    assert main(["cook", str(folder / "small.nnef"), "-o", str(file), "--devices", "portable"]) == 0
    out = capsys.readouterr().out
    assert f"{file}: 0.0" in out and "portable: 4 steps" in out and "software" not in out


def test_check_runs_the_golden_pair(folder, capsys):
    assert main(["cook", "--check", str(folder / "small.cml"), "--backend", "cpu"]) == 0
    assert "as it was cooked" in capsys.readouterr().out


def test_check_fails_where_results_are_others(folder, capsys, tmp_path):
    def change(content):
        content[-3] ^= 0x40  # of the last output's last number

    wrong = tmp_path / "wrong.cml"
    wrong.write_bytes(changed((folder / "small.cml").read_bytes(), "golden", change))
    assert main(["cook", str(wrong), "--check", "--backend", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "sums: " in out and "DIFFERS" in out and "not as it was cooked" in out


def test_info_shows_it(folder, capsys):
    assert main(["info", str(folder / "small.cml"), "--plan"]) == 0
    out = capsys.readouterr().out
    for words in ("cooked small", "image", "software", "WGSL", "golden", "plan for portable"):
        assert words in out
    assert main(["info", str(folder / "small.cml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["profile"] for p in found["profiles"]] == ["discrete", "portable", "software"]


def test_a_cooked_file_runs_as_its_model_does(folder, capsys, tmp_path):
    results = []
    for name in ("small.nnef", "small.cml"):
        out = tmp_path / f"{name}.npy"
        words = ["-i", f"image={folder / 'image.npy'}", "-o", f"scaled={out}", "--backend", "cpu"]
        assert main(["run", str(folder / name), *words]) == 0
        results.append(np.load(out))
    np.testing.assert_array_equal(*results)
    assert main(["rank", str(folder / "small.cml"), "--backend", "cpu", "--runs", "2"]) == 0
    assert "conv" in capsys.readouterr().out


def test_only_the_command_line_makes_a_file_trusted(folder):
    """A cooked file's kernels are trusted only with ``--trusted``.

    The file's own claim has no effect. Every command that loads a model has the option, except
    ``convert``.
    """
    file = folder / "small.cml"
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    for name, command in commands.items():
        options = {option for action in command._actions for option in action.option_strings}
        assert ("--trusted" in options) == ("--weights" in options and name != "convert"), name
    for words, trusted in (((), False), (("--trusted",), True)):
        made = load_model(parser().parse_args(["info", str(file), *words])).ready
        assert {kernel.kernel.trusted for kernel in made.kernels.values()} == {trusted}


@pytest.mark.gpu
def test_frames_and_validate_take_it(folder, capsys, gpu):
    assert main(["validate", str(folder / "small.cml")]) == 0
    assert "all operators agree" in capsys.readouterr().out
    assert main(["cook", "--check", str(folder / "small.cml"), "--backend", "gpu"]) == 0


def test_what_cannot_be_is_refused_by_name(folder, capsys, tmp_path):
    model, file = folder / "small.nnef", folder / "small.cml"
    assert "-o net.cml" in refused(capsys, "cook", model)
    assert "discrete" in refused(capsys, "cook", model, "-o", tmp_path / "x.cml", "--devices", "pc")
    assert "network of floats" in refused(
        capsys, "cook", model, "-o", tmp_path / "x.cml", "--integer"
    )
    assert "cooked already" in refused(capsys, "cook", file, "-o", tmp_path / "x.cml")
    assert "leave --shape out" in refused(capsys, "info", file, "--shape", "image=1,3,8,8")
    assert "is cooked: save the model" in refused(capsys, "convert", file, tmp_path / "x.nnef")
    (tmp_path / "broken.cml").write_bytes(file.read_bytes()[:-9])
    assert "damaged" in refused(capsys, "info", tmp_path / "broken.cml")
    assert "No such file" in refused(capsys, "info", tmp_path / "nothing.cml")
    assert "no cooked file" in refused(capsys, "cook", "--check", model / "graph.nnef")
    nowhere = tmp_path / "no" / "folder"
    nowhere.parent.write_text("a file")
    assert "folder" in refused(capsys, "cook", model, "-o", nowhere)
    assert not (tmp_path / "x.cml").exists()


def test_cook_says_what_hosts_refuse_by_default(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(ship, "CookedLimits", lambda: cml.CookedLimits(steps=2))
    file = tmp_path / "net.cml"
    assert main(["cook", str(folder / "small.nnef"), "-o", str(file), "--devices", "portable"]) == 0
    assert "4 steps: a host accepts 2 of a file" in capsys.readouterr().out
