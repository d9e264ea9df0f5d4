"""Reads JSON files from untrusted sources; malformed content raises ``ValueError``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cml_engine.errors.arguments import shortened

#: data that JSON can hold
Json: TypeAlias = "bool | int | float | str | None | Sequence[Json] | Mapping[str, Json]"
#: a JSON object, whose values are checked where they are used
JsonObject: TypeAlias = dict[str, Any]
#: far above the size of any file that this project writes
MAX_BYTES = 64 * 2**20


def read_json(path: str | Path) -> Any:
    """Returns the data of a JSON file (UTF-8).

    Raises ``OSError`` if the file cannot be read, and ``ValueError`` if it is larger than
    ``MAX_BYTES``, not JSON, or contains NaN or infinities.
    """
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Returns the data of a JSON text; raises ``ValueError`` if it is invalid.

    NaN, infinities and too deep nesting are invalid too.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def finite(value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns a number in the range as a float; raises ``ValueError`` for anything else.

    The range is ``low`` to ``high``, both included; infinities are never in it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"wanted a number, got {shortened(repr(value))}")
    if not low <= value <= high or abs(value) > sys.float_info.max:
        raise ValueError(f"wanted a number of {low:g} to {high:g}, got {shortened(repr(value))}")
    return float(value)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number")
    return value
