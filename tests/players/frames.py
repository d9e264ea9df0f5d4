"""The budget, kept by the Python scheduler and by the C player: one table, one machine, one run.

``python -m tests.players.frames MODEL --budget-ms 4 --frames 600``; the two take turns. Exit code 1
where the C player made anything in its frames.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.cooked import cook
from scheduler.tools.commands import cooked_guesses
from scheduler.tools.measure import Percentiles, measure_frames
from tests.players.building import build
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
    chosen = parser.parse_args()
    graph = cml.load(chosen.model)
    inputs, gpu = _inputs(graph), cml.Gpu()
    program = build("play.c", "-O2", device=True)
    ours: list[float] = []
    cpu: list[float] = []
    made: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.cml"
        file.write_bytes(
            cook(graph, ["portable", "discrete", "software"], guesses=cooked_guesses())
        )
        session = cml.Session(graph, gpu)
        for _ in range(chosen.turns):
            frames = max(1, chosen.frames // chosen.turns)
            python = measure_frames(
                session, inputs, budget_ms=chosen.budget_ms, frame_ms=1000 / 60, frames=frames,
                layers=4, same=_same,
            )  # fmt: skip
            print(python)
            words = ("--budget", str(chosen.budget_ms), "--frames", str(frames), "--wait")
            told = play(program, file, inputs, {}, *words).told
            ours += told["measured_ms"]
            cpu += told["cpu_ms"]
            made = {key: made.get(key, 0) + count for key, count in told["made"].items()}
    over = sum(ms > chosen.budget_ms for ms in ours)
    print(_row("C player", Percentiles.of(ours)))
    print(
        f"{len(ours)} full frames of the C player, {over} over budget "
        f"({100 * over / max(1, len(ours)):.2f} %), "
        f"{100 * sum(ours) / max(1e-9, chosen.budget_ms * len(ours)):.1f} % of the budget used"
    )
    print(f"CPU of cml_encode per frame, ms: {Percentiles.of(cpu)}; made in the frames: {made}")
    return int(any(made.values()))


if __name__ == "__main__":
    sys.exit(main())
