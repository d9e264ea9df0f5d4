"""Compares the C player on Vulkan and on wgpu-native, and ncnn on Vulkan, in interleaved rounds.

``python -m benchmarks.players`` builds ``players/c/tools/play.c`` for both APIs with CMake, and
prints a table: loading, a run on the host's clock, and the peak of the process's memory, of each
network; and the CPU time of encoding a frame of 200 dispatches. The last column is the median over
the rounds of Vulkan's least value divided by wgpu-native's. ncnn's memory is what it adds to that
of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from benchmarks import contenders
from benchmarks.command import fetch_assets
from benchmarks.models import MODELS
from cml_engine.cooked import cook
from cml_engine.formats import ImportBuilder
from cml_engine.ir.graph import Graph

ROOT = Path(__file__).resolve().parents[1]
#: programs of CMake by the column's title
PROGRAMS = {"Vulkan": "cml_vulkan_play", "wgpu-native": "cml_play"}
NCNN = "ncnn Vulkan"
_NETWORKS = ("upres64", "agent-upres", "agent-texture", "agent-population")
_DEVICES = ("portable", "software")
#: more than a network takes
_WHOLE_RUN_MS = "1e9"
#: dispatches of the frame whose encoding is timed
_DISPATCHES = 200


@dataclass
class Figures:
    """The measured values of one network on one engine, a list each."""

    load_ms: list[float] = field(default_factory=list)
    run_ms: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)

    def least(self, key: str) -> list[float]:
        """Returns the least value of each round."""
        values: list[float] = getattr(self, key)
        count = len(values) // len(self.memory_mb)
        return [min(values[i : i + count]) for i in range(0, len(values), count)]


def build(folder: Path) -> dict[str, Path]:
    """Builds the programs for both APIs and returns their paths by title."""
    import cmake
    import wgpu

    headers = Path(str(wgpu.__file__)).parent / "resources"
    program = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    options = ("-DCML_VULKAN=ON", "-DCML_TOOLS=ON", f"-DCML_WGPU_DIR={headers}")
    for words in (
        ("-S", ROOT / "players/c", "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *options),
        ("--build", folder, "--target", *PROGRAMS.values()),
    ):
        subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return {title: folder / name for title, name in PROGRAMS.items()}


def play(program: Path, file: Path, *words: str) -> dict[str, Any]:
    """Plays a cooked file and returns what the program prints."""
    environment = os.environ | {"NODEVICE_SELECT": "1"}  # a Mesa layer that requires a desktop
    command: list[str | Path] = [program, file, "--trusted", "--budget", _WHOLE_RUN_MS, *words]
    return _told(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE))


def _told(run: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told


def measure_ncnn(folder: Path) -> None:
    """Loads and runs a network's files with ncnn on Vulkan and prints its figures in JSON."""
    import ncnn

    workload, before = contenders.Workload(folder), _memory_mb("VmRSS")
    ncnn.get_gpu_count()  # starts the device
    device = time.perf_counter()
    net, _ = contenders.ncnn_net(workload, on_gpu=True)
    loaded = time.perf_counter()
    inputs, times = workload.load_inputs(), []
    for _ in range(6):
        begun = time.perf_counter()
        contenders.run_ncnn(net, inputs, net.output_names())
        times.append(1e3 * (time.perf_counter() - begun))
    sys.stdout.write(
        json.dumps(
            {
                "load_ms": [1e3 * (loaded - device)],
                "run_ms": times[3:],
                "memory_mb": _memory_mb("VmHWM") - before,
            }
        )
    )


