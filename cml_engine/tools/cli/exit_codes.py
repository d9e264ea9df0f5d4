"""Runs commands: turns any error into an exit code and one readable message."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from cml_engine.errors import CmlError, InternalError

_REPORT = "This is a fault of cml, not of the model: please report it. CML_DEBUG=1 shows where."


#: Control characters except line ends and tabs, Unicode line and paragraph separators, and marks
#: that change the direction of text: a model's names must not control the terminal.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def escaped(text: str) -> str:
    """Returns the text for a terminal, with control characters escaped as in Python."""
    return text.translate(_CONTROLS)


class Escaped(io.TextIOBase):
    """A text stream that passes text on to another stream, with control characters escaped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escaped(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)


def exit_code(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code, or the code of the error that it raised.

    The code is 2 for errors that the caller can correct, 1 for internal errors, and 130 after an
    interrupt. Prints the error. Never raises, except for internal errors if ``CML_DEBUG`` is set.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe's encoding may lack letters of a path
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with contextlib.redirect_stdout(Escaped(sys.stdout)):
                return command()
        finally:  # raise write errors here and not at interpreter exit
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has exited
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return _end(130, "interrupted")
    except Exception as error:
        if os.environ.get("CML_DEBUG") and _is_ours(error):
            raise
        return _exit_code_of(error)


def _exit_code_of(error: Exception) -> int:
    if not _is_ours(error):
        return _end(2, f"error: {_describe(error)}")
    what = error if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return _end(1, f"internal error: {what}\n{_REPORT}")


def _is_ours(error: Exception) -> bool:
    if isinstance(error, InternalError):
        return True
    return not isinstance(error, (CmlError, OSError, MemoryError))


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return f"not enough memory{said}: close other programs, or take a smaller model"
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            _drop_output()
            return f"cannot write: {error.strerror}"
        return f"'{error.filename}': {error.strerror}"
    return str(error)


def _end(code: int, message: str) -> int:
    with contextlib.suppress(OSError):  # without standard error only the exit code remains
        sys.stderr.write(escaped(f"cml: {message}\n"))
        sys.stderr.flush()
    return code


def _drop_output() -> None:
    """Redirects standard output to the null device, so that exit repeats no failed write."""
    with contextlib.suppress(OSError, ValueError):  # it may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
