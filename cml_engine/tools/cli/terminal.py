"""The output, errors, exit code, log and progress of a command on the terminal."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO, cast

from cml_engine.errors import CmlError, InternalError

if TYPE_CHECKING:
    from rich.progress import TaskID

_REPORT = "This is a fault of cml, not of the model: please report it. CML_DEBUG=1 shows where."
#: Control characters except line ends and tabs, Unicode line and paragraph separators, and marks
#: that change the direction of text: a model's names must not control the terminal.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}
#: the level of the log by the number of -v
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
#: a command says what it does after this time (s), and again after each change that lasts as long
_SILENT_S = 1.0
#: the time (s) until a stage that goes on is said again
_AGAIN_S = 10.0
#: texts for the stages of ``Session(on_progress=…)``
_STAGES = {"plan": "planning", "kernels": "building kernels"}


def print_error(text: str) -> None:
    """Prints a line of the command on standard error, with control characters escaped."""
    with contextlib.suppress(OSError):  # without standard error only the exit code remains
        print(f"cml: {text}".translate(_CONTROLS), file=sys.stderr, flush=True)


def print_any_path() -> None:
    """Makes standard output and error accept every path, whatever their encoding is.

    In a locale without UTF-8 Python keeps the bytes of a name that it cannot decode, and here they
    are written as they are. Other letters that the encoding lacks are escaped.
    """
    codecs.register_error("cml-path", _encode_path)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="cml-path")


def _encode_path(error: UnicodeError) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    undecoded = range(0xDC80, 0xDD00)  # bytes, as the handler "surrogateescape" stores them
    parts = (
        bytes([ord(c) - 0xDC00]) if ord(c) in undecoded else c.encode("ascii", "backslashreplace")
        for c in letters
    )
    return b"".join(parts), error.end


class _Escaped:
    """A text stream that passes text on to another stream, with control characters escaped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(_CONTROLS))

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def exit_code(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code, or the code of the error that it raised.

    The code is 2 for errors that the caller can correct, 1 for internal errors, and 130 after an
    interrupt. Prints the error. Never raises, except for internal errors if ``CML_DEBUG`` is set.
    """
    print_any_path()
    stdout = cast(TextIO, _Escaped(sys.stdout))
    try:
        try:
            with contextlib.redirect_stdout(stdout):
                return command()
        finally:  # raise write errors here and not at interpreter exit
            sys.stdout.flush()
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except (CmlError, OSError, MemoryError) as error:
        if _is_broken_pipe(error):
            _drop_output()
            return 0
        if not isinstance(error, InternalError):
            print_error(f"error: {_describe(error)}")
            return 2
        return _internal_error(error, str(error))
    except Exception as error:
        return _internal_error(error, f"{type(error).__name__}: {error}")


def _is_broken_pipe(error: Exception) -> bool:
    """Returns True if the reader of the pipe has exited: EINVAL without a file on Windows."""
    if isinstance(error, OSError) and error.filename is None and sys.platform == "win32":
        return error.errno in (errno.EPIPE, errno.EINVAL)
    return isinstance(error, BrokenPipeError)


def _internal_error(error: Exception, message: str) -> int:
    if os.environ.get("CML_DEBUG"):
        raise error
    print_error(f"internal error: {message}\n{_REPORT}")
    return 1


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        return f"not enough memory{reason}: close other programs, or take a smaller model"
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            _drop_output()
            return f"cannot write: {error.strerror}"
        return f"'{error.filename}': {error.strerror}"
    return str(error)


def _drop_output() -> None:
    """Redirects standard output to the null device, so that exit repeats no failed write."""
    with contextlib.suppress(OSError, ValueError):  # it may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _ToStderr(logging.Handler):
    """A log handler that prints one line per record to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_error(f"{record.levelname.lower()}: {record.getMessage()}")


class _ToList(logging.Handler):
    """A log handler that appends one line per record to :attr:`lines`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}")


@contextlib.contextmanager
def _handling(handler: logging.Handler, level: int) -> Iterator[None]:
    """Passes the engine's log messages from ``level`` on to a handler inside the ``with`` block."""
    handler.setLevel(level)
    loggers = [logging.getLogger(name) for name in ("cml_engine", "scheduler")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(min(level, logger.level or level))
    try:
        yield
    finally:
        for logger, level_before in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level_before)


@contextlib.contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Prints the engine's log messages to standard error inside the ``with`` block.

    ``verbose`` is the number of ``-v`` options: the more, the lower the level.
    """
    with _handling(_ToStderr(), _LEVELS[min(verbose, len(_LEVELS) - 1)]):
        yield


@contextlib.contextmanager
def log_lines() -> Iterator[list[str]]:
    """Yields a list to which the engine's log messages are added inside the ``with`` block."""
    handler = _ToList()
    with _handling(handler, logging.DEBUG):
        yield handler.lines


class _Narrator:
    """Prints a command's stage once it has run for a second, so that no command is silent longer.

    Only stages inside :meth:`running` are printed.
    """

    def __init__(self) -> None:
        #: the stage, "" for one that prints its own progress, and how far it is
        self._now = "", ""

    @property
    def name(self) -> str:
        return self._now[0]

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Makes a name the stage inside the ``with`` block."""
        before = self._now
        self.advance(name)
        try:
            yield
        finally:
            self._now = before

    def advance(self, name: str, detail: str = "") -> None:
        """Changes the stage inside a :meth:`stage`, or how far it is."""
        self._now = name, detail

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Prints the stages inside the ``with`` block, from a thread of its own."""
        ended = threading.Event()
        thread = threading.Thread(target=self._print_stages, args=(ended,), daemon=True)
        thread.start()
        try:
            with self.stage("working"):
                yield
        finally:
            ended.set()
            thread.join()

    def _print_stages(self, ended: threading.Event) -> None:
        printed, printed_at = "", 0.0
        while not ended.wait(_SILENT_S):
            stage, detail = self._now
            if stage and (stage != printed or time.monotonic() > printed_at + _AGAIN_S):
                print_error(f"{stage}{detail} ...")
                printed, printed_at = stage, time.monotonic()


narrator = _Narrator()


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A context manager that shows progress bars on a terminal, one for each stage of the work.

    Yields the function that updates them: it takes a stage, the number of its finished items, and
    the number of all its items.
    """
    if not sys.stderr.isatty():

        def advance(stage: str, done: int, total: int) -> None:
            narrator.advance(_STAGES.get(stage, stage), f", {done} of {total}")

        with narrator.stage(narrator.name):
            yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    with narrator.stage(""), bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_STAGES.get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done)

        yield show
