"""Deno, which has WebGPU and runs on a software driver, for tests of the JavaScript player."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "players" / "web"
_SECONDS = 240


def find_deno() -> str | None:
    """The program of the `deno` wheel, or of the path."""
    found = importlib.util.find_spec("deno")
    if found is not None and found.origin is not None:
        import deno

        return str(deno.find_deno_bin())
    return shutil.which("deno")


def deno_command(*words: str | Path) -> dict[str, Any]:
    """What `subprocess.run` takes to run Deno from the project's root."""
    program = find_deno()
    if program is None:
        raise FileNotFoundError("deno is not installed: pip install deno (the extra `players`)")
    quiet = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "XDG_RUNTIME_DIR": "/tmp"}
    return {"args": [program, *map(str, words)], "cwd": ROOT, "env": os.environ | quiet}


def run_deno(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Deno for a test; skipped where there is none."""
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    done = subprocess.run(
        **deno_command(*words), capture_output=True, text=True, timeout=_SECONDS
    )
    if check and done.returncode:
        pytest.fail(
            f"deno {' '.join(map(str, words))}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
        )
    return done
