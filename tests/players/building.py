"""Builds the C player and its tools with gcc, against wgpu-native from the wgpu wheel.

Builds are kept by the content of their sources, for other test processes and later runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYER = ROOT / "players" / "c"
HERE = Path(__file__).parent
#: flags of every build
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
STRICT = ("-std=c99", *WARNINGS, "-ffp-contract=off", "-g")
INCLUDES = tuple(f"-I{PLAYER / name}" for name in ("include", "src", "example"))
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_BUILDS = ROOT / ".pytest_cache" / "players"
#: seconds without use after which builds are deleted
_MOST_AGE = 24 * 3600


def need_gcc(name: str = "gcc") -> str:
    """Returns the path of gcc or of the named compiler; skips the test if it is not installed."""
    gcc = shutil.which(name)
    if gcc is None:
        pytest.skip(f"{name} is not installed: the C player cannot be built")
    return gcc


def wgpu_folder() -> Path:
    """Returns the folder of wgpu-native's headers and library in the wgpu wheel.

    Skips the test if wgpu is not installed.
    """
    spec = importlib.util.find_spec("wgpu")
    if spec is None or spec.origin is None:
        pytest.skip("wgpu is not installed: there is no webgpu.h to build against")
    return Path(spec.origin).parent / "resources"


def sources(device: bool, vulkan: bool = False) -> list[Path]:
    """Returns the C files of the player, sorted; with ``device`` the WebGPU backend too, or with
    ``vulkan`` that one."""
    backends = ["null.c", *(["webgpu.c"] if device else []), *(["vulkan.c"] if vulkan else [])]
    return [*sorted((PLAYER / "src").glob("*.c")), *(PLAYER / "backends" / n for n in backends)]


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
def _folder(flags: tuple[str, ...], headers: Path | None) -> Path:
    """Returns the folder of all builds with these flags of the sources as they are now.

    ``headers`` is the folder of wgpu-native, if it is used. Builds that are
    not used any more are deleted.
    """
    version = subprocess.run([need_gcc(), "--version"], capture_output=True, check=True).stdout
    hasher = hashlib.sha256(version + repr(flags).encode())
    files = [
        *PLAYER.rglob("*.[ch]*"),
        *HERE.glob("*.c*"),
        *(headers.glob("*.h") if headers else ()),
    ]
    for file in sorted(files):
        hasher.update(file.read_bytes())
    folder = _BUILDS / hasher.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in _BUILDS.iterdir():
        if other.stat().st_mtime < time.time() - _MOST_AGE:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _once(file: Path, make: Callable[[Path], None]) -> Path:
    """Returns ``file``, which ``make`` writes unless it exists; other processes wait for it."""
    import fcntl  # not there on Windows, which needs other builds

    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            made = file.with_suffix(".partial")
            make(made)
            made.replace(file)
    return file


def player_library(flags: tuple[str, ...], device: bool, vulkan: bool = False) -> Path:
    """Builds the player as a static library and returns its path."""
    flags = _flags(flags, device, vulkan)

    def make(library: Path) -> None:
        folder = library.parent
        run_compiler(need_gcc(), *flags, "-c", *sources(device, vulkan), cwd=folder)
        run_compiler("ar", "rcs", library, *sorted(folder.glob("*.o")))

    return _once(_folder(flags, wgpu_folder() if device else None) / "libcml.a", make)


def _flags(flags: tuple[str, ...], device: bool, vulkan: bool) -> tuple[str, ...]:
    where = (f"-isystem{wgpu_folder()}",) if device else ("-DCML_VULKAN",) if vulkan else ()
    return (*STRICT, *flags, *INCLUDES, *where)


def build(source: str, *flags: str, device: bool = False, vulkan: bool = False) -> Path:
    """Builds a program from one source and the player, and returns the program's path.

    The source is a tool or example of ``players/c``, or a file beside the tests. With ``device``
    the program is linked with wgpu-native, with ``vulkan`` with the loader of Vulkan.
    """
    flags = flags or ("-O2",)
    library = player_library(flags, device, vulkan)
    folders = (PLAYER / "tools", PLAYER / "example", HERE)
    file = next(folder / source for folder in folders if (folder / source).exists())
    linked: list[str | Path] = [library]
    if device:
        linked += [wgpu_library(), f"-Wl,-rpath,{wgpu_folder()}"]
    if vulkan:
        linked += ["-lvulkan"]
    command: list[str | Path] = [need_gcc(), *_flags(flags, device, vulkan)]
    if file.suffix == ".cpp":
        command[:2] = [need_gcc("g++"), "-std=c++17"]
    return _once(
        library.with_name(file.stem),
        lambda program: run_compiler(*command, file, *linked, "-lm", "-o", program),
    )
