"""The Slang compiler for HLSL, called through its C interface and without a device.

The compiler is a shared library inside the ``slangpy`` wheel, whose Python module is never
imported. Creating a compiler session takes half a second; a session compiles one source at a time.

This file imports nothing of the engine. Run as a program with the library's path, it is a compiler
in a separate process (``cml_engine/gpu/shaders/compilers.py``).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

#: the line that ends the frame around a source line in a diagnostic
_FRAME_END = re.compile(r"^[ \t]*--'[ \t]*\n?", re.MULTILINE)


class SlangError(Exception):
    """Raised if the compiler rejects a source; its text is the diagnostics."""


class Slang:
    """One compiler session. Threads may call :meth:`compile`; the calls run one at a time."""

    def __init__(self, library: str) -> None:
        if sys.platform == "win32":  # the library loads others of its folder by their names
            os.add_dll_directory(str(Path(library).resolve().parent))
        self._lib = ctypes.CDLL(library)
        _declare(self._lib)
        self._lock = threading.Lock()
        self._session = self._lib.spCreateSession(None)
        if not self._session:
            raise SlangError(f"the Slang compiler in {library} gave no session")
        # a session takes some 150 MB, which the end of the process frees faster
        weakref.finalize(self, self._lib.spDestroySession, self._session).atexit = False

    def compile(self, arguments: Sequence[str]) -> tuple[bytes, list[str]]:
        """Runs the compiler with command-line ``arguments``; returns the code and the files read.

        Raises :class:`SlangError` with the compiler's diagnostics.
        """
        with self._lock:
            request = self._lib.spCreateCompileRequest(self._session)
            try:
                return self._run(request, arguments)
            finally:
                self._lib.spDestroyCompileRequest(request)

    def _run(self, request: int, arguments: Sequence[str]) -> tuple[bytes, list[str]]:
        argv = (ctypes.c_char_p * len(arguments))(*(a.encode() for a in arguments))
        failed = self._lib.spProcessCommandLineArguments(request, argv, len(arguments)) < 0
        failed = failed or self._lib.spCompile(request) < 0
        if failed:
            diagnostics = self._lib.spGetDiagnosticOutput(request) or b""
            raise SlangError(_FRAME_END.sub("", diagnostics.decode(errors="replace")).strip())
        size = ctypes.c_size_t()
        code = self._lib.spGetCompileRequestCode(request, ctypes.byref(size))
        count = self._lib.spGetDependencyFileCount(request)
        files = [self._lib.spGetDependencyFilePath(request, i).decode() for i in range(count)]
        return ctypes.string_at(code, size.value), files


def _declare(lib: ctypes.CDLL) -> None:
    """Sets the C signatures of the library's functions (slang-deprecated.h, Slang 2026)."""
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
        ("spCreateSession", pointer, [text]),
        ("spDestroySession", None, [pointer]),
        ("spCreateCompileRequest", pointer, [pointer]),
        ("spDestroyCompileRequest", None, [pointer]),
        ("spProcessCommandLineArguments", integer, [pointer, ctypes.POINTER(text), integer]),
        ("spCompile", integer, [pointer]),
        ("spGetDiagnosticOutput", text, [pointer]),
        ("spGetCompileRequestCode", pointer, [pointer, ctypes.POINTER(ctypes.c_size_t)]),
        ("spGetDependencyFileCount", integer, [pointer]),
        ("spGetDependencyFilePath", text, [pointer, integer]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


# ------------------------------------------------------------------ the compiler process


def write_message(stream: IO[bytes], head: object, body: bytes = b"") -> None:
    """Writes a message: a line of JSON with ``head`` and the size of ``body``, then ``body``."""
    stream.write(json.dumps([head, len(body)]).encode() + b"\n" + body)
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[object, bytes]:
    """Reads a message of :func:`write_message` and returns its head and body.

    Raises :class:`EOFError` if the other process has ended.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the other process is gone")
    head, size = json.loads(line)
    body = stream.read(size)
    if len(body) < size:
        raise EOFError("the other process is gone")
    return head, body


def _serve(library: str) -> None:
    """Compiles the requests from standard input until it is closed; answers on standard output."""
    # the library's own output must not mix with the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    compiler = Slang(library)
    while True:
        try:
            arguments, _ = read_message(sys.stdin.buffer)
        except EOFError:
            return
        assert isinstance(arguments, list)
        try:
            code, files = compiler.compile(arguments)
        except SlangError as error:
            write_message(answers, {"refused": str(error)})
        else:
            write_message(answers, {"files": files}, code)


if __name__ == "__main__":
    _serve(sys.argv[1])
