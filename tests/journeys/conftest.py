"""The fixtures of all journeys: released packages, empty environments, and a cooked file.

Every fixture is created once per test run, also when several processes run the tests. The packages
are built from this tree, unless ``CML_DIST`` names a folder of packages that are to be checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

fcntl = pytest.importorskip("fcntl")
pytest.importorskip("hatchling")
from packaging.requirements import Requirement  # noqa: E402 - hatchling depends on it

from release import build_packages  # noqa: E402

#: seconds that one command of a journey may take, with cold caches on a busy machine whose driver
#: takes ten times as long as llvmpipe
_SECONDS = 900
_MODEL = Path(__file__).with_name("hosts") / "twice.nnef"
_DIST = os.environ.get("CML_DIST", "")


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has only the wheel and the packages that the wheel requires."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        """The path of the environment's ``site-packages``."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def run(
        self, *command: str | Path, cwd: Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as in the activated environment, with its own cache folders.

        Returns the result. With ``check`` the test fails if the program does.
        """
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        env |= {f"CML_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("CACHE", "DATA")}
        env["PATH"] = f"{self.bin}{os.pathsep}{env['PATH']}"
        words = [shutil.which(command[0], path=env["PATH"]) or command[0], *map(str, command[1:])]
        done = subprocess.run(
            words, cwd=cwd, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(words)}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
        return done


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages of a release, built once unless ``CML_DIST`` names one.

    Built here, it has no npm package, for which programs must be fetched.
    """
    if _DIST:
        return Path(_DIST)
    return _once(tmp_path_factory, "dist", partial(build_packages, npm=False))


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The path of the wheel."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The environment after ``pip install cml-engine``, which can run cooked files."""
    return _with_extras(tmp_path_factory, wheel)


@pytest.fixture(scope="session")
def compiler_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The environment after ``pip install cml-engine[compiler]``, which runs any model."""
    return _with_extras(tmp_path_factory, wheel, "compiler")


@pytest.fixture(scope="session")
def bake_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The environment after ``pip install cml-engine[bake]``, which maps over many inputs."""
    return _with_extras(tmp_path_factory, wheel, "bake")


@pytest.fixture(scope="session")
def game_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The environment after ``pip install cml-engine[game]``, which has windows and Dear ImGui."""
    return _with_extras(tmp_path_factory, wheel, "compiler", "game")


@pytest.fixture(scope="session")
def pygfx_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The environment after ``pip install cml-engine[game,pygfx]``."""
    return _with_extras(tmp_path_factory, wheel, "compiler", "game", "pygfx")


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], object]], Path]:
    """A function that returns a folder, which the given function fills once per test run."""
    return partial(_once, tmp_path_factory)


def _with_extras(factory: pytest.TempPathFactory, wheel: Path, *extras: str) -> Environment:
    name = "-".join(("venv", *extras))
    return Environment(_once(factory, name, lambda folder: _install(folder, wheel, *extras)))


@pytest.fixture(scope="session")
def cooked(tmp_path_factory: pytest.TempPathFactory, compiler_environment: Environment) -> Path:
    """The path of the cooked file of ``hosts/twice.nnef``, made by the installed command."""

    def cook(folder: Path) -> None:
        compiler_environment.run("cml", "cook", _MODEL, "-o", "net.cml", cwd=folder)

    return _once(tmp_path_factory, "cooked", cook) / "net.cml"


def _once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder that ``make`` has filled once per test run; other processes wait for it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the workers' own folders lie in it
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def _install(folder: Path, wheel: Path, *extras: str) -> None:
    """Creates a virtual environment in the folder and installs the wheel with its dependencies.

    Packages to be checked for a release get their dependencies from the package index. Otherwise
    the dependencies are linked from the environment of the tests: only those that the wheel
    declares, and without a network.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    if _DIST:
        subprocess.run([*pip, f"{wheel}[{','.join(extras)}]" if extras else str(wheel)], check=True)
        return
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)
    site = Environment(folder).site
    (installed,) = metadata.distributions(name="cml-engine", path=[str(site)])
    _link_requirements(installed, extras, site)


def _link_requirements(package: metadata.Distribution, extras: Sequence[str], site: Path) -> None:
    """Links the packages that a package requires, and their requirements, into ``site``.

    They come from this Python's environment; the test is skipped if one is not installed.
    """
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": e}) for e in extras or ("",)):
            continue
        try:
            found = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed")
        tops = {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}
        missing = [name for name in tops if not (site / name).exists()]
        for name in missing:
            (site / name).symlink_to(str(found.locate_file(name)))
        if missing:
            _link_requirements(found, tuple(requirement.extras), site)
