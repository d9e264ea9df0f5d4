"""Builds the packages of a release into a folder; ``python tasks.py release`` runs it.

=======================================  =====================================
``cml_engine-VERSION.tar.gz``            the source distribution
``cml_engine-VERSION-py3-none-any.whl``  the wheel, built from it
=======================================  =====================================
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
_BUILD = "import sys; from hatchling import build; getattr(build, sys.argv[1])(sys.argv[2])"


def build_packages(folder: Path) -> None:
    """Writes every package of a release into an existing folder."""
    build_python(folder)


def build_python(folder: Path) -> None:
    """Writes the source distribution, and the wheel that an unpacked copy of it builds."""
    _run_hatchling("build_sdist", ROOT, folder)
    (source,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(source) as archive:
            archive.extractall(unpacked, filter="data")
        (tree,) = Path(unpacked).iterdir()
        _run_hatchling("build_wheel", tree, folder)


def _run_hatchling(step: str, tree: Path, folder: Path) -> None:
    command = [sys.executable, "-c", _BUILD, step, str(folder)]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
