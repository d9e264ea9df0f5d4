"""Tests that the wheel is complete, adds one top-level name, and type-checks a host."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from release import run_hatchling
from tasks import LINKED

ROOT = Path(__file__).resolve().parents[2]
#: folders of the tree and their places in the wheel
PLACES = {
    "cml_engine": "cml_engine",
    "scheduler": "cml_engine/scheduler",
    "shaders_hlsl": "cml_engine/shaders_hlsl",
    "demo_game": "cml_engine/demo_game",
    "docs": "cml_engine/docs",
    "examples": "cml_engine/examples",
    "players/c": "cml_engine/cooked/players/c",
    "players/web": "cml_engine/cooked/players/web",
}
#: the demo's cooked networks, which are made for a release and are not in the repository
COOKED = "cml_engine/demo_game/cooked/"


@pytest.fixture(scope="module")
def names(wheel):
    """The set of the paths of the wheel's files, without the demo's cooked networks."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.startswith(COOKED)}


def test_wheel_holds_every_file_of_the_packages(names):
    paths = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in PLACES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if folder != "docs" or path.parent.name == "docs" and path.suffix == ".md"
    }
    found = {name for name in names if name.startswith("cml_engine/")}
    assert found == {path for path in paths if not path.startswith(COOKED)}
    assert {"cml_engine/py.typed", "cml_engine/docs/start.md"} <= found


def test_wheel_holds_cooked_networks(wheel):
    """A release holds every network of the demo, another wheel those that this tree has."""
    if os.environ.get("CML_DIST"):
        expected = {f"{path.stem}.cml" for path in (ROOT / "demo_game/models").glob("*.nnef")}
    else:
        expected = {path.name for path in (ROOT / "demo_game/cooked").glob("*")}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith(COOKED)}
    assert found == {COOKED + name for name in expected}


def test_wheel_has_one_top_level_package(names):
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cml_engine"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_a_wheel_needs_no_links(tmp_path):
    """``pip install .`` works where git wrote text files for links, its default on Windows."""
    tree, dist = tmp_path / "tree", tmp_path / "dist"
    files = ("hatch_build.py", "tasks.py", "pyproject.toml", "README.md", "LICENSE")
    for name in ("cml_engine/__init__.py", *files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    for name in LINKED:
        (tree / name).mkdir()
        (tree / name / "__init__.py").touch()
        (tree / "cml_engine" / name).write_text(f"../{name}")
    dist.mkdir()
    run_hatchling("build_wheel", tree, dist)
    (built,) = dist.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        found = {name for name in archive.namelist() if ".dist-info" not in name}
    modules = {f"cml_engine/{name}/__init__.py" for name in LINKED}
    assert found == {"cml_engine/__init__.py", *modules}


def test_foreign_scheduler_package_does_not_conflict(environment, tmp_path):
    (tmp_path / "other/scheduler").mkdir(parents=True)
    (tmp_path / "other/scheduler/__init__.py").write_text("class Scheduler: pass\n")
    for place in ("0", "len(sys.path)"):
        code = (
            f"import sys; sys.path.insert({place}, 'other')\n"
            "import cml_engine, scheduler\n"
            "from cml_engine import FrameScheduler\n"
            "print(FrameScheduler.__module__, scheduler.Scheduler.__name__)"
        )
        output = environment.run("python", "-c", code, cwd=tmp_path).stdout
        assert output.split() == ["cml_engine.scheduler.frame_scheduler", "Scheduler"]


def test_every_module_of_the_wheel_that_needs_no_extra_imports(environment, tmp_path):
    code = (
        "import cml_engine.scheduler, pkgutil, importlib\n"
        "for m in pkgutil.walk_packages(cml_engine.scheduler.__path__, 'cml_engine.scheduler.'):\n"
        "    if not m.name.endswith('plot'): importlib.import_module(m.name)\n"
        "import cml_engine.demo_game.command, cml_engine.demo_game.chain\n"
        "from cml_engine.tools.cli import main\n"
    )
    done = environment.run("python", "-c", code, cwd=tmp_path)
    assert done.stdout + done.stderr == ""


def test_cited_pages_are_in_the_wheel(environment, tmp_path):
    output = environment.run("cml", "docs", "ship_it", cwd=tmp_path).stdout
    assert output.startswith("# Ship it")


@pytest.mark.gpu
def test_an_example_of_the_pages_is_copied_and_runs(compiler_environment, tmp_path):
    assert "plain_loop" in compiler_environment.run("cml", "example", "--list", cwd=tmp_path).stdout
    compiler_environment.run("cml", "example", "plain_loop", cwd=tmp_path)
    words = ("-m", "examples.plain_loop", "--frames", "60", "--screenshot", "frame.png")
    compiler_environment.run("python", *words, cwd=tmp_path)
    assert (tmp_path / "frame.png").is_file()


def test_a_page_is_exported_from_the_wheel(compiler_environment, tmp_path):
    model = Path(__file__).parent / "hosts/twice.nnef"
    compiler_environment.run("cml", "export", model, "page", "--to", "web", cwd=tmp_path)
    assert {"index.html", "cml.js", "core.js", "net.cml"} <= {
        p.name for p in (tmp_path / "page").iterdir()
    }


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


def test_a_host_is_checked_with_full_types(environment, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "host.py").write_text(TYPED_HOST)
    options = ("--python-executable", environment.bin / "python", "--cache-dir", "cache")
    words = (sys.executable, "-m", "mypy", "--strict", "--no-color-output", *options, "host.py")
    done = environment.run(*words, cwd=tmp_path)
    revealed = re.findall(r'Revealed type is "([^"]*)"', done.stdout)
    where = "cml_engine.scheduler"
    assert revealed == [
        f"{where}.frame_scheduler.FrameScheduler", f"{where}.jobs.job.Job", "float"
    ]  # fmt: skip
