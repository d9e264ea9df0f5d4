"""HLSL -> SPIR-V by the Slang compiler, through its C interface and without a device.

The compiler is the shared library inside the ``slangpy`` wheel; the wheel's Python module is never
imported. A session of the compiler takes half a second to make, so it is made at the first source
that the cache does not have, and not before.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from importlib import metadata
from pathlib import Path

from cml_engine.errors import DeviceError

_LIBRARY_PATTERNS = ("libslang-compiler.so*", "slang-compiler.dll", "libslang-compiler*.dylib")
_PACKAGE = "slangpy"


def version() -> str:
    """Name and version of the compiler, part of every cache key; loads nothing."""
    try:
        return f"{_PACKAGE}-{metadata.version(_PACKAGE)}"
    except metadata.PackageNotFoundError:
        return "none"


class SlangError(Exception):
    """The compiler's own words on a source that it refused."""


class Slang:
    """One compiler session; :meth:`compile` may be called from any thread, one at a time."""

    _instance: Slang | None = None
    _lock = threading.Lock()

    @classmethod
    def get(cls) -> Slang:
        with cls._lock:
            if cls._instance is None:
                cls._instance = cls(_find_library())
            return cls._instance

    def __init__(self, library: Path) -> None:
        self._lib = ctypes.CDLL(str(library))
        _declare(self._lib)
        self._session = self._lib.spCreateSession(None)
        if not self._session:
            raise DeviceError(f"the Slang compiler in {library} gave no session")

    def compile(
        self,
        path: Path,
        arguments: list[str],
        target: str = "spirv",
        stage: str = "compute",
        entry: str = "main",
    ) -> bytes:
        """The function ``entry`` of the file ``path`` as SPIR-V, or as another of the compiler's
        targets; ``stage`` is ``"compute"``, ``"vertex"`` or ``"fragment"``, ``arguments`` are
        ``-I`` and ``-D`` options. Raises :class:`SlangError` with the compiler's diagnostics."""
        chosen = ["-profile", _PROFILES[stage], "-entry", entry]
        with self._lock:
            request = self._lib.spCreateCompileRequest(self._session)
            try:
                return self._run(
                    request, [*arguments, *_FLAGS, *chosen, "-target", target, str(path)]
                )
            finally:
                self._lib.spDestroyCompileRequest(request)

    def _run(self, request: int, arguments: list[str]) -> bytes:
        argv = (ctypes.c_char_p * len(arguments))(*(a.encode() for a in arguments))
        failed = self._lib.spProcessCommandLineArguments(request, argv, len(arguments)) < 0
        failed = failed or self._lib.spCompile(request) < 0
        if failed:
            said = self._lib.spGetDiagnosticOutput(request) or b""
            raise SlangError(said.decode(errors="replace").strip())
        size = ctypes.c_size_t()
        code = self._lib.spGetCompileRequestCode(request, ctypes.byref(size))
        return ctypes.string_at(code, size.value)


_PROFILES = {"compute": "cs_6_2", "vertex": "vs_6_2", "fragment": "ps_6_2"}
_FLAGS = [
    "-lang", "hlsl", "-O2", "-matrix-layout-row-major", "-fp-mode", "precise",
]  # fmt: skip


def _find_library() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in _LIBRARY_PATTERNS:
            for found in sorted(Path(folder).glob(pattern)):
                return found
    raise DeviceError(
        "no HLSL compiler: the package 'slangpy' is not installed. "
        "Install it (pip install slangpy) or use --backend cpu."
    )


def _declare(lib: ctypes.CDLL) -> None:
    """C signatures of the seven functions used (slang-deprecated.h, Slang 2026)."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("spCreateSession", pointer, [ctypes.c_char_p]),
        ("spCreateCompileRequest", pointer, [pointer]),
        ("spDestroyCompileRequest", None, [pointer]),
        (
            "spProcessCommandLineArguments",
            integer,
            [pointer, ctypes.POINTER(ctypes.c_char_p), integer],
        ),
        ("spCompile", integer, [pointer]),
        ("spGetDiagnosticOutput", ctypes.c_char_p, [pointer]),
        ("spGetCompileRequestCode", pointer, [pointer, ctypes.POINTER(ctypes.c_size_t)]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
