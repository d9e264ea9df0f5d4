"""Runs the game in a window: frames, keys, mouse and overlay."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import wgpu

import cml_engine as cml
from cml_engine import FrameReport
from cml_engine.demo_game.flight import FreeFlight, Pose, ScriptedFlight
from cml_engine.demo_game.game import DrawOverlay, Game, Settings
from cml_engine.demo_game.overlay.overlay import Overlay
from cml_engine.demo_game.render.binding import Descriptor
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.render.targets import target_format
from cml_engine.demo_game.reporting.report import bytes_by_owner
from cml_engine.demo_game.x11 import call_if_destroyed
from cml_engine.scheduler import write_trace

OUT = Path("out")
#: a minute of frames; a longer trace is cut there
_LONGEST_TRACE = 3600
TITLE = "CML demo: W A S D fly, right mouse button looks, Shift is faster, F1 hides the overlay"
_RIGHT = 2
#: largest deviation from the target interval, as a share of it, that still counts as the target
_WOBBLE = 0.1
#: longest step of movement in seconds, so that a hitch does not fling the camera away
_LONGEST_STEP_S = 0.1
#: after so many seconds without a draw the window was minimised or the machine asleep
_PAUSE_S = 1.0


class Tracing:
    """Collects frame reports while ``controls.recording`` is on, then writes a trace.

    The trace's path is then in ``controls.trace_path``.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self._reports: list[FrameReport] = []
        self._names: dict[int, str] = {}
        self._activities: dict[int, Mapping[str, float]] = {}

    def add(self) -> None:
        """Records the last frame's report while the recording is on.

        Switches it off after a minute of frames.
        """
        report = self._game.log.last_report
        if not self._game.controls.recording or report is None:
            return
        self._reports.append(report)
        self._activities[report.frame] = self._game.log.frames[-1].parts
        for part in report.slices:
            self._names[part.job] = part.name
        if len(self._reports) >= _LONGEST_TRACE:
            self._game.controls.recording = False

    def stop(self) -> None:
        """Writes the trace of the recorded frames to ``out/``; does nothing if there are none."""
        if not self._reports:
            return
        OUT.mkdir(exist_ok=True)
        path = OUT / time.strftime("demo-%Y%m%d-%H%M%S.trace.json")
        gpu = self._game.gpu
        memory, about = bytes_by_owner(gpu), {"device": gpu.name}
        write_trace(path, self._reports, self._names, memory, about, activities=self._activities)
        self._game.controls.trace_path = path
        self._reports, self._activities = [], {}


