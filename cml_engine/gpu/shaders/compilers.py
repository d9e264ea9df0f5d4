"""A pool of Slang compilers for HLSL: one in this process, more in child processes.

Two compiler sessions in one process block each other almost all the time, so threads gain nothing
and processes do. The first source goes to the compiler in this process. A process is started only
if a source arrives while all compilers are busy. The processes end with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from cml_engine.errors import DeviceError
from cml_engine.gpu.shaders import slang
from cml_engine.gpu.shaders.includes import included
from cml_engine.ops.common.once import Once
from cml_engine.ops.kernel_files import KERNEL_FOLDER

_LIBRARY_PATTERNS = ("libslang-compiler.so*", "slang-compiler.dll", "libslang-compiler*.dylib")
_PACKAGE = "slangpy"
#: the platforms that the compiler exists for, as in pyproject.toml: the system and the processor
PLATFORMS = frozenset({("linux", "x86_64"), ("win32", "AMD64"), ("darwin", "arm64")})
#: compiler options of every source; part of every digest
OPTIONS = ("-lang", "hlsl", "-O2", "-matrix-layout-row-major", "-fp-mode", "precise")
_PROFILES = {"compute": "cs_6_2", "vertex": "vs_6_2", "fragment": "ps_6_2"}


class CompilerError(Exception):
    """Raised if the compiler rejects a source; its text is the diagnostics."""


@dataclass(frozen=True, slots=True)
class Request:
    """The input of one compilation: a source, and what to compile it to.

    Parameters
    ----------
    source : the whole text; ``path`` is the file that it comes from, whose folder has its includes.
    target : ``"spirv"``, or another of the compiler's targets.
    stage : ``"compute"``, ``"vertex"`` or ``"fragment"``.
    entry : the name of the function.
    """

    source: str
    path: Path
    target: str = "spirv"
    stage: str = "compute"
    entry: str = "main"


@functools.cache
def version() -> str | None:
    """Returns the installed compiler's name and version, or None; does not load it."""
    try:
        return f"{_PACKAGE}-{metadata.version(_PACKAGE)}"
    except metadata.PackageNotFoundError:
        return None


def compile(request: Request) -> bytes:
    """Compiles a request with a compiler of the pool and returns the code as bytes; blocks.

    Raises :class:`CompilerError` with the diagnostics if the source is rejected, and
    :class:`DeviceError` if there is no compiler.
    """
    with tempfile.TemporaryDirectory(prefix="cml-hlsl-") as folder:
        file = Path(folder, f"{request.path.stem}.hlsl")
        file.write_text(request.source, encoding="utf-8")
        includes = (request.path.parent, KERNEL_FOLDER / "include")
        arguments = [f"-I{path}" for path in includes]
        arguments += [*OPTIONS, "-profile", _PROFILES[request.stage], "-entry", request.entry]
        arguments += ["-target", request.target, str(file)]
        try:
            code, files = _pool().compile(arguments)
        except slang.SlangError as error:
            raise CompilerError(str(error)) from None
        _check(request, {Path(name).resolve() for name in files} - {file.resolve()})
    return code


def _check(request: Request, files: set[Path]) -> None:
    """Raises :class:`CompilerError` if the compiler read a file that the digest does not cover."""
    untracked = files - set(included(request.source, request.path.parent))
    if untracked:
        names = ", ".join(sorted(str(file) for file in untracked))
        raise CompilerError(
            f"{request.path} reads {names} in a way that cannot be followed without the "
            'compiler (a macro after #include, an import): write #include "FILE"'
        )


# ------------------------------------------------------------------ compilers


class _Compiler(Protocol):
    def compile(self, arguments: list[str]) -> tuple[bytes, list[str]]: ...


