"""The folders that commands write, and the rules for replacing and removing files in them.

- A folder that is not empty is refused, unless the user allows overwriting.
- Overwriting replaces the files that the command writes, and removes the files that the folder's
  own manifest lists. Every other file stays.
- Nothing is written or removed outside of the folder, or through a link inside of it.

Every function of this project that fills a folder uses this module, as does every conversion of
a name to a file name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from cml_engine.errors import InputError
from cml_engine.io.atomic_write import Content, replace_file
from cml_engine.io.json_files import Json, read_json

__all__ = [
    "OutputFolder",
    "check_new_file",
    "check_new_folder",
    "file_below",
    "file_stem",
    "is_device",
    "name_problem",
]

_OVERWRITE = "allow to overwrite it (--overwrite, overwrite=True)"
#: the manifest's list of files; no other program's JSON has this key
_FILES = "cml_files"
#: the most bytes of a file name on common file systems
_LONGEST_PART = 255
#: names of devices on Windows, which no file has there, whatever its suffix
_DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\.|$)", re.IGNORECASE)
_LONGEST_STEM = 150  # leaves room for numbers, digests and suffixes


def check_new_folder(path: Path, overwrite: bool) -> None:
    """Raises ``InputError`` for a file, or a non-empty folder without ``overwrite``."""
    if path.exists() and not path.is_dir():
        raise InputError(f"'{path}' is a file: name a folder")
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise InputError(f"'{path}' is not empty: name another folder, or {_OVERWRITE}")


def check_new_file(path: Path, overwrite: bool) -> None:
    """Raises ``InputError`` for a folder, or an existing file without ``overwrite``."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder: name a file")
    if path.exists() and not overwrite:
        raise InputError(f"'{path}' exists: name another file, or {_OVERWRITE}")


def name_problem(name: str, allowed: str = "") -> str:
    """Returns the reason why a name cannot be a path inside of a folder; "" if it can.

    The reason is the end of a sentence about the name, such as "is empty".

    Parameters
    ----------
    name : the path, with ``/`` between its parts.
    allowed : characters that are accepted although Windows forbids them in file names.
    """
    parts = PurePosixPath(name).parts
    if not parts:
        return "is empty"
    if ".." in parts:
        return "has '..' in it"
    if name.startswith("/"):
        return "begins with '/'"
    forbidden = set(':\\"<>|?*') - set(allowed)
    if any(c in forbidden or ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "has a character that file names must not have"
    longest = max(len(part.encode()) for part in parts)
    return "is too long" if len(name) > 1000 or longest > _LONGEST_PART else ""


def is_device(name: str) -> bool:
    """Returns True if a part of a path is the name of a device on Windows, such as ``aux.dat``."""
    return any(_DEVICE.match(part) for part in PurePosixPath(name).parts)


def file_below(folder: Path, name: str) -> Path:
    """Returns the path ``folder / name`` after checking that it can be written safely.

    Raises
    ------
    InputError
        if the name leads out of the folder, or if its path is a folder or leads through a link.
    """
    if problem := name_problem(name):
        raise InputError(f"the name {name[:80]!r} {problem}: wanted a path inside of '{folder}'")
    path = Path(os.path.realpath(folder), name)
    if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
        raise InputError(
            f"cannot write '{folder / name}': it is a link, or lies behind one, and links inside "
            "of an output folder are never followed. Remove the link, or name another folder"
        )
    if path.is_dir():
        raise InputError(f"cannot write '{folder / name}': it is a folder")
    return folder / name


def file_stem(text: str) -> str:
    """Converts any text to a file name without a suffix.

    Runs of characters other than letters, digits, ``_`` and ``.`` become ``-``. A long name is
    cut, an empty one becomes ``unnamed``, and the name of a device on Windows begins with ``_``.
    """
    name = re.sub(r"[^\w.]+", "-", text, flags=re.ASCII).strip("-.")
    return ("_" if is_device(name) else "") + name[:_LONGEST_STEM] or "unnamed"


class OutputFolder:
    """A folder to write files into, with a manifest: a JSON file that lists all files written.

    Creating the object with ``overwrite`` removes the files of an earlier manifest at once.

    Parameters
    ----------
    path : the folder. It is created with the first file.
    manifest : the name of the manifest.
    overwrite : if the folder is not empty, remove the files that its manifest lists instead of
        refusing the folder.
    """

    def __init__(self, path: str | Path, manifest: str, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._manifest = manifest
        self._files: dict[str, None] = {}
        try:
            check_new_folder(self.path, overwrite)
            for name in self._listed():
                self._remove(name)
        except OSError as error:
            raise self._cannot_write(error) from None

    def place(self, name: str) -> Path:
        """Returns the path of a file that the caller will write; lists it in the manifest.

        Writes nothing.
        """
        path = file_below(self.path, name)
        self._files[name] = None
        return path

    def write(self, name: str, content: Content) -> str:
        """Writes a file in the folder, lists it in the manifest and returns ``name``."""
        path = self.place(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            raise self._cannot_write(error) from None
        return name

    def write_manifest(self, data: Mapping[str, Json]) -> Path:
        """Writes the manifest (``data`` and the names of all files so far) and returns its path."""
        files = [name for name in self._files if name != self._manifest]
        self.write(self._manifest, json.dumps({**data, _FILES: files}, indent=1) + "\n")
        return self.path / self._manifest

    def _listed(self) -> list[str]:
        """Returns the file names in the existing manifest, then the manifest's own name.

        The list is empty if the manifest is missing or unreadable.
        """
        try:
            manifest = read_json(file_below(self.path, self._manifest))
        except (InputError, OSError, ValueError):  # the manifest is missing or unreadable
            return []
        names = manifest.get(_FILES) if isinstance(manifest, dict) else None
        if not isinstance(names, list):
            return []
        return [*(name for name in names if isinstance(name, str)), self._manifest]

    def _remove(self, name: str) -> None:
        try:
            path = file_below(self.path, name)
        except InputError:  # the path leads out of the folder now: the file is not ours
            return
        path.unlink(missing_ok=True)

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(f"cannot write into '{self.path}': {error.strerror or error}")
