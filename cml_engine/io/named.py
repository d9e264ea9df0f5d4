"""A file that a tensor goes into or comes out of, and how its numbers become the tensor's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import FINITE

__all__ = [
    "NamedFile",
    "named_file",
]

#: behind a file's suffix; a colon elsewhere is a part of the name
_OPTIONS = re.compile(r"(?P<file>.*\.\w+):(?P<options>[a-z]+=[^/\\]*)")
_KNOWN = ("scale", "shift", "bits", "alpha")
ALPHAS = ("keep", "drop")
BITS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """``number * scale + shift`` is done on the way in and on the way out; ``bits`` of a written
    picture's samples, 0 for what is usual; ``alpha`` "drop": a read picture's is left out."""

    path: Path
    scale: float = 1.0
    shift: float = 0.0
    bits: int = 0
    alpha: str = "keep"

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()

    def scaled(self, array: Any) -> Any:
        """The array's numbers as they are on the other side."""
        if (self.scale, self.shift) == (1.0, 0.0):
            return array
        return (array * self.scale + self.shift).astype(array.dtype)

    def __str__(self) -> str:
        return str(self.path)


def named_file(text: str | Path | NamedFile) -> NamedFile:
    """``height.png:scale=8848,shift=-400`` as a file and what is done to its numbers."""
    if isinstance(text, NamedFile):
        return text
    found = _OPTIONS.fullmatch(str(text))
    if found is None:
        return NamedFile(Path(text))
    return NamedFile(Path(found["file"]), **dict(_option(p) for p in found["options"].split(",")))


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
    wanted = f"{name} of {', '.join(map(str, values))}" if values else ", ".join(_KNOWN)
    raise InputError(f"'{pair}': wanted {wanted}, as height.png:scale=100,shift=-5")
