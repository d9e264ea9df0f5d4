"""Finds Deno, which runs the JavaScript player without a browser and downloads npm packages."""

from __future__ import annotations

import importlib.util
import shutil


def find_deno() -> str | None:
    """Returns the path of Deno's program in the `deno` wheel (extra `players`), else on the PATH.

    Returns None if there is none.
    """
    package = importlib.util.find_spec("deno")
    if package is not None and package.origin is not None:
        import deno

        return str(deno.find_deno_bin())
    return shutil.which("deno")
