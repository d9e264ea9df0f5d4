"""The overlay itself: a context, an input queue, two columns of panels, one pass."""

from __future__ import annotations

import time
from typing import Any

from imgui_bundle import ImVec2, imgui, implot

import cml_engine as cml
from demo_game.overlay import palette, theme
from demo_game.overlay.backend import Backend
from demo_game.overlay.controls_panel import ControlsPanel
from demo_game.overlay.frame_lanes import mean_overlay_ms
from demo_game.overlay.frame_panel import FramePanel
from demo_game.overlay.keys import KEYS
from demo_game.overlay.layout import Layout, layout_for
from demo_game.overlay.ranking_panel import RankingPanel
from demo_game.overlay.view import View
from demo_game.telemetry import Controls

#: seconds between two looks at what changes slowly
REFRESH_S = 0.25
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
        self._backend = Backend(gpu, target_format)
        self._scale = scale
        self._layout: Layout | None = None
        self._resize(width, height)
        self.frames, self.ranking, self.controls = FramePanel(), RankingPanel(), ControlsPanel()
        #: CPU time of :meth:`draw`, a running mean in ms
        self.cpu_ms = 0.0
        self._gpu_ms = 0.0
        self._now_s = 0.0
        self._due_s = 0.0

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
        found = layout_for(*points)
        if self._layout is None or found.compact != self._layout.compact:
            theme.apply(found.compact, found.font_size)
            self._arrange = True
        self._layout = found

    def _use_contexts(self) -> None:
        imgui.set_current_context(self._imgui)
        implot.set_current_context(self._implot)

    # --- a frame

    def draw(
        self,
        encoder: Any,
        target_view: Any,
        view: View,
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
        if self._now_s >= self._due_s:
            self._due_s = self._now_s + REFRESH_S
            self._refresh(view)
        self._columns(view, controls)
        self._arrange = False
        imgui.render()
        self._backend.draw(encoder, target_view, imgui.get_draw_data(), timestamp_writes)
        took = 1e3 * (time.perf_counter() - start)
        self.cpu_ms += (took - self.cpu_ms) * (0.05 if self.cpu_ms else 1.0)

    def _refresh(self, view: View) -> None:
        self.frames.refresh(view)
        self.ranking.refresh(view, self._now_s)
        self._gpu_ms = mean_overlay_ms(view.telemetry.frames)

    def _columns(self, view: View, controls: Controls) -> None:
        layout = self._layout
        assert layout is not None  # set in __init__
        display = imgui.get_io().display_size
        if _begin_column("left", layout.margin, layout.left_width, layout):
            if self._header("frames", True):
                self.frames.draw(view, layout)
                self._cost(view)
            if self._header("operators", not layout.compact):
                self.ranking.draw(view, layout, self._now_s)
        imgui.end()
        x = display.x - layout.margin - layout.right_width
        if _begin_column("right", x, layout.right_width, layout) and self._header(
            "controls", not layout.compact
        ):
            self.controls.draw(view, layout, controls)
        imgui.end()

    def _header(self, label: str, open_at_first: bool) -> bool:
        if self._arrange:
            imgui.set_next_item_open(open_at_first, imgui.Cond_.always.value)
        return bool(imgui.collapsing_header(label))

    def _cost(self, view: View) -> None:
        gpu = f"{self._gpu_ms:.2f} ms GPU" if self._gpu_ms else "GPU not timed"
        theme.text(f"this overlay: {gpu}, {self.cpu_ms:.2f} ms CPU", palette.DIM)


def _begin_column(name: str, x: float, width: float, layout: Layout) -> bool:
    imgui.set_next_window_pos(ImVec2(x, layout.margin), imgui.Cond_.always.value)
    imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, layout.height))
    return bool(imgui.begin(name, None, _COLUMN)[0])
