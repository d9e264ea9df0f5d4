"""Measures the cost of networks in a frame beyond their GPU time.

``python -m benchmarks.frames.cost`` flies alternately with and without networks for some frames,
at a fixed rendering effort, and splits the difference by cause. The longest frames of both modes
are dropped, because they are hitches of the machine. A network that was not timed in a frame
counts with its predicted time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cml_engine as cml
from demo_game.command import parser as game_parser
from demo_game.game import Settings
from demo_game.headless import HeadlessRun, Options
from demo_game.render.pace import EFFORTS, Effort
from demo_game.render.quality import Quality
from demo_game.settings import choose

#: frames dropped at the start of a turn, while work of the previous mode is still in flight
_BEGIN = 6
#: the share of frames that count, the shortest ones
_KEPT = 0.8
#: timed methods of the game's parts, by cause
_CAUSES = {
    "planning and encoding slices": ("scheduler.encode",),
    "tiles: looked for, asked for, copied": ("_look", "streaming.collect"),
    "times read back, learnt from": ("scheduler.end_frame",),
    "the picture's times": ("timer.resolve", "timer.end_frame"),
}
NETWORKS, PICTURE = "networks, on the GPU", "the picture: on the GPU, or waited for"
REST = "the rest: submit, wake-ups, caches"


@dataclass
class FrameCauses:
    """The milliseconds of one frame: in total, by cause, and of the waits for the device."""

    whole: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    #: ms of the waits for the device; if there are two, the first is for the picture
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Cause:
    """A cause of frame time with its mean ms per frame, without and with networks."""

    cause: str
    without: float
    with_them: float

    def __str__(self) -> str:
        more = self.with_them - self.without
        return f"{self.cause:36s} {self.without:8.2f} {self.with_them:8.2f} {more:+8.2f}"


class _OneEffort:
    """A stand-in for the game's pace controller that keeps a fixed rendering effort."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort

    def took(self, ms: float) -> None:
        """Ignores the frame time."""


class PartTimes:
    """Replaces methods of the game by timed ones that add their ms to the current :attr:`frame`.

    The caller sets a new :attr:`frame` before each frame. Work in the spare time of a frame is not
    counted.
    """

    def __init__(self, game: Any) -> None:
        self.frame = FrameCauses()
        for cause, places in _CAUSES.items():
            for place in places:
                part, _, name = place.rpartition(".")
                self._time(getattr(game, part) if part else game, name, self._adds(cause))
        self._time(game.gpu, "wait", lambda ms: self.frame.waits.append(ms))
        use_rest = game.use_rest

        def aside(until: float) -> None:
            """Runs the original ``use_rest`` without counting its time, because it uses a
            frame's spare time."""
            frame, self.frame = self.frame, FrameCauses()
            use_rest(until)
            self.frame = frame

        game.use_rest = aside

    def _adds(self, cause: str) -> Callable[[float], None]:
        def add(ms: float) -> None:
            self.frame.parts[cause] = self.frame.parts.get(cause, 0.0) + ms

        return add

    def _time(self, part: Any, name: str, take: Callable[[float], None]) -> None:
        method: Callable[..., Any] = getattr(part, name)

        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                take(1e3 * (time.perf_counter() - start))

        setattr(part, name, timed)


def table(without: Sequence[FrameCauses], with_them: Sequence[FrameCauses]) -> list[Cause]:
    """Returns a row of mean ms per cause, then one for the rest and one for the whole frame.

    The longest frames of each mode are dropped.
    """
    kinds = [_kept(without), _kept(with_them)]
    causes = list(dict.fromkeys([NETWORKS, PICTURE, *_CAUSES]))
    rows = [
        Cause(cause, *(_mean([f.parts.get(cause, 0.0) for f in kind]) for kind in kinds))
        for cause in causes
    ]
    wholes = [_mean([f.whole for f in kind]) for kind in kinds]
    rest = [
        whole - sum(part)
        for whole, part in zip(
            wholes, ([r.without for r in rows], [r.with_them for r in rows]), strict=True
        )
    ]
    return [*rows, Cause(REST, *rest), Cause("a frame", *wholes)]


def _kept(frames: Sequence[FrameCauses]) -> list[FrameCauses]:
    return sorted(frames, key=lambda f: f.whole)[: max(1, int(_KEPT * len(frames)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def measure(
    gpu: cml.Gpu,
    quality: Quality,
    settings: Settings,
    turns: int,
    frames: int,
    budget_ms: float | None,
) -> list[Cause]:
    """Flies alternately without and with networks and returns the ms of a frame by cause.

    There are ``turns`` turns of each mode, of ``frames`` frames each.
    """
    flown = HeadlessRun(gpu, quality, settings, Options(budget_ms=budget_ms))
    kinds: dict[str, list[FrameCauses]] = {"off": [], "sliced": []}
    try:
        flown.game.pace = _OneEffort(EFFORTS[quality.effort])  # type: ignore[assignment]
        flown.load()
        # a window's tiles are not read back to be hashed
        flown.game.streaming.hand_over = lambda made: made.release()
        watch = PartTimes(flown.game)
        for turn in range(2 * turns):
            mode = ("off", "sliced")[turn % 2]
            kinds[mode] += _fly(flown, watch, mode, frames)
    finally:
        flown.close()
    return table(kinds["off"], kinds["sliced"])


def _fly(flown: HeadlessRun, watch: PartTimes, mode: str, frames: int) -> list[FrameCauses]:
    """Flies ``frames`` frames in the mode and returns the times of the frames that count.

    The first and last frames do not count, nor frames without a measured picture or, with networks,
    frames that ran none.
    """
    game = flown.game
    game.inference = mode != "off"
    game.controls.mode, game.controls.budget_ms = "sliced", flown.options.budget_ms
    if mode == "off":
        game.streaming.cancel_all()
    step = game.settings.frame_ms / 1e3
    flights = []
    for _ in range(frames):
        start, watch.frame = time.perf_counter(), FrameCauses()
        sample = flown._frame(flown.flight.pose(flown._seconds))
        watch.frame.whole = sample.frame_ms
        flights.append((sample, watch.frame))
        time.sleep(max(0.0, start + step - time.perf_counter()))
    found = []
    for sample, frame in flights[_BEGIN:-3]:  # the times of the last frames have not arrived
        if sample.render_ms is None or (mode == "sliced" and not sample.inference_ms):
            continue
        waited = len(frame.waits) > 1
        frame.parts[PICTURE] = frame.waits[0] if waited else sample.render_ms
        frame.parts[NETWORKS] = sample.inference_ms or 0.0
        found.append(frame)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=8)
    options.add_argument("--frames", type=int, default=60, help="of a turn")
    options.add_argument("--budget-ms", type=float, help="else what the renderer leaves")
    asked = options.parse_args(argv)
    gpu = cml.Gpu()
    quality, settings, notice = choose(gpu, game_parser().parse_args([]))
    print(notice)
    if not gpu.has_timestamps:
        print("this device times nothing: networks and picture are part of the rest")
    rows = measure(gpu, quality, settings, asked.turns, asked.frames, asked.budget_ms)
    print(f"{'ms of a frame':36s} {'without':>8s} {'with':>8s} {'more':>8s}")
    for row in rows:
        print(row)
    whole, networks = rows[-1], rows[0]
    more = whole.with_them - whole.without - networks.with_them
    print(f"beyond the networks' own {networks.with_them:.2f} ms a frame takes {more:+.2f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
