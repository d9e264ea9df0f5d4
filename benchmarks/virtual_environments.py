"""Virtual environments for packages that cannot be installed together.

Two ONNX Runtimes, for example, share one module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: packages that a worker needs besides its engine
_NEEDED = ("numpy",)
FOLDER = Path(__file__).resolve().parents[1] / "out" / "environments"


def python_of(name: str) -> Path:
    """Returns the path of the Python interpreter of the environment ``name``; it may not exist."""
    return FOLDER / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def make(name: str, package: str) -> None:
    """Creates the virtual environment ``name`` and installs the package with pip.

    Does nothing if the environment exists.
    """
    if python_of(name).exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
    install = [str(python_of(name)), "-m", "pip", "install", "--quiet", package, *_NEEDED]
    subprocess.run(install, check=True)
