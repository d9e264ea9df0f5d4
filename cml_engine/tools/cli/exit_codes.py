"""How a command ends: its exit code, and one readable message for whatever went wrong."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from cml_engine.errors import CmlError, InternalError

_REPORT = "This is a fault of cml, not of the model: please report it. CML_DEBUG=1 shows where."


#: Control characters but for line ends and tabs, the two that end a line or a text in Unicode, and
#: those that turn the direction of what follows: a model's names must not steer the terminal.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def escaped(text: str) -> str:
    """Returns a text for a terminal, control characters written as in Python."""
    return text.translate(_CONTROLS)


class Escaped(io.TextIOBase):
    """A stream that escapes control characters in all that is written to it."""

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
    """Run a command: what it returns, 2 for what the caller can mend, 1 for a fault of ours, 130
    where it was interrupted. Nothing is raised, unless ``CML_DEBUG`` asks for our own faults."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may have letters that a pipe has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with contextlib.redirect_stdout(Escaped(sys.stdout)):
                return command()
        finally:  # what cannot be written is known here, and not after the end
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to say
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return _end(130, "interrupted")
    except Exception as error:
        if os.environ.get("CML_DEBUG") and _is_ours(error):
            raise
        return _ended(error)


def _ended(error: Exception) -> int:
    if not _is_ours(error):
        return _end(2, f"error: {_described(error)}")
    what = error if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return _end(1, f"internal error: {what}\n{_REPORT}")


def _is_ours(error: Exception) -> bool:
    if isinstance(error, InternalError):
        return True
    return not isinstance(error, (CmlError, OSError, MemoryError))


def _described(error: Exception) -> str:
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
    with contextlib.suppress(OSError):  # where nobody can be told, the code says it
        sys.stderr.write(escaped(f"cml: {message}\n"))
        sys.stderr.flush()
    return code


def _drop_output() -> None:
    """What standard output did not take must not be tried again at the end."""
    with contextlib.suppress(OSError, ValueError):  # where it is no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
