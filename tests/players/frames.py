"""Compares how the Python scheduler and the players keep a frame budget, on one machine in one run.

``python -m tests.players.frames MODEL --budget-ms 4 --frames 600`` prints the table of
``cml frames`` from Python and from the JavaScript player in Deno, and then Python's rows beside
those of the C player, which also encodes as many frames of ten slices. ``--players web`` or ``c``
selects one player. They run in interleaved rounds. Exit code 1 if the C player created any object
in its frames, or if slices in the JavaScript player were not bit-identical to a whole run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.cooked import PROFILES, cook
from scheduler.tools.commands import cooked_guesses
from scheduler.tools.measure import Percentiles, measure_frames
from tests.fixtures.cooked import chain
from tests.players.building import build
from tests.players.deno import WEB, deno_command
from tests.players.playing import Array, play

_MODEL = Path(__file__).resolve().parents[2] / "demo_game" / "models" / "upres.nnef"


def _same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b))


def _inputs(graph: cml.Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.random(graph.facts[name].shape, np.float32) for name in graph.inputs}


def _row(name: str, took: Percentiles) -> str:
    return f"{name:28s} {took}   {took.tail:7.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.players.frames", description=__doc__)
    parser.add_argument("model", nargs="?", default=_MODEL, type=Path)
    parser.add_argument("--budget-ms", type=float, default=4.0)
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--players", nargs="+", choices=("c", "web"), default=("c", "web"))
    chosen = parser.parse_args()
    graph = cml.load(chosen.model)
    inputs, session = _inputs(graph), cml.Session(graph, cml.Gpu())
    frames = max(1, chosen.frames // chosen.turns)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.cml"
        file.write_bytes(cook(graph, PROFILES, guesses=cooked_guesses()))
        by_c = _ByC(file, chosen.budget_ms, frames) if "c" in chosen.players else None
        rows: list[str] = []
        same = True
        for _ in range(chosen.turns):
            python = measure_frames(
                session, inputs, budget_ms=chosen.budget_ms, frame_ms=1000 / 60, frames=frames,
                layers=4, same=_same,
            )  # fmt: skip
            print(f"Python: {python}", flush=True)
            rows.append(_row(f"Python, turn {len(rows) + 1}", python.slices_ms))
            if "web" in chosen.players:
                same &= _by_deno(file, chosen.budget_ms, frames)
            if by_c:
                by_c.run(inputs)
        if by_c:
            by_c.show(rows)
            by_c.encode(Path(folder), max(chosen.frames, 500))
    return int(not same or bool(by_c and any(by_c.made.values())))


def _by_deno(file: Path, budget_ms: float, frames: int) -> bool:
    """Prints the table of the JavaScript player; returns True if Deno's exit code is 0.

    It is 0 if slices were bit-identical to a whole run.
    """
    words = ("--budget-ms", str(budget_ms), "--frames", str(frames))
    command = deno_command("run", "-A", "--no-check", WEB / "frames.js", file, *words)
    done = subprocess.run(**command, capture_output=True, text=True)
    print(f"JavaScript: {done.stdout}{done.stderr if done.returncode else ''}", end="", flush=True)
    return done.returncode == 0


class _ByC:
    """The C player's frames: their times and the objects created in them, collected over all
    rounds."""

    def __init__(self, file: Path, budget_ms: float, frames: int) -> None:
        self.program = build("play.c", "-O2", device=True)
        self.file, self.budget_ms = file, budget_ms
        self.words = ("--budget", str(budget_ms), "--frames", str(frames), "--wait")
        self.measured: list[float] = []
        self.cpu: list[float] = []
        self.made: dict[str, int] = {}

    def run(self, inputs: dict[str, Array]) -> None:
        told = play(self.program, self.file, inputs, {}, *self.words).told
        self.measured += told["measured_ms"]
        self.cpu += told["cpu_ms"]
        self.made = {key: self.made.get(key, 0) + count for key, count in told["made"].items()}

    def show(self, rows: list[str]) -> None:
        ours, budget_ms = self.measured, self.budget_ms
        over, used = sum(ms > budget_ms for ms in ours), sum(ours)
        print(f"{'ms per frame':28s}{'P50':>9s}{'P95':>9s}{'P99':>9s}{'max':>9s}   P99/P50")
        print("\n".join([*rows, _row("C player, all turns", Percentiles.of(ours))]))
        print(
            f"{len(ours)} full frames of the C player, {over} over budget "
            f"({100 * over / max(1, len(ours)):.2f} %), "
            f"{100 * used / max(1e-9, budget_ms * len(ours)):.1f} % of the budget used"
        )
        cpu = Percentiles.of(self.cpu)
        print(f"CPU of cml_encode per frame, ms: {cpu}; made in the frames: {self.made}")

    def encode(self, folder: Path, frames: int) -> None:
        """Prints the time to encode frames of ten slices, and counts the objects created in
        them."""
        file = folder / "chain.cml"
        file.write_bytes(cook(chain(), ["portable", "software"]))
        words = ("--slices", "10", "--frames", str(frames), "--budget", "1e9")
        told = play(self.program, file, {"y0": np.ones((1, 8), np.float32)}, {}, *words).told
        us: list[float] = told["encode_us"]
        self.made = {key: count + told["made"][key] for key, count in self.made.items()}
        print(
            f"processor time of cml_encode, {len(us)} frames of 10 slices: median "
            f"{np.median(us):.1f} us, P95 {np.percentile(us, 95):.1f} us; made: {told['made']}"
        )


if __name__ == "__main__":
    sys.exit(main())
