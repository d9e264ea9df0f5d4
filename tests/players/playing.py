"""Runs ``players/c/play.c`` on a cooked file and reads its output."""

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
    """The result of a run of the C player.

    ``outputs`` has flat arrays by name; ``told`` is the JSON that the program prints.
    """

    outputs: dict[str, Array]
    told: dict[str, Any]


def run_play(program: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the program with leak detection off; returns the finished process, whatever its exit
    code."""
    environment = {
        **os.environ,
        "NODEVICE_SELECT": "1",  # a Mesa layer that requires a desktop
        "ASAN_OPTIONS": "detect_leaks=0",  # the driver leaks; the program counts its own
    }
    return subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=1200, env=environment
    )


def as_on_device(array: Array) -> Array:
    """Returns the array as it lies on a device: float32, int32, or uint32 with 0 or 1 for truth
    values."""
    kind = {"f": np.float32, "b": np.uint32}.get(array.dtype.kind, np.int32)
    return np.ascontiguousarray(array, kind)


def play(
    program: Path, file: Path, inputs: Mapping[str, Array], outputs: Mapping[str, Any], *words: str,
    trusted: bool = True,
) -> Played:  # fmt: skip
    """Plays a cooked file; returns the outputs as flat arrays, and the JSON that the program
    prints.

    ``outputs`` has the outputs' types by name; ``words`` are further options. The inputs and
    outputs are files beside the cooked one.
    """
    command: list[str | Path] = [file, *(["--trusted"] if trusted else [])]
    for name, array in inputs.items():
        path = file.with_suffix(f".{name}.in")
        as_on_device(array).tofile(path)
        command += ["--input", f"{name}={path}"]
    paths = {name: file.with_suffix(f".{name}.out") for name in outputs}
    for name, path in paths.items():
        path.unlink(missing_ok=True)
        command += ["--output", f"{name}={path}"]
    run = run_play(program, *command, *words)
    assert run.returncode == 0, run.stderr
    found = {name: np.fromfile(path, outputs[name]) for name, path in paths.items()}
    return Played(found, json.loads(run.stdout))


@dataclass(frozen=True)
class InSlices:
    """The comparison of one network's runs with several budgets.

    ``frames`` are those of each run that ran a part of the network. ``same_slices`` is True if all
    runs are bit-identical, ``same_bits`` if they equal the expected outputs. ``off`` is the largest
    difference from these, over 1 plus the value.
    """

    frames: tuple[int, ...]
    same_slices: bool
    same_bits: bool
    off: float


def play_in_slices(
    program: Path, file: Path, inputs: Mapping[str, Array], wanted: Mapping[str, Array],
    budgets: tuple[str, ...] = ("0.5", "8", "1e9"),
) -> InSlices:  # fmt: skip
    """Plays a cooked file once with each budget in milliseconds, and compares the outputs.

    The runs are compared with each other for identical bits, and the first one with ``wanted``.
    """
    expected = {name: as_on_device(array) for name, array in wanted.items()}
    kinds = {name: array.dtype for name, array in expected.items()}
    played = [play(program, file, inputs, kinds, "--budget", ms) for ms in budgets]
    first = played[0].outputs
    return InSlices(
        tuple(run.told["with_slices"] for run in played),
        all(run.outputs[n].tobytes() == first[n].tobytes() for run in played for n in kinds),
        all(first[n].tobytes() == expected[n].tobytes() for n in kinds),
        max(_off(first[n], expected[n].ravel()) for n in kinds),
    )


def _off(found: Array, wanted: Array) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float((np.abs(a - b) / (1 + np.abs(b))).max(initial=0.0))
