"""How a command ends: its exit code, and one readable message for whatever went wrong."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable

from cml_engine.errors import CmlError, InternalError

_REPORT = "This is a fault of cml, not of the model: please report it. CML_DEBUG=1 shows where."


def exit_code(command: Callable[[], int]) -> int:
    """Run a command: what it returns, 2 for what the caller can mend, 1 for a fault of ours, 130
    where it was interrupted. Nothing is raised, unless ``CML_DEBUG`` asks for our own faults."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may have letters that a pipe has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
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
        sys.stderr.write(f"cml: {message}\n")
        sys.stderr.flush()
    return code


def _drop_output() -> None:
    """What standard output did not take must not be tried again at the end."""
    with contextlib.suppress(OSError, ValueError):  # where it is no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
