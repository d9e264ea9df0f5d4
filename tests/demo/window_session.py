"""Uses the game's window like a player: ``python -m tests.demo.window_session --seconds 60``.

Looks around, flies, resizes, minimises, clicks in the overlay, hides it and changes the mode, in
rounds of half a minute. Closes the window after ``--seconds``, or later if a busy machine has not
yet drawn ``--frames`` and made ``--tiles``. Prints a report as JSON. An exit code other than 0
means an error in a frame, or memory that grew between the ends of two rounds, the first of them
after a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import glfw

import cml_engine as cml
from cml_engine.demo_game.command import parser as game_parser
from cml_engine.demo_game.presets import choose
from cml_engine.demo_game.reporting.report import percentiles
from cml_engine.demo_game.window import GameWindow, open_canvas, run_window
from tests.fixtures.memory import resident_mib, wgpu_objects

#: seconds that a busy machine may take longer
_PATIENCE_S = 90.0
#: the fewest frames between two acts
_APART = 3
#: seconds of a round of all acts, and seconds until memory use has settled
_ROUND_S, _WARM_S = 30.0, 60.0


@dataclass(frozen=True)
class Held:
    """The memory and objects of the process and the device at the end of a round."""

    at_s: float
    resident_mib: float
    gpu_mib: float
    objects: int

    @classmethod
    def now(cls, window: GameWindow) -> Held:
        gpu_mib = window.gpu.memory.held_bytes / 2**20
        return cls(window.elapsed_s, resident_mib(), gpu_mib, wgpu_objects())


#: the accepted growth between two rounds: tiles in flight, a driver's own heaps
_SLACK = {"resident_mib": 24.0, "gpu_mib": 8.0, "objects": 60}


def growth(rounds: Sequence[Held]) -> dict[str, float]:
    """Returns each quantity's growth from the first round after a minute to the last.

    Empty with fewer than two such rounds.
    """
    warm = [held for held in rounds if held.at_s >= _WARM_S]
    if len(warm) < 2:
        return {}
    return {name: getattr(warm[-1], name) - getattr(warm[0], name) for name in _SLACK}


def grew(grown: dict[str, float]) -> list[str]:
    """Returns the names of the quantities that grew by more than their limit."""
    return [name for name, more in grown.items() if more > _SLACK[name]]


class Player:
    """A simulated player: acts every few frames and finally closes the window."""

    def __init__(self, window: GameWindow, seconds: float, frames: int, tiles: int) -> None:
        self.window, self.seconds = window, seconds
        self.round_s = min(seconds, _ROUND_S)
        self.least = frames, tiles
        self.frames = self.next = 0
        self.done: list[str] = []
        self.sizes: set[tuple[int, int]] = set()
        self.rounds: list[Held] = []
        self.frame_ms = array("d")
        self._plan = self._round(0.0)

    def _round(self, start_s: float) -> list[tuple[float, Callable[[], None]]]:
        """Returns the acts of a round in order, each with its time in seconds."""
        acts = [
            self.look, self.fly, self.resize, self.click, self.hide, self.unsliced, self.scroll,
            self.minimise, self.restore, self.pause, self.record, self.type, self.rest,
        ]  # fmt: skip
        each_s = self.round_s / (len(acts) + 1)
        return [(start_s + each_s * (i + 1), act) for i, act in enumerate(acts)]

    def __call__(self) -> None:
        """Records a frame, runs the next act if it is due, and closes the window at the end.

        It is the window's ``on_frame``.
        """
        self.frames += 1
        self.sizes.add(tuple(self.window.canvas.get_physical_size()))
        frames = self.window.game.log.frames
        if len(frames) > 1:  # the last frame's time is not known yet
            self.frame_ms.append(frames[-2].frame_ms)
        if self._plan and self.window.elapsed_s > self._plan[0][0] and self.frames >= self.next:
            _, act = self._plan.pop(0)
            act()
            self.done.append(act.__name__)
            self.next = self.frames + _APART
        if self._enough():
            self.window.canvas.close()
        elif not self._plan and self.window.elapsed_s + self.round_s <= self.seconds:
            self._plan = self._round(self.window.elapsed_s)

    def _enough(self) -> bool:
        late_s = self.window.elapsed_s - self.seconds
        made = self.frames, self.window.game.streaming.counts.finished
        enough = all(n >= least for n, least in zip(made, self.least, strict=True))
        return late_s > (0.0 if enough and self.rounds else _PATIENCE_S)

    def _event(self, kind: str, **fields: Any) -> None:
        common = {"modifiers": (), "buttons": (), "touches": {}, "ntouches": 0}
        self.window.canvas.submit_event({"event_type": kind, **common, **fields})

    def look(self) -> None:
        self._event("pointer_down", x=300, y=200, button=2)
        for step in range(30):
            self._event("pointer_move", x=300 + 4 * step, y=200 - step, button=2)
        self._event("pointer_up", x=420, y=170, button=2)

    def fly(self) -> None:
        for key in ("w", "Shift"):
            self._event("key_down", key=key)

    def resize(self) -> None:
        self.window.canvas.set_logical_size(417, 301)

    def click(self) -> None:
        """Clicks a grid of points over the overlay's panels: their heads and their contents."""
        for x in (30, 200, 380):
            for y in range(8, 300, 9):
                self._event("pointer_move", x=x, y=y, button=0)
                self._event("pointer_down", x=x, y=y, button=1)
                self._event("pointer_up", x=x, y=y, button=1)

    def hide(self) -> None:
        for _ in range(3):
            self._event("key_down", key="F1")

    def unsliced(self) -> None:
        self.window.game.controls.mode = "unsliced"
        self.window.game.controls.scripted = True

    def scroll(self) -> None:
        self._event("wheel", x=100, y=100, dx=0, dy=200)

    def minimise(self) -> None:
        glfw.iconify_window(self.window.canvas._window)

    def restore(self) -> None:
        glfw.restore_window(self.window.canvas._window)
        self.window.canvas.set_logical_size(520, 290)

    def pause(self) -> None:
        self.window.game.controls.mode = "sliced"
        self.window.game.controls.paused = {"texture"}
        self.window.game.controls.policy = "by_priority"

    def record(self) -> None:
        controls = self.window.game.controls
        if controls.trace_path is not None:  # from the previous round
            controls.trace_path.unlink(missing_ok=True)
        controls.paused, controls.recording = set(), True

    def type(self) -> None:
        self.window.game.controls.recording = False
        self._event("char", data="a")
        self._event("key_up", key="w")
        self._event("key_down", key="F1")

    def rest(self) -> None:
        self.rounds.append(Held.now(self.window))


