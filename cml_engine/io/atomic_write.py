"""A file is written whole or not at all: beside its place first, and then put into it.

Every writer of this project goes through :func:`write_atomically`. A full disk, a fault or an
interrupt halfway leaves what was there before, and two programs that write one file at once each
succeed: the later one stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "check_writable",
    "replace_file",
    "write_atomically",
]

#: Names of files and folders on their way begin with it. Only a killed process leaves one behind.
PARTIAL = ".cml-partial-"
#: A folder inside of a model's folder with all files of the model that replaces it: readers look
#: there first, as long as it has the graph. It is moved out file by file.
COMPLETE = ".cml-complete"
#: Seconds after which nobody writes a partial file any more.
_ABANDONED_S = 3600.0
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

Content = bytes | str | Callable[[BinaryIO], object]


def write_atomically(path: str | Path, content: Content) -> None:
    """Write a file, its folder with it where that is missing.

    A link is followed, and a file that is there keeps its mode. What is no plain file (a pipe, a
    device) cannot be replaced and is written as it is.

    Parameters
    ----------
    path : the file.
    content : its bytes, its text (UTF-8), or a function that writes into the open file.

    Raises
    ------
    OSError
        where it cannot be written; its ``filename`` is ``path``.
    """
    path = Path(path)
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
        # the name of a partial file would tell nobody anything
        raise OSError(error.errno, error.strerror, str(path)) from error


_swept: set[Path] = set()


def sweep(folder: Path) -> None:
    """Removes what killed processes left in a folder; looks once in the life of this process."""
    if folder in _swept:
        return
    _swept.add(folder)
    for left in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):  # another process removes it too
            if time.time() - left.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def check_writable(path: Path) -> bool:
    """Whether the file is a plain one, or will be; ``OSError`` where it cannot be written, as far
    as can be known before."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.W_OK):  # to replace it would ask its folder only
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return stat.S_ISREG(mode)


def replace_file(target: Path, content: Content) -> None:
    """Write a plain file, or one that is not there, in a folder that is: without the looks that
    make sure of it, for those who write many."""
    partial = target.with_name(PARTIAL + secrets.token_hex(8))
    try:
        with os.fdopen(os.open(partial, _FLAGS, 0o666), "wb") as file:
            _put(file, content)
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _put(file: BinaryIO, content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)
