"""Tests that the wheel contains everything that runs: kernels, standard library and types."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
hatch_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hatch_build)
PLACES, nested = hatch_build.PLACES, hatch_build.nested
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
USE = """
import cml_engine
from cml_engine.gpu.shaders.hlsl import resolve
from cml_engine.nnef.expansion.signatures import standard_signatures
print(cml_engine.__file__)
print(resolve("conv/conv.hlsl"))
print("conv" in standard_signatures())
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Returns the folder of the wheel's content, as pip would lay it out."""
    made = {p.relative_to(ROOT) for p in (ROOT / "demo_game/cooked").glob("*.cml")}
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    assert all((folder / "site/cml_engine" / path).is_file() for path in made)
    return folder / "site"


def files(root):
    """Returns the paths of all files below a folder, without Python's caches.

    The demo's cooked networks are left out too, since another process may be writing them.
    """
    found = (p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    names = (p.relative_to(root).as_posix() for p in found)
    return {name for name in names if "demo_game/cooked/" not in name}


def test_wheel_holds_every_file_of_the_packages(unpacked):
    expected = {
        f"{place}/{name}"
        for folder, place in PLACES.items()
        for name in files(ROOT / folder)
        if not f"{folder}/{name}".startswith("demo_game/cooked/")
    }
    assert files(unpacked / "cml_engine") == {n.removeprefix("cml_engine/") for n in expected}
    assert "cml_engine/py.typed" in expected


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


def test_wheel_has_one_top_level_package(unpacked):
    tops = {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")}
    assert tops == {"cml_engine"}
    (info,) = unpacked.glob("*.dist-info")
    assert (info / "licenses/LICENSE").is_file()


def run(code, unpacked, *more, cwd):
    """Runs code in a fresh Python that sees the wheel and the folders ``more``."""
    path = os.pathsep.join(map(str, (*more, unpacked)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_package_called_scheduler_does_no_harm(unpacked, tmp_path):
    other = tmp_path / "other"
    (other / "scheduler").mkdir(parents=True)
    (other / "scheduler/__init__.py").write_text("class Scheduler: pass\n")
    code = (
        "import cml_engine, scheduler\n"
        "from cml_engine import FrameScheduler, submit_tiled\n"
        "print(FrameScheduler.__module__, scheduler.Scheduler.__name__)"
    )
    for order in ((other,), ()):
        path = order or (unpacked, other)
        said = run(code, unpacked, *path, cwd=tmp_path)
        assert said.split() == ["cml_engine.scheduler.frame_scheduler", "Scheduler"]


def test_every_module_of_the_wheel_that_needs_no_extra_imports(unpacked, tmp_path):
    code = (
        "import cml_engine, pkgutil, importlib\n"
        "for m in pkgutil.walk_packages(cml_engine.scheduler.__path__, 'cml_engine.scheduler.'):\n"
        "    if not m.name.endswith('plot'): importlib.import_module(m.name)\n"
        "import cml_engine.demo_game.command, cml_engine.demo_game.chain\n"
        "from cml_engine.tools.cli import main\n"
    )
    code = code.replace("import cml_engine,", "import cml_engine.scheduler,")
    assert run(code, unpacked, cwd=tmp_path) == ""


def test_rewritten_imports_name_the_packages_inside_the_wheel():
    assert nested("from scheduler import A\n  from demo_game.x import b\n") == (
        "from cml_engine.scheduler import A\n  from cml_engine.demo_game.x import b\n"
    )
    assert nested("    import scheduler\n") == "    from cml_engine import scheduler\n"
    assert nested("from scheduler_tools import A\n") == "from scheduler_tools import A\n"


def test_packages_import_each_other_by_statements_that_the_layout_rewrites():
    statement = re.compile(r"^\s*import .*\b(scheduler|demo_game)[ .,]", re.MULTILINE)
    sources = (p for folder in PLACES for p in (ROOT / folder).rglob("*.py"))
    assert [str(p) for p in sources if statement.search(p.read_text("utf-8"))] == []


TYPED_HOST = """
import cml_engine as cml
from cml_engine import FrameScheduler, Job

def play(gpu: cml.Gpu, path: str) -> Job:
    session = cml.Session(cml.load(path), gpu)
    scheduler = FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)
    job = scheduler.submit(session, {}, priority=1.0, deadline_ms=250)
    reveal_type(scheduler)
    reveal_type(job)
    reveal_type(job.progress)
    return job
"""


def test_a_host_is_checked_with_full_types(unpacked, tmp_path):
    pytest.importorskip("mypy")
    host = tmp_path / "host.py"
    host.write_text(TYPED_HOST)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(host)]
    command += ["--cache-dir", str(tmp_path / "cache"), "--no-color-output"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(unpacked)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    revealed = re.findall(r'Revealed type is "([^"]*)"', done.stdout)
    where = "cml_engine.scheduler"
    assert revealed == [
        f"{where}.frame_scheduler.FrameScheduler", f"{where}.jobs.job.Job", "float"
    ]  # fmt: skip
