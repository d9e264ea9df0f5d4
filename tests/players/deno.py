"""Deno, which has WebGPU and runs on a software driver, for tests of the JavaScript player."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.deno import find_deno as find_deno
from players.build import BuildError, build_core, find_compiler

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "players" / "web"
_SECONDS = 240


def deno_command(*words: str | Path) -> dict[str, Any]:
    """Returns keyword arguments of `subprocess.run` that run Deno with ``words`` in the project's
    root.

    Raises ``FileNotFoundError`` if Deno is not installed. Skips the test if the web player cannot
    be built.
    """
    need_core()
    program = find_deno()
    if program is None:
        raise FileNotFoundError("deno is not installed: pip install deno (the extra `players`)")
    quiet = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "XDG_RUNTIME_DIR": "/tmp"}
    return {"args": [program, *map(str, words)], "cwd": ROOT, "env": os.environ | quiet}


@functools.cache
def need_core() -> Path:
    """Returns the path of the web player's core, which is built if it is not current.

    Skips the test without a compiler for it.
    """
    import fcntl  # not there on Windows, which builds it beforehand

    lock_file = ROOT / ".pytest_cache" / "core.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return build_core()
        except BuildError as error:
            if find_compiler():
                raise
            pytest.skip(str(error))


def run_deno(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs Deno and returns the finished process; skips the test if Deno is not installed.

    With ``check`` a failure of Deno fails the test.
    """
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    done = subprocess.run(**deno_command(*words), capture_output=True, text=True, timeout=_SECONDS)
    if check and done.returncode:
        pytest.fail(
            f"deno {' '.join(map(str, words))}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
        )
    return done


def play_golden(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Plays each cooked file on its golden input in Deno; returns what ``check.js`` prints, in
    order.

    A file is played whole, in slices by a budget and in random slices.
    """
    done = run_deno("run", "-A", "--no-check", WEB / "check.js", *files)
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_right(found: dict[str, Any]) -> bool:
    """Returns True if all slicings are bit-identical and within the golden outputs' tolerance."""
    return bool(found["identical"] and found["error"] <= found["tolerance"])