def main(say: Callable[[str], object] = sys.stdout.write) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--size", default="480x270")
    parser.add_argument("--frames", type=int, default=0)
    parser.add_argument("--tiles", type=int, default=0)
    asked = parser.parse_args()
    options = game_parser().parse_args(["--size", asked.size])
    gpu = cml.Gpu()
    quality, settings, _ = choose(gpu, options)
    window = GameWindow(open_canvas(quality, settings), gpu, quality, settings)
    player = Player(window, asked.seconds, asked.frames, asked.tiles)
    told, tell = array("d"), window.game.scheduler.frame_took

    def frame_took(ms: float) -> None:
        told.append(ms)
        tell(ms)

    window.game.scheduler.frame_took = frame_took  # type: ignore[method-assign]
    window.on_frame = player
    run_window(window)
    trace, grown = window.game.controls.trace_path, growth(player.rounds)
    about = {
        "frames": player.frames,
        "frame_ms": percentiles(player.frame_ms),
        "software": gpu.info.get("adapter_type") == "CPU",
        "told": len(told),
        "told_ms": percentiles(told) if told else None,
        "acts": player.done,
        "sizes": sorted(player.sizes),
        "tiles": window.game.streaming.counts.finished,
        "error": window.game.streaming.error,
        "trace": str(trace) if trace else "",
        "closed": window.canvas.get_closed(),
        "rounds": [asdict(held) for held in player.rounds],
        "grown": grown,
        "grew": grew(grown),
    }
    say(json.dumps(about) + "\n")
    return int(bool(about["grew"]))


if __name__ == "__main__":
    sys.exit(main())
