"""What a network that is replaced in flight costs: ``python -m benchmarks.frames.reloading``.

Flies over the demo's world with ``--watch``. In turns a weight of the upres agent changes on disk,
and all tiles are made anew as they are then, without a change. Frames in which a change is noticed,
compiled, uploaded or taken are counted apart, and as many around the other event, and all others.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cml_engine as cml
from demo_game.agents import FileWatch
from demo_game.chain import MODELS
from demo_game.command import parser as game_parser
from demo_game.headless import HeadlessRun, Options
from demo_game.settings import choose

#: frames before and after the one in which all tiles begin to be made anew that are counted with it
_BEFORE, _AFTER = 12, 4


@dataclass
class Flown:
    """Milliseconds of each frame, and the frames around the two events."""

    times: list[float] = field(default_factory=list)
    reloads: set[int] = field(default_factory=set)
    renewals: set[int] = field(default_factory=set)

    def of(self, frames: set[int]) -> list[float]:
        return [ms for number, ms in enumerate(self.times) if number in frames]


def fly(run: HeadlessRun, weights: Path, frames: int, every: int) -> Flown:
    """An event in every ``every``-th frame."""
    game, flown = run.game, Flown()
    watch = game.watch
    assert isinstance(watch, FileWatch)
    step = game.settings.frame_ms / 1e3
    for number in range(frames):
        event, into = divmod(number, every)
        if into == every // 2:
            if event % 2:
                game.renew()
                flown.renewals |= set(range(number - _BEFORE, number + _AFTER))
            else:
                _change(weights)
        said = watch.said
        flown.times.append(run._paced(run._pose(number), step).frame_ms)
        if watch.said != said:
            before = _BEFORE if watch.said.endswith("done") else 2
            flown.reloads |= set(range(number - before, number + _AFTER))
    return flown


def _change(weights: Path) -> None:
    """The last weight's lowest bits are others: the same network, all but exactly."""
    data = bytearray(weights.read_bytes())
    data[-4] ^= 1
    weights.write_bytes(data)


def row(name: str, times: Sequence[float], target_ms: float) -> str:
    """A line of the table."""
    late = sum(ms > target_ms for ms in times)
    return (
        f"{name:24s} {len(times):6d} {statistics.median(times):8.1f} {max(times):8.1f} "
        f"{late:5d} {100 * late / len(times):6.1f} %"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, default=2400)
    options.add_argument("--every", type=int, default=120, help="frames between two changes")
    asked = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(shutil.copytree(MODELS, Path(folder, "models")))
        arguments = game_parser().parse_args(["--models", str(models), "--watch"])
        gpu = cml.Gpu()
        quality, settings, _ = choose(gpu, arguments)
        run = HeadlessRun(gpu, quality, settings, Options())
        try:
            run.load()
            run.game.controls.mode = "sliced"
            weights = models / "upres.nnef" / "conv2.bias.dat"
            flown = fly(run, weights, asked.frames, asked.every)
        finally:
            run.close()
    print(f"{'frames':24s} {'number':>6s} {'P50 ms':>8s} {'max ms':>8s} {'late':>5s}")
    others = set(range(len(flown.times))) - flown.reloads - flown.renewals
    for name, frames in (
        ("around a reload", flown.reloads),
        ("around a renewal", flown.renewals),
        ("all others", others),
    ):
        if frames:
            print(row(name, flown.of(frames), settings.frame_ms))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
