"""The overlay itself: a context, an input queue, two columns of panels, one pass."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from imgui_bundle import ImVec2, imgui, implot

import cml_engine as cml
from cml_engine.tools.panel import drawing, palette
from cml_engine.tools.panel.drawing import RankingPanel, TimelinePanel
from demo_game.overlay import theme, welcome
from demo_game.overlay.backend import Backend
from demo_game.overlay.keys import KEYS
from demo_game.overlay.layout import Layout, layout_for
from demo_game.overlay.panels.controls import ControlsPanel
from demo_game.overlay.panels.frame import FramePanel
from demo_game.overlay.panels.jobs import TileJobsPanel
from demo_game.overlay.panels.memory import MemoryPanel
from demo_game.overlay.view import FrameView
from demo_game.reporting.report import percentile
from demo_game.reporting.telemetry import Controls

#: seconds between two looks at what changes slowly
REFRESH_S = 0.25
#: of which the median is shown
_FRAMES = 120
_BUTTONS = {"left": 0, "right": 1, "middle": 2}
_COLUMN = (
    imgui.WindowFlags_.no_title_bar
    | imgui.WindowFlags_.no_move
    | imgui.WindowFlags_.no_resize
    | imgui.WindowFlags_.no_saved_settings
    | imgui.WindowFlags_.always_auto_resize
    | imgui.WindowFlags_.no_focus_on_appearing
    | imgui.WindowFlags_.no_nav
).value


class _Panel(Protocol):
    def refresh(self, view: FrameView, now_s: float, /) -> None:
        """Ask for what changes slowly or costs to find out."""

    def draw(self, view: FrameView, room: Layout, /) -> None:
        """Its widgets, below its title."""


@dataclass(slots=True)
class _Section:
    """A panel with its title in a column; it is refreshed while it is open."""

    title: str
    side: str
    panel: _Panel
    #: whether it is open at first, in the compact layout and in the other
    compact_open: bool = False
    full_open: bool = False
    open: bool = False
    #: opened in the next frame
    asked: bool = False
    due_s: float = 0.0


class Overlay:
    """Panels over the game's picture.

    ``target_format`` is the format of the views that :meth:`draw` is given, ``width`` and
    ``height`` their size in pixels, ``scale`` pixels per point. Nothing is created on the GPU by
    a frame that shows nothing new.
    """

    def __init__(
        self, gpu: cml.Gpu, target_format: str, width: int, height: int, *, scale: float = 1.0
    ) -> None:
        self._imgui = imgui.create_context()
        imgui.set_current_context(self._imgui)
        self._implot = implot.create_context()
        implot.set_current_context(self._implot)
        io = imgui.get_io()
        io.set_ini_filename("")
        theme.load_font()
        self._backend = Backend(gpu, target_format, scale)
        self._scale = scale
        self._compact: bool | None = None
        self._resize(width, height)
        self._controls = ControlsPanel()
        self.frames, self.timeline, self.ranking = FramePanel(), TimelinePanel(), RankingPanel()
        self._sections = (
            _Section("frames", "left", self.frames, True, True),
            _Section("this frame", "left", self.timeline),
            _Section("operators", "left", self.ranking),
            _Section("controls", "right", self._controls, full_open=True),
            _Section("jobs", "right", TileJobsPanel()),
            _Section("memory", "right", MemoryPanel()),
        )
        self._cpu_ms: deque[float] = deque(maxlen=_FRAMES)
        #: CPU time of :meth:`draw` in ms, median of the last frames
        self.cpu_ms = 0.0
        self._now_s = self._covered = 0.0

    def open(self, *titles: str) -> None:
        """Open these panels."""
        for section in self._sections:
            section.asked = section.asked or section.title in titles

    @property
    def covered(self) -> float:
        """Share of the picture that the panels lay over, in the last frame."""
        size = imgui.get_io().display_size
        return float(self._covered / (size.x * size.y))

    # --- input

    def input(self, event: dict[str, Any]) -> bool:
        """Take an event: ``{"type": "mouse_move", "x", "y"}``, ``"mouse_button"`` with ``x``,
        ``y``, ``button`` ("left", "right", "middle") and ``down``, ``"scroll"`` with ``dx`` and
        ``dy``, ``"key"`` with ``key`` and ``down``, ``"char"`` with ``text``, all in points, or
        ``"resize"`` with ``width`` and ``height`` in pixels. True: it is the overlay's, not the
        game's."""
        self._use_contexts()
        io = imgui.get_io()
        kind = event["type"]
        if kind == "resize":
            self._resize(event["width"], event["height"])
            return False
        if kind == "key":
            key = KEYS.get(event["key"])
            if key is not None:
                io.add_key_event(key, event["down"])
            return bool(io.want_capture_keyboard)
        if kind == "char":
            io.add_input_characters_utf8(event["text"])
            return bool(io.want_capture_keyboard)
        if kind == "scroll":
            io.add_mouse_wheel_event(event["dx"], event["dy"])
        elif kind in ("mouse_move", "mouse_button"):
            io.add_mouse_pos_event(event["x"], event["y"])
            if kind == "mouse_button":
                io.add_mouse_button_event(_BUTTONS[event["button"]], event["down"])
        return bool(io.want_capture_mouse)

    def _resize(self, width: int, height: int) -> None:
        io = imgui.get_io()
        points = width / self._scale, height / self._scale
        io.display_size = ImVec2(*points)
        io.display_framebuffer_scale = ImVec2(self._scale, self._scale)
        self._layout = layout_for(*points)
        if self._layout.compact != self._compact:
            self._compact = self._layout.compact
            theme.apply(self._layout.compact, self._layout.font_size)
            self._arrange = True

    def _use_contexts(self) -> None:
        imgui.set_current_context(self._imgui)
        implot.set_current_context(self._implot)

    # --- a frame

    def draw(
        self,
        encoder: Any,
        target_view: Any,
        view: FrameView,
        controls: Controls,
        dt_s: float,
        *,
        timestamp_writes: dict[str, Any] | None = None,
    ) -> None:
        """Append one pass that draws the panels over ``target_view``. ``dt_s`` is the time since
        the last frame; what the player changes is written to ``controls``."""
        start = time.perf_counter()
        self._use_contexts()
        self._now_s += dt_s
        imgui.get_io().delta_time = max(dt_s, 1e-4)
        imgui.new_frame()
        self._refresh(view)
        self._controls.controls = controls
        self._covered = 0.0
        if controls.welcome:
            self._covered += welcome.draw(controls)
        # while it is explained what this is, less is shown
        if not (controls.welcome and self._layout.compact):
            self._column("left", view)
        if not controls.welcome:
            self._column("right", view)
            self._arrange = False
        imgui.render()
        self._backend.draw(encoder, target_view, imgui.get_draw_data(), timestamp_writes)
        self._cpu_ms.append(1e3 * (time.perf_counter() - start))

    def _refresh(self, view: FrameView) -> None:
        """One panel in a frame, so that no frame pays for all."""
        self.timeline.watch(view)
        self.ranking.watch(view, self._now_s)
        due = next((s for s in self._sections if s.open and s.due_s <= self._now_s), None)
        if due is not None:
            due.due_s = self._now_s + REFRESH_S
            due.panel.refresh(view, self._now_s)
            self.cpu_ms = percentile(self._cpu_ms, 0.5)

    def _column(self, side: str, view: FrameView) -> None:
        layout = self._layout
        left = side == "left"
        width = layout.left_width if left else layout.right_width
        if left and any(s.open for s in self._sections if s.panel is self.ranking):
            width = layout.ranking_width
        right_x = imgui.get_io().display_size.x - layout.margin - width
        if _begin_column(side, layout.margin if left else right_x, width, layout):
            for section in self._sections:
                if section.side == side:
                    self._section(section, view)
            if not left and not layout.compact:
                drawing.text(view.notice, palette.DIM)
        taken = imgui.get_window_size()
        self._covered += taken.x * taken.y
        imgui.end()

    def _section(self, section: _Section, view: FrameView) -> None:
        layout = self._layout
        if self._arrange or section.asked:
            first = section.compact_open if layout.compact else section.full_open
            imgui.set_next_item_open(first or section.asked, imgui.Cond_.always.value)
            section.asked = False
        was_open, section.open = section.open, bool(imgui.collapsing_header(section.title))
        if not section.open:
            return
        if not was_open:
            section.panel.refresh(view, self._now_s)
        section.panel.draw(view, layout)
        if section.panel is self.frames and not layout.compact:
            gpu_ms = self.frames.overlay_ms
            gpu = f"{gpu_ms:.2f} ms GPU" if gpu_ms else "GPU not timed"
            drawing.text(f"this overlay: {gpu}, {self.cpu_ms:.2f} ms CPU", palette.DIM)


def _begin_column(name: str, x: float, width: float, layout: Layout) -> bool:
    imgui.set_next_window_pos(ImVec2(x, layout.margin), imgui.Cond_.always.value)
    imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, layout.height))
    return bool(imgui.begin(name, None, _COLUMN)[0])