class _Process:
    """A compiler in a child process, which receives sources and returns code through pipes."""

    def __init__(self, python: str, library: str) -> None:
        # isolated: no site packages, and no modules of this folder
        self._process = subprocess.Popen(
            [python, "-I", "-S", slang.__file__, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # a game without a console would show a window for each process on Windows
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    def compile(self, arguments: list[str]) -> tuple[bytes, list[str]]:
        """Compiles like :meth:`slang.Slang.compile`.

        Raises ``EOFError`` or ``OSError`` if the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        slang.write_message(self._process.stdin, arguments)
        answer, code = slang.read_message(self._process.stdout)
        assert isinstance(answer, dict)
        if "refused" in answer:
            raise slang.SlangError(answer["refused"])
        return code, answer["files"]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # unwritten data is discarded
            self._process.communicate()


class CompilerPool:
    """A pool of at most ``limit`` compilers, each created when it is first needed."""

    def __init__(self, limit: int) -> None:
        self._max_compilers = limit
        self._count = 0
        self._idle: list[_Compiler] = []
        self._processes: list[_Process] = []
        self._changed = threading.Condition()

    def compile(self, arguments: list[str]) -> tuple[bytes, list[str]]:
        """Compiles like :meth:`slang.Slang.compile`, with a compiler that no other thread uses.

        Waits if all are busy. If a compiler process has died, another compiler does the work.
        """
        compiler = self._take()
        try:
            output = compiler.compile(arguments)
        except slang.SlangError:
            self._give(compiler)
            raise
        except (EOFError, OSError):
            # a process that died is not replaced: the next one may die for the same reason
            self._lose(limit=1)
            return self.compile(arguments)
        except BaseException:  # interrupted: the compiler's state is unknown
            self._lose()
            raise
        self._give(compiler)
        return output

    def close(self) -> None:
        """Ends the compiler processes."""
        for process in self._processes:
            process.close()

    def _take(self) -> _Compiler:
        with self._changed:
            while not self._idle and self._count >= self._max_compilers:
                self._changed.wait()
            if self._idle:
                return self._idle.pop()
            self._count += 1
            first = self._count == 1
        try:
            return _local_compiler() if first else self._start()
        except OSError:  # no process can be started
            self._lose(limit=1)
            return self._take()
        except BaseException:
            self._lose()
            raise

    def _give(self, compiler: _Compiler) -> None:
        with self._changed:
            self._idle.append(compiler)
            self._changed.notify()

    def _lose(self, limit: int | None = None) -> None:
        """Removes one compiler from the count; ``limit`` is the new limit of the pool, if given."""
        with self._changed:
            self._count -= 1
            self._max_compilers = self._max_compilers if limit is None else limit
            self._changed.notify_all()

    def _start(self) -> _Process:
        process = _Process(sys.executable, library())
        self._processes.append(process)
        return process


def _local_compiler() -> slang.Slang:
    """Returns a new compiler in this process.

    Raises :class:`DeviceError` if it cannot be loaded.
    """
    file = library()
    try:
        return slang.Slang(file)
    except (OSError, slang.SlangError) as error:
        raise DeviceError(
            f"the HLSL compiler cannot be loaded: {error}. Install it again (pip install "
            f"--force-reinstall {_PACKAGE}) or use --backend cpu."
        ) from error


@Once
def _pool() -> CompilerPool:
    pool, process = CompilerPool(_max_compilers()), os.getpid()
    # a forked child inherits this handler and must not wait for its parent's processes
    atexit.register(lambda: pool.close() if os.getpid() == process else None)
    return pool


def _max_compilers() -> int:
    """Returns the maximum number of compilers: ``CML_COMPILERS``, by default the number of cores.

    Returns 1 if the program is not a plain Python interpreter, because only that can be started
    again as a compiler process.
    """
    setting = os.environ.get("CML_COMPILERS", "")
    if not Path(sys.executable or "").stem.lower().startswith("python"):
        return 1
    return max(int(setting), 1) if setting.isdecimal() else os.cpu_count() or 1


@functools.cache
def library() -> str:
    """Returns the path of the compiler's library; raises :class:`DeviceError` if there is none."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in _LIBRARY_PATTERNS:
            for file in sorted(Path(folder).glob(pattern)):
                return str(file)
    system, processor = sys.platform, platform.machine()
    if (system, processor) not in PLATFORMS:
        raise DeviceError(
            f"There is no HLSL compiler for this platform ({system}, {processor}), and the cache "
            "does not have all the shaders that are needed: cook the network elsewhere (cml cook, "
            "on Linux or Windows with x86-64, or on macOS 15 or newer with Apple silicon) and play "
            "that file here, or use --backend cpu."
        )
    raise DeviceError(
        "There is no HLSL compiler, and the cache does not have all the shaders that are needed. "
        'Install the compiler (pip install "cml-engine[compiler]"), play a cooked file, or use '
        "--backend cpu."
    )
