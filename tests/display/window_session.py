"""A window that is used: ``python -m tests.display.window_session --seconds 60``.

Looks around, flies, resizes, minimises, clicks in the overlay, hides it, changes the mode, and
closes the window: after the time that is asked for, or later, where a busy machine has not yet
drawn ``--frames`` and made ``--tiles``. Prints what happened as JSON; an exit code other than 0 is
an error in a frame.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import glfw

import cml_engine as cml
from demo_game.command import parser as game_parser
from demo_game.reporting.report import percentiles
from demo_game.settings import choose
from demo_game.window import GameWindow, open_window, run_window

#: seconds that a busy machine may take longer
_PATIENCE_S = 90.0
#: frames at least from one act to the next
_APART = 3


class Player:
    """Does something every few frames."""

    def __init__(self, window: GameWindow, seconds: float, frames: int, tiles: int) -> None:
        self.window, self.seconds = window, seconds
        self.least = frames, tiles
        self.frames = self.next = 0
        self.done: list[str] = []
        self.sizes: set[tuple[int, int]] = set()
        acts = [
            self.look, self.fly, self.resize, self.click, self.hide, self.unsliced, self.scroll,
            self.minimise, self.restore, self.pause, self.record, self.type,
        ]  # fmt: skip
        self._plan = [(seconds * (i + 1) / (len(acts) + 2), act) for i, act in enumerate(acts)]

    def __call__(self) -> None:
        """The window's ``on_frame``."""
        self.frames += 1
        self.sizes.add(tuple(self.window.canvas.get_physical_size()))
        if self._plan and self.window.elapsed_s > self._plan[0][0] and self.frames >= self.next:
            _, act = self._plan.pop(0)
            act()
            self.done.append(act.__name__)
            self.next = self.frames + _APART
        if self._enough():
            self.window.canvas.close()

    def _enough(self) -> bool:
        late_s = self.window.elapsed_s - self.seconds
        made = self.frames, self.window.game.streaming.counts.finished
        seen = not self._plan and all(n >= least for n, least in zip(made, self.least, strict=True))
        return late_s > (0.0 if seen else _PATIENCE_S)

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
        """Every panel's head, and what lies below."""
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
        self.window.game.controls.paused = set()
        self.window.game.controls.recording = True

    def type(self) -> None:
        self.window.game.controls.recording = False
        self._event("char", data="a")
        self._event("key_up", key="w")


def _told(window: GameWindow) -> list[float]:
    """What the window will tell the scheduler of its frames, in ms."""
    found: list[float] = []
    scheduler = window.game.scheduler
    tell = scheduler.frame_took

    def frame_took(ms: float) -> None:
        found.append(ms)
        tell(ms)

    scheduler.frame_took = frame_took  # type: ignore[method-assign]
    return found


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
    window = open_window(gpu, quality, settings)
    player = Player(window, asked.seconds, asked.frames, asked.tiles)
    told = _told(window)
    window.on_frame = player
    run_window(window)
    trace = window.game.controls.trace_path
    about = {
        "frames": player.frames,
        "frame_ms": percentiles([s.frame_ms for s in window.samples]),
        "software": gpu.info.get("adapter_type") == "CPU",
        "told": len(told),
        "told_ms": percentiles(told) if told else None,
        "acts": player.done,
        "sizes": sorted(player.sizes),
        "tiles": window.game.streaming.counts.finished,
        "error": window.game.streaming.error,
        "trace": str(trace) if trace else "",
        "closed": window.canvas.get_closed(),
    }
    say(json.dumps(about) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
