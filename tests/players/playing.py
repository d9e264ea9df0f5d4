"""Runs ``players/c/play.c`` on a cooked file and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Played:
    """``outputs`` are flat; ``told`` is what the program prints."""

    outputs: dict[str, Array]
    told: dict[str, Any]


def run_play(program: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The program's run, whatever comes of it; nothing that a sanitizer says goes unheard."""
    environment = {
        **os.environ,
        "NODEVICE_SELECT": "1",  # a layer of Mesa's that asks for a desktop
        "ASAN_OPTIONS": "detect_leaks=0",  # the driver's; the program counts its own
    }
    return subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=300, env=environment
    )


def play(
    program: Path, file: Path, inputs: Mapping[str, Array], outputs: Mapping[str, Any], *words: str
) -> Played:
    """The network's outputs (their types are given), and the frames that it took."""
    command: list[str | Path] = [file]
    for name, array in inputs.items():
        path = file.with_suffix(f".{name}.in")
        np.ascontiguousarray(array).tofile(path)
        command += ["--input", f"{name}={path}"]
    paths = {name: file.with_suffix(f".{name}.out") for name in outputs}
    for name, path in paths.items():
        path.unlink(missing_ok=True)
        command += ["--output", f"{name}={path}"]
    run = run_play(program, *command, *words)
    assert run.returncode == 0, run.stderr
    found = {name: np.fromfile(path, outputs[name]) for name, path in paths.items()}
    return Played(found, json.loads(run.stdout))
