"""Builds the C player and its tools with gcc, against wgpu-native from the wgpu wheel."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYER = ROOT / "players" / "c"
HERE = Path(__file__).parent
#: flags of every build
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-g")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def need_gcc() -> str:
    """Returns the path of gcc; skips the test without it."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed: the C player cannot be built")
    return gcc


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cml_player_")


def wgpu_folder() -> Path:
    """Returns the folder of the wheel's headers and library of wgpu-native."""
    spec = importlib.util.find_spec("wgpu")
    if spec is None or spec.origin is None:
        pytest.skip("wgpu is not installed: there is no webgpu.h to build against")
    return Path(spec.origin).parent / "resources"


@functools.cache
def build(source: str, *flags: str, device: bool = False) -> Path:
    """Builds ``players/c/<source>``, or a source beside the tests, and returns the program.

    With ``device`` it is linked with the player and wgpu-native.
    """
    gcc = need_gcc()
    program = Path(_folder().name) / f"{Path(source).stem}{abs(hash((source, flags, device)))}"
    file = next(f for f in (PLAYER / source, HERE / source) if f.exists())
    command = [gcc, *STRICT, *(flags or ("-O2",)), f"-I{PLAYER}", str(file)]
    if device:
        wgpu = wgpu_folder()
        library = next(wgpu.glob("libwgpu_native*.so"), None)
        if library is None:
            pytest.skip("the wgpu wheel has no library for this platform")
        command += [f"-isystem{wgpu}", str(PLAYER / "cml.c"), str(library), f"-Wl,-rpath,{wgpu}"]
    made = subprocess.run([*command, "-lm", "-o", str(program)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return program
