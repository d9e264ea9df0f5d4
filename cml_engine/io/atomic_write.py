"""Writes files atomically: to a temporary file in the same folder, which then replaces the target.

Every writer of this project uses :func:`write_atomically`. A full disk, an exception or an
interrupt leaves the old file intact. If two programs write the same file at once, both succeed
and the later one wins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_path, shortened

__all__ = [
    "check_writable",
    "replace_file",
    "write_atomically",
]

#: The prefix of temporary files and folders. Only a killed process leaves one behind.
PARTIAL = ".cml-partial-"
#: A folder inside of a model's folder that holds all files of the model's new version. Readers
#: prefer it as long as it contains the graph. Its files are moved out one by one.
COMPLETE = ".cml-complete"
#: Age in seconds at which a partial file counts as abandoned.
_ABANDONED_S = 3600.0
#: Seconds for which a rename is tried again, and between two tries: Windows refuses it while any
#: program has the file open, such as a reader, another writer or a virus scanner.
_PATIENCE_S, _PAUSE_S = 1.0 if sys.platform == "win32" else 0.0, 0.01
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

Content = bytes | str | Callable[[BinaryIO], object]


def write_atomically(path: str | Path, content: Content) -> None:
    """Writes a file atomically and creates its folder if necessary.

    Links are followed, and an existing file keeps its mode. A special file (a pipe, a device)
    cannot be replaced and is written directly.

    Parameters
    ----------
    path : the file.
    content : its bytes, its text (UTF-8), or a function that writes into the open file.

    Raises
    ------
    InputError
        if an argument is none of these.
    OSError
        if the file cannot be written; its ``filename`` is ``path``.

    Examples
    --------
    >>> write_atomically("saves/settings.json", "{}")
    """
    path = check_path(path, "the file to write")
    if not isinstance(content, bytes | bytearray | memoryview | str) and not callable(content):
        raise InputError(
            "the content of a file: wanted bytes, a text or a function that writes it, got "
            f"{shortened(repr(content))}"
        )
    try:
        if check_writable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent)
            replace_file(Path(os.path.realpath(path)), content)
        else:
            with path.open("wb") as file:
                _put(file, content)
    except OSError as error:
        if error.errno is None:
            raise
        # report the target: the name of the partial file would be meaningless
        raise OSError(error.errno, error.strerror, str(path)) from error


_swept: set[Path] = set()


def sweep(folder: Path) -> None:
    """Removes temporary files that killed processes left in a folder more than an hour ago.

    Only the first call for a folder in a process does anything.
    """
    if folder in _swept:
        return
    _swept.add(folder)
    for leftover in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):  # another process removes it too
            if time.time() - leftover.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def check_writable(path: Path) -> bool:
    """Returns True for a regular file or a path that does not exist, False for a pipe or a device.

    Raises ``OSError`` for a folder, and if the path cannot be written, as far as that is known in
    advance.

    Examples
    --------
    >>> check_writable(Path("settings.json"))
    True
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.W_OK):  # replacing the file would only check its folder
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return stat.S_ISREG(mode)


def replace_file(target: Path, content: Content) -> None:
    """Atomically writes a regular file in an existing folder, without checks and without sweeping.

    Intended for callers that write many files and check the folder once; others use
    :func:`write_atomically`.

    Examples
    --------
    >>> replace_file(Path("settings.json"), "{}")
    """
    partial = target.with_name(PARTIAL + secrets.token_hex(8))
    try:
        with os.fdopen(os.open(partial, _FLAGS, 0o666), "wb") as file:
            _put(file, content)
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        rename(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def rename(source: Path, target: Path) -> None:
    """Renames a file or a folder atomically; a file at ``target`` is replaced."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE_S)


def _put(file: BinaryIO, content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)