def _memory_mb(name: str) -> float:
    """Returns the line ``name`` of Linux's ``/proc/self/status``, a size, in MiB."""
    text = Path("/proc/self/status").read_text("utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def many_steps() -> Graph:
    """Returns a network of 200 products of small matrices."""
    make, random = ImportBuilder(), np.random.default_rng(0)
    x = make.input("x", (4, 16))
    for i in range(_DISPATCHES):
        matrix = make.variable(f"matrix{i}", random.standard_normal((16, 16)) / 4)
        x = make.node("matmul", [x, matrix], f"product{i}", transposeA=False, transposeB=False)
    return make.graph("steps", [x])


def bench(name: str, programs: Mapping[str, Path], rounds: int) -> dict[str, Figures]:
    """Measures a network of :data:`MODELS` in rounds; returns the figures by title."""
    found = {title: Figures() for title in (*programs, NCNN)}
    with tempfile.TemporaryDirectory(prefix="cml-players-") as path:
        folder = Path(path)
        workload, file = contenders.Workload(folder), folder / "net.cml"
        MODELS[name](workload)
        file.write_bytes(cook(cml.load(workload.nnef), _DEVICES, golden=False))
        ncnn = [sys.executable, "-m", "benchmarks.players", "--ncnn", path]
        for number in range(rounds):
            order = list(programs.items())[:: -1 if number % 2 else 1]
            told = {t: play(p, file, "--runs", "12", "--wait") for t, p in order}
            if workload.param.exists():
                told[NCNN] = _told(
                    subprocess.run(ncnn, cwd=ROOT, check=True, stdout=subprocess.PIPE)
                )
            for title, one in told.items():
                found[title].load_ms += one["load_ms"]
                found[title].run_ms += one["run_ms"]
                found[title].memory_mb.append(one["memory_mb"])
    return found


def encoding(programs: Mapping[str, Path], rounds: int) -> dict[str, float]:
    """Returns the median CPU time of encoding a frame of 200 dispatches, in µs by title."""
    found: dict[str, list[float]] = {title: [] for title in programs}
    with tempfile.TemporaryDirectory(prefix="cml-players-") as path:
        file = Path(path) / "steps.cml"
        file.write_bytes(cook(many_steps(), _DEVICES, golden=False))
        for _ in range(rounds):
            for title, program in programs.items():
                words = ("--runs", "60", "--slices", str(_DISPATCHES))
                found[title] += play(program, file, *words)["frame_us"]
    return {title: statistics.median(times) for title, times in found.items()}


def table(found: Mapping[str, Mapping[str, Figures]], encoded: Mapping[str, float]) -> str:
    """Returns the figures as a Markdown table: the medians, and the least values in brackets."""
    ours, theirs = PROGRAMS
    titles = (*PROGRAMS, NCNN)
    heads = ("network", "figure", *titles, f"{ours} ÷ {theirs}")
    rows = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * (len(titles) + 1)]
    units = {"load_ms": "loading, ms", "run_ms": "a run, ms", "memory_mb": "peak memory, MB"}
    for name, by_title in found.items():
        for key, unit in units.items():
            values = [getattr(by_title[title], key) for title in titles]
            cells = [
                f"{statistics.median(v):.1f} ({min(v):.1f})" if v else "cannot load" for v in values
            ]
            pairs = zip(by_title[ours].least(key), by_title[theirs].least(key), strict=True)
            cells.append(f"{statistics.median(a / b for a, b in pairs):.2f}")
            rows.append(f"| {name} | {unit} | {' | '.join(cells)} |")
    cells = [f"{encoded[title]:.0f}" if title in encoded else "" for title in titles]
    cells.append(f"{encoded[ours] / encoded[theirs]:.2f}")
    unit = "encoding and submitting a frame, µs of CPU"
    rows.append(f"| {_DISPATCHES} dispatches | {unit} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.players", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(_NETWORKS))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each measurement")
    parser.add_argument("--ncnn", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ncnn is not None:
        measure_ncnn(options.ncnn)
        return 0
    fetch_assets()
    with tempfile.TemporaryDirectory(prefix="cml-build-") as folder:
        programs = build(Path(folder))
        found = {name: bench(name, programs, options.rounds) for name in options.models}
        print(table(found, encoding(programs, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
