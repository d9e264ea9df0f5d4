"""Deno, which runs the JavaScript player without a browser and fetches packages of npm's."""

from __future__ import annotations

import importlib.util
import shutil


def find_deno() -> str | None:
    """The program of the `deno` wheel (the extra `players`), or of the path."""
    found = importlib.util.find_spec("deno")
    if found is not None and found.origin is not None:
        import deno

        return str(deno.find_deno_bin())
    return shutil.which("deno")
