"""JSON files that may come from anywhere: whatever is in one, there is data or a ``ValueError``."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

#: no file of ours comes near it
MAX_BYTES = 64 * 2**20


def read_json(path: Path) -> Any:
    """What is in the file; ``OSError`` where it cannot be read, ``ValueError`` where it is no
    JSON, or has numbers that are none."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """The text's data; ``ValueError`` where it is no JSON, or has numbers that are none."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def finite(value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A number of the data in that range; ``ValueError`` where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"wanted a number, got {_shown(value)}")
    if not low <= value <= high or abs(value) > sys.float_info.max:
        raise ValueError(f"wanted a number of {low:g} to {high:g}, got {_shown(value)}")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number")
    return value