class GameWindow:
    """A window with the game and its overlay, driven by the events of ``canvas``."""

    def __init__(
        self,
        canvas: Any,
        gpu: cml.Gpu,
        quality: Quality,
        settings: Settings,
        *,
        scripted: bool = True,
        seconds: float | None = None,
        panels: Sequence[str] | None = None,
    ) -> None:
        self.canvas, self.gpu, self.quality = canvas, gpu, quality
        self.context = canvas.get_context("wgpu")
        preferred = str(self.context.get_preferred_format(gpu.device.adapter))
        self.format = target_format(gpu, preferred)
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_DST  # of the overlay
        self.context.configure(device=gpu.device, format=self.format, usage=usage)
        self.game = Game(gpu, self.format, quality, settings)
        self.path = ScriptedFlight(settings.seed)
        self.free = FreeFlight(self.path.pose(0.0), settings.seed)
        self.game.controls.scripted = scripted
        self.game.controls.welcome = True
        self.tracing = Tracing(self.game)
        self._wanted = quality.width, quality.height
        self._size = canvas.get_physical_size()
        scale = canvas.get_pixel_ratio()
        self.overlay = Overlay(self.game, self.format, *self._size, scale=scale, panels=panels)
        call_if_destroyed(canvas, self.context, self._end)
        #: called at the end of every frame: tests drive the window by it
        self.on_frame: Callable[[], None] = lambda: None
        self.failed: Exception | None = None
        self._seconds = seconds
        # a software driver draws on the cores that the next frame needs, so waiting costs nothing
        # and gives the frame's time. A GPU works beside the game and is not waited for
        self._on_cpu = gpu.limits.software
        self._started = self._last = self._drawn = time.perf_counter()
        self._flown_s = 0.0
        self._looking: tuple[float, float] | None = None
        canvas.add_event_handler(self._event, "*")
        canvas.request_draw(self._draw)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the window opened."""
        return time.perf_counter() - self._started

    def _draw(self) -> None:
        """Draws a frame for the canvas.

        On an exception it stores it in ``failed`` and closes the canvas. The canvas itself would
        only log the exception.
        """
        try:
            self._frame()
            self.on_frame()
        except Exception as error:
            self.failed = error
            self.canvas.close()
        self._drawn = time.perf_counter()
        if self._seconds is not None and self.elapsed_s > self._seconds:
            self.canvas.close()

    def _frame(self) -> None:
        width, height = self.canvas.get_physical_size()
        if width == 0 or height == 0:  # minimised
            return
        if (width, height) != self._size:
            self._size = width, height
            self.game.resize(width, height)
            self.overlay.resize(width, height)
        now = time.perf_counter()
        interval_s, self._last = now - self._last, now
        dt_s, paused = min(interval_s, _LONGEST_STEP_S), now - self._drawn > _PAUSE_S
        view = self.context.get_current_texture().create_view()  # waits for the display
        pose = self._pose(dt_s)
        if not self.game.controls.recording:
            self.tracing.stop()
        logged = self.game.log.frames
        before = logged[-1] if logged else None
        sample = self.game.frame(view, pose, now - self._started, self._overlay(view, dt_s))
        self.game.end_frame(sample, waits=self._on_cpu)
        if before is not None and not paused:  # its time is known when the next one begins
            before.frame_ms = self._interval_ms(1e3 * interval_s)
            rest_ms = before.frame_ms - sum(before.parts.values())
            before.parts["the display and other programs"] = max(0.0, rest_ms)
        wanted = self.game.quality.width, self.game.quality.height
        if wanted != self._wanted:  # a picture that fits the machine
            self._wanted = wanted
            self.canvas.set_logical_size(*wanted)
        self.tracing.add()

    def _interval_ms(self, ms: float) -> float:
        """Returns the measured frame interval, or the target if they are close."""
        target = self.game.settings.frame_ms
        return target if abs(ms - target) < _WOBBLE * target else ms

    def _pose(self, dt_s: float) -> Pose:
        if self.game.controls.scripted:
            self._flown_s += dt_s
            self.free.pose = self.path.pose(self._flown_s)
            return self.free.pose
        return self.free.move(dt_s, self.elapsed_s)

    def _overlay(self, view: wgpu.GPUTextureView, dt_s: float) -> DrawOverlay | None:
        game = self.game
        if not game.controls.overlay:
            return None

        def draw(encoder: wgpu.GPUCommandEncoder, writes: Descriptor | None) -> None:
            self.overlay.draw(encoder, view, dt_s, timestamp_writes=writes)

        return draw

    # --- what the player does

    def _event(self, event: dict[str, Any]) -> None:
        event_type = event["event_type"]
        is_for_overlay = self.overlay.input(event)
        if event_type == "key_down" and event["key"] == "F1":
            self.game.controls.overlay = not self.game.controls.overlay
        elif event_type in ("key_down", "key_up"):
            self._key(event["key"], event_type == "key_down" and not is_for_overlay)
        elif event_type == "pointer_down" and event["button"] == _RIGHT and not is_for_overlay:
            self._looking = event["x"], event["y"]
        elif event_type == "pointer_up" and event["button"] == _RIGHT:
            self._looking = None
        elif event_type == "pointer_move" and self._looking is not None:
            x, y = self._looking
            self._looking = event["x"], event["y"]
            self.free.look(event["x"] - x, event["y"] - y)

    def _key(self, key: str, down: bool) -> None:
        name = "LEFT_SHIFT" if key == "Shift" else key.upper()
        (self.free.keys.add if down else self.free.keys.discard)(name)
        if down and name in ("W", "A", "S", "D"):
            self.game.controls.scripted = False

    def _end(self) -> None:
        """Ends the process with a message, after another program has destroyed the window.

        Nothing is freed: glfw and wgpu would use the window, and fail.
        """
        self.tracing.stop()
        sys.stderr.write("error: another program has closed the window\n")
        sys.stderr.flush()
        os._exit(1)

    def close(self) -> None:
        """Writes a trace that is being recorded, and closes the overlay and the game."""
        self.tracing.stop()
        self.overlay.close()
        self.game.close()


def open_canvas(quality: Quality, settings: Settings) -> Any:
    """Opens a window of the preset's size and returns its canvas.

    Raises :class:`cml.CmlError` if none can be opened.
    """
    try:
        from rendercanvas.glfw import RenderCanvas

        return RenderCanvas(
            size=(quality.width, quality.height),
            title=TITLE,
            update_mode="continuous",
            max_fps=round(1050 / settings.frame_ms),  # a timer is late rather than early
            vsync=True,
        )
    except Exception as error:  # glfw raises its own, and plain ones
        raise cml.CmlError(
            f"no window: {error}. Without a display use --headless, which writes a report and a "
            "picture"
        ) from error


def run_window(window: GameWindow) -> None:
    """Draws frames until the window is closed; raises the exception of a failed frame."""
    from rendercanvas.glfw import loop

    loop.run()
    window.close()
    if window.failed is not None:
        raise window.failed
