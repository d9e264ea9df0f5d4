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
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
STRICT = ("-std=c99", *WARNINGS, "-ffp-contract=off", "-g")
INCLUDES = tuple(f"-I{PLAYER / name}" for name in ("include", "src", "example"))
#: sources that need a device; the others decide and read files without one
DEVICE_SOURCES = ("device.c", "network.c", "scheduler.c", "submit.c")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def need_gcc(name: str = "gcc") -> str:
    """Returns the path of gcc or of the named compiler; skips the test if it is not installed."""
    gcc = shutil.which(name)
    if gcc is None:
        pytest.skip(f"{name} is not installed: the C player cannot be built")
    return gcc


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cml_player_")


def wgpu_folder() -> Path:
    """Returns the folder of wgpu-native's headers and library in the wgpu wheel.

    Skips the test if wgpu is not installed.
    """
    spec = importlib.util.find_spec("wgpu")
    if spec is None or spec.origin is None:
        pytest.skip("wgpu is not installed: there is no webgpu.h to build against")
    return Path(spec.origin).parent / "resources"


def sources(device: bool) -> list[Path]:
    """Returns the C files of the player, sorted; without ``device`` only those that need no GPU."""
    found = sorted((PLAYER / "src").glob("*.c"))
    return [file for file in found if device or file.name not in DEVICE_SOURCES]


def wgpu_library() -> Path:
    """Returns the path of wgpu-native's library in the wheel; skips the test if there is none."""
    library = next(wgpu_folder().glob("libwgpu_native*.so"), None)
    if library is None:
        pytest.skip("the wgpu wheel has no library for this platform")
    return library


def run_compiler(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a command; asserts that its exit code is 0."""
    made = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd)
    assert made.returncode == 0, made.stderr


@functools.cache
def player_library(flags: tuple[str, ...], device: bool) -> Path:
    """Builds the player as a static library and returns its path."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    run_compiler(need_gcc(), *_flags(flags, device), "-c", *sources(device), cwd=folder)
    run_compiler("ar", "rcs", "libcml.a", *sorted(folder.glob("*.o")), cwd=folder)
    return folder / "libcml.a"


def _flags(flags: tuple[str, ...], device: bool) -> tuple[str, ...]:
    where = f"-isystem{wgpu_folder()}" if device else "-DCML_CORE_ONLY"
    return (*STRICT, *flags, *INCLUDES, where)


@functools.cache
def build(source: str, *flags: str, device: bool = False) -> Path:
    """Builds a program from one source and the player, and returns the program's path.

    The source is a tool or example of ``players/c``, or a file beside the tests. With ``device``
    the program is linked with wgpu-native. The same arguments are built once.
    """
    gcc = need_gcc()
    flags = flags or ("-O2",)
    library = player_library(flags, device)
    program = library.with_name(f"{Path(source).stem}_{device}")
    folders = (PLAYER / "tools", PLAYER / "example", HERE)
    file = next(folder / source for folder in folders if (folder / source).exists())
    linked: list[str | Path] = [library]
    if device:
        linked += [wgpu_library(), f"-Wl,-rpath,{wgpu_folder()}"]
    command: list[str | Path] = [gcc, *_flags(flags, device)]
    if file.suffix == ".cpp":
        command[:2] = [need_gcc("g++"), "-std=c++17"]
    run_compiler(*command, file, *linked, "-lm", "-o", program)
    return program
