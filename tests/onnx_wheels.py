"""Reads the backend node tests of older versions of the package ``onnx`` from their wheels.

These tests use older opsets' versions of the operators. Nothing is installed and no code from a
wheel is run: the wheel is downloaded and the tests' files are extracted.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DATA = "onnx/backend/test/data/node/"
#: a wheel may be for another Python than this one, because its tests are only data
_PYTHONS = ("311", "310", "39", "38", "37", "36")


@dataclass(frozen=True)
class StoredCase:
    """A case with the attributes of ``onnx``'s own test cases, whose data is all in files."""

    name: str
    model_dir: str
    model: Any = None
    data_sets: Any = None
    rtol: float = 1e-3
    atol: float = 1e-7


def stored_cases(version: str, folder: Path) -> list[StoredCase]:
    """Extracts the cases of that version into the folder and returns them."""
    unpacked = folder / version
    if not unpacked.is_dir():
        _unpack(_downloaded(version, folder), unpacked)
    models = sorted((unpacked / _DATA).glob("*/model.onnx"))
    return [StoredCase(model.parent.name, str(model.parent)) for model in models]


def _downloaded(version: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", f"onnx=={version}", "--dest", str(folder)]
    said = ""
    for python in _PYTHONS:
        tags = ["--python-version", python, "--implementation", "cp"]
        for old in ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux2010_x86_64"):
            tags += ["--platform", old]
        done = subprocess.run([*command, *tags], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return next(folder.glob(f"onnx-{version}-*.whl"))
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    raise SystemExit(f"cannot download onnx {version}: {said}")


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(_DATA)])
    wheel.unlink()
