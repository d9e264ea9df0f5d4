"""What a network that is replaced in flight costs: ``python -m benchmarks.frames.reloading``.

Flies over the demo's world with ``--watch``. Now and then a weight of the upres agent changes on
disk. Frames in which a change was noticed, compiled, uploaded or taken are counted apart from all
others.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
from demo_game.agents import FileWatch
from demo_game.chain import MODELS
from demo_game.command import parser as game_parser
from demo_game.headless import HeadlessRun, Options
from demo_game.settings import choose

#: frames before and after one in which something happened that are counted with it
_BEFORE, _AFTER = 2, 4


def fly(flown: HeadlessRun, weights: Path, frames: int, every: int) -> tuple[list[float], set[int]]:
    """Milliseconds of each frame, and the frames around the reloads. A weight changes in every
    ``every``-th frame."""
    watch, times, around = flown.game.watch, [], set[int]()
    assert isinstance(watch, FileWatch)
    step = flown.game.settings.frame_ms / 1e3
    for number in range(frames):
        if number % every == every // 2:
            _change(weights)
        said = watch.said
        times.append(flown._paced(flown._pose(number), step).frame_ms)
        if watch.said != said:
            around |= set(range(number - _BEFORE, number + _AFTER))
    return times, around


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
    options.add_argument("--frames", type=int, default=1200)
    options.add_argument("--every", type=int, default=120, help="frames between two changes")
    asked = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(shutil.copytree(MODELS, Path(folder, "models")))
        arguments = game_parser().parse_args(["--models", str(models), "--watch"])
        gpu = cml.Gpu()
        quality, settings, _ = choose(gpu, arguments)
        flown = HeadlessRun(gpu, quality, settings, Options())
        try:
            flown.load()
            flown.game.controls.mode = "sliced"
            weights = models / "upres.nnef" / "conv2.bias.dat"
            times, around = fly(flown, weights, asked.frames, asked.every)
        finally:
            flown.close()
    near = [ms for number, ms in enumerate(times) if number in around]
    others = [ms for number, ms in enumerate(times) if number not in around]
    print(f"{'frames':24s} {'number':>6s} {'P50 ms':>8s} {'max ms':>8s} {'late':>5s}")
    if near:
        print(row("around a reload", near, settings.frame_ms))
    print(row("all others", others, settings.frame_ms))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
