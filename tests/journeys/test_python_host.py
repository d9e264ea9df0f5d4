"""Tests of Python hosts with the wheel alone: CPU session, frames, cooked file."""

from __future__ import annotations

from pathlib import Path

import pytest

HOSTS = Path(__file__).with_name("hosts")
MODEL = HOSTS / "twice.nnef"


def test_a_session_on_the_cpu_needs_no_compiler(environment, tmp_path):
    output = environment.run("python", HOSTS / "cpu_session.py", cwd=tmp_path).stdout
    assert output == "('large', (1, 3, 32, 32), np.float32(4.0))\n"


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
