"""The wheel that users install holds everything that runs: kernels, standard library, types."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("cml_engine", "scheduler", "shaders_hlsl", "demo_game")
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
USE = """
import cml_engine, shaders_hlsl
from cml_engine.gpu.shaders.hlsl import resolve
from cml_engine.nnef.expansion.signatures import standard_signatures
print(cml_engine.__file__)
print(resolve("conv/conv.hlsl"))
print("conv" in standard_signatures())
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's content, as pip would lay it out."""
    made = {p.relative_to(ROOT) for p in (ROOT / "demo_game/cooked").glob("*.cml")}
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    assert all((folder / "site" / path).is_file() for path in made)  # what was cooked before
    return folder / "site"


def files(root):
    """Paths of all files of the packages, but for what Python makes by itself, and the demo's
    cooked networks, which may be in the making."""
    found = (p for package in PACKAGES for p in (root / package).rglob("*") if p.is_file())
    names = (p.relative_to(root).as_posix() for p in found if "__pycache__" not in p.parts)
    return {name for name in names if not name.startswith("demo_game/cooked/")}


def test_wheel_holds_every_file_of_the_packages(unpacked):
    player = {p.name for p in (ROOT / "players" / "web").iterdir()}
    assert files(unpacked) == files(ROOT) | {f"cml_engine/web/player/{name}" for name in player}
    assert "cml_engine/py.typed" in files(unpacked)


def test_installed_package_finds_its_files(unpacked, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    module, kernel, found = done.stdout.splitlines()
    assert Path(module).is_relative_to(unpacked)
    assert Path(kernel).is_relative_to(unpacked)
    assert found == "True"


def test_wheel_holds_nothing_else(unpacked):
    tops = {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")}
    assert tops == set(PACKAGES)
    (info,) = unpacked.glob("*.dist-info")
    assert (info / "licenses/LICENSE").is_file()
