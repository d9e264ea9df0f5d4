"""Tests of Python hosts with the wheel alone: CPU session, frames, cooked file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

HOSTS = Path(__file__).with_name("hosts")
MODEL = HOSTS / "twice.nnef"


def test_a_session_on_the_cpu_needs_no_compiler(environment, tmp_path):
    output = environment.run("python", HOSTS / "cpu_session.py", cwd=tmp_path).stdout
    assert output == "('large', (1, 3, 32, 32), np.float32(4.0))\n"


def test_a_network_is_mapped_over_files(bake_environment, tmp_path):
    """The store names its inputs, and a repetition with nothing to do starts no workers."""
    (tmp_path / "in").mkdir()
    for i in range(4):
        np.save(tmp_path / f"in/{i}.npy", np.full((1, 3, 16, 16), i, np.float32))
    words = ("cml", "map", MODEL, "--inputs", "in/*.npy", "-o", "out.zarr", "--backend", "cpu")
    first = bake_environment.run(*words, "--workers", "1", cwd=tmp_path)
    assert "4 of 4 inputs (4 made" in first.stdout
    again = bake_environment.run(*words, "--workers", "1", cwd=tmp_path)
    assert "4 of 4 inputs (0 made" in again.stdout and "tcp://" not in again.stdout
    code = "import zarr; s = zarr.open('out.zarr'); print(*s['input_names'][:], *s.array_keys())"
    printed = bake_environment.run("python", "-c", code, cwd=tmp_path).stdout.split()
    assert printed[:4] == [f"{tmp_path}/in/{i}.npy" for i in range(4)]
    other = bake_environment.run(*words, "--shape", "1,3,8,8", cwd=tmp_path, check=False)
    assert other.returncode == 2 and "was made with another shape" in other.stderr


@pytest.mark.gpu
def test_a_model_runs_in_frames(compiler_environment, tmp_path):
    output = compiler_environment.run("python", HOSTS / "frames.py", MODEL, cwd=tmp_path).stdout
    assert output == "done (1, 3, 32, 32) 4.0\n"


@pytest.mark.gpu
def test_a_cooked_file_runs_in_frames_without_the_compiler(environment, cooked, tmp_path):
    output = environment.run("python", HOSTS / "frames.py", cooked, cwd=tmp_path).stdout
    assert output == "done (1, 3, 32, 32) 4.0\n"
    missing = environment.run("python", "-c", "import slangpy", cwd=tmp_path, check=False)
    assert missing.returncode == 1


@pytest.mark.gpu
def test_a_user_with_a_card_proves_the_engine_on_it(compiler_environment, tmp_path):
    parts = [word for part in ("relu", "digests", "textures", "loss") for word in ("--only", part)]
    done = compiler_environment.run("cml", "selftest", "--quick", *parts, cwd=tmp_path)
    assert "no check failed" in done.stdout
    assert json.loads((tmp_path / "cml-selftest.json").read_text())["ok"]


@pytest.mark.gpu
def test_a_game_builds_validates_and_reloads_an_operator_of_its_own(compiler_environment, tmp_path):
    output = compiler_environment.run("python", HOSTS / "own_operator.py", cwd=tmp_path).stdout
    assert output.split() == ["True", "3.0", "5.0", "14.0"]
