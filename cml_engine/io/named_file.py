"""File names with options that convert a tensor's values: ``height.png:scale=100,shift=-5``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import FINITE, check_path
from cml_engine.ir.graph import Array

__all__ = [
    "NamedFile",
    "file_key",
    "named_file",
]

#: options follow the file's suffix; a colon elsewhere is part of the name
_OPTIONS = re.compile(r"(?P<file>.*\.\w+):(?P<options>[a-z]+=[^/\\]*)")
_KNOWN = ("scale", "shift", "bits", "alpha")
ALPHAS = ("keep", "drop")
BITS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file of a tensor with the options of its conversion.

    ``value * scale + shift`` is applied on reading and on writing. ``bits`` is the sample size
    of a written picture; 0 selects the format's default. ``alpha`` is "drop" to ignore the alpha
    channel of a picture that is read.
    """

    path: Path
    scale: float = 1.0
    shift: float = 0.0
    bits: int = 0
    alpha: str = "keep"

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()

    def scaled(self, array: Array) -> Array:
        """Returns the array multiplied by ``scale`` plus ``shift``, of the same dtype."""
        if (self.scale, self.shift) == (1.0, 0.0):
            return array
        return (array * self.scale + self.shift).astype(array.dtype)

    def __str__(self) -> str:
        return str(self.path)


def named_file(text: str | Path | NamedFile) -> NamedFile:
    """Parses a file name with options, such as ``height.png:scale=8848,shift=-400``.

    A :class:`NamedFile` is returned unchanged. Raises :class:`InputError` for an invalid option.
    """
    if not isinstance(text, NamedFile):
        check_path(text, "the file of an array")
    if isinstance(text, NamedFile):
        return text
    match = _OPTIONS.fullmatch(str(text))
    if match is None:
        return NamedFile(Path(text))
    return NamedFile(Path(match["file"]), **dict(_option(p) for p in match["options"].split(",")))


def file_key(path: str | Path) -> str:
    """Returns a text that is the same for all spellings of a file's path.

    Windows and macOS do not tell upper and lower case apart.

    Examples
    --------
    >>> file_key("out/../a.npy") == file_key("a.npy")
    True
    """
    real = os.path.realpath(path)
    return real.casefold() if sys.platform in ("win32", "darwin") else real


def _option(pair: str) -> tuple[str, Any]:
    name, _, value = pair.partition("=")
    try:
        if name in ("scale", "shift"):
            return name, FINITE.parse(value)
        if name == "bits" and value in map(str, BITS):
            return name, int(value)
        if name == "alpha" and value in ALPHAS:
            return name, value
    except InputError as error:
        raise InputError(f"'{pair}': {error.message}") from None
    values = {"bits": BITS, "alpha": ALPHAS}.get(name)
    if values is None:
        raise InputError(
            f"a file has no option '{name}'; wanted one of {', '.join(_KNOWN)}, as in "
            "height.png:scale=100,shift=-5"
        )
    raise InputError(f"'{pair}': wanted {name} of {', '.join(map(str, values))}")
