"""Environments for packages that cannot be beside others: two ONNX Runtimes are one module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: what a worker needs besides its package
_NEEDED = ("numpy",)
FOLDER = Path(__file__).resolve().parents[1] / "out" / "environments"


def python_of(name: str) -> Path:
    """The environment's interpreter, which need not be there."""
    return FOLDER / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def make(name: str, package: str) -> None:
    """The environment with the package; a second call does nothing."""
    if python_of(name).exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
    install = [str(python_of(name)), "-m", "pip", "install", "--quiet", package, *_NEEDED]
    subprocess.run(install, check=True)
