"""What a converter's package says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cml_engine.convert.builder import Infer
from cml_engine.graph import Graph


@dataclass(frozen=True, slots=True)
class Format:
    """Files that ``cml convert`` reads: their ``suffix``, and ``read(path, infer, shape)``. A
    package of this folder that has one as ``FORMAT`` is found."""

    name: str
    suffix: str
    read: Callable[[Path, Infer, Any], Graph]
