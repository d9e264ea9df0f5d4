"""The overlay: an imgui context, its input, and the engine's panel, drawn in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import Panel, check_titles, layout_for
from cml_engine.tools.panel.drawing import SECTIONS
from demo_game.overlay import theme, welcome
from demo_game.overlay.backend import Backend
from demo_game.overlay.controls import ControlsSection

if TYPE_CHECKING:
    from demo_game.game import Game

_MARGIN = 6.0
_BUTTONS = {"left": 0, "right": 1, "middle": 2}
_KEY = imgui.Key
#: the canvas's names of the keys that typing a number into a slider takes
_KEYS = {
    "Backspace": _KEY.backspace,
    "Delete": _KEY.delete,
    "Enter": _KEY.enter,
    "Escape": _KEY.escape,
    "Tab": _KEY.tab,
    "Home": _KEY.home,
    "End": _KEY.end,
    "ArrowLeft": _KEY.left_arrow,
    "ArrowRight": _KEY.right_arrow,
    "ArrowUp": _KEY.up_arrow,
    "ArrowDown": _KEY.down_arrow,
    "Control": _KEY.mod_ctrl,
    "Shift": _KEY.mod_shift,
    "Alt": _KEY.mod_alt,
}


def check_panels(titles: Sequence[str]) -> None:
    """Raises :class:`InputError` if a title names no panel of the overlay."""
    check_titles(titles, (*SECTIONS, ControlsSection))


class Overlay:
    """Panels over the game's picture.

    A frame that shows nothing new creates nothing on the GPU.

    Parameters
    ----------
    target_format : the format of the views that :meth:`draw` is given.
    width, height : the size of the views in pixels.
    scale : pixels per point.
    panels : the titles of the panels that are open at start; None: as the panel decides.
    """

    def __init__(
        self,
        game: Game,
        target_format: str,
        width: int,
        height: int,
        *,
        scale: float = 1.0,
        panels: Sequence[str] | None = None,
    ) -> None:
        self._game = game
        self._imgui = imgui.create_context()
        imgui.set_current_context(self._imgui)
        imgui.get_io().set_ini_filename("")
        theme.load_font()
        self._backend = Backend(game.gpu, target_format, scale)
        self._scale = scale
        self._resize(width, height)
        sessions, log = game.agents.sessions, game.log
        self.panel = Panel(game.scheduler, sessions, sections=(ControlsSection(game),), log=log)
        if panels is not None:
            self.panel.open(*panels)
        #: x, y, width and height in points of each window of the last frame
        self.rectangles: dict[str, tuple[float, float, float, float]] = {}

    @property
    def covered(self) -> float:
        """The share of the picture that the windows covered in the last frame, 0 to 1."""
        size = imgui.get_io().display_size
        area = sum(width * height for _, _, width, height in self.rectangles.values())
        return float(area / (size.x * size.y))

    def close(self) -> None:
        """Frees the memory on the GPU, and imgui's context."""
        self._backend.close()
        imgui.destroy_context(self._imgui)

    # --- input

    def input(self, event: dict[str, Any]) -> bool:
        """Takes an event; returns True if it is for the overlay and not for the game.

        Events are ``{"type": "mouse_move", "x", "y"}``, ``"mouse_button"`` with ``x``, ``y``,
        ``button`` ("left", "right", "middle") and ``down``, ``"scroll"`` with ``dx`` and ``dy``,
        ``"key"`` with ``key`` and ``down``, ``"char"`` with ``text``, all in points, and
        ``"resize"`` with ``width`` and ``height`` in pixels.
        """
        imgui.set_current_context(self._imgui)
        io = imgui.get_io()
        kind = event["type"]
        if kind == "resize":
            self._resize(event["width"], event["height"])
            return False
        if kind == "key":
            key = _KEYS.get(event["key"])
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
        font_size = theme.font_size(*points)
        self._layout = layout_for(points[0] - 4 * _MARGIN, points[1], font_size)
        theme.apply(self._layout.compact, font_size)

    # --- a frame

    def draw(
        self,
        encoder: Any,
        target_view: Any,
        dt_s: float,
        *,
        timestamp_writes: dict[str, Any] | None = None,
    ) -> None:
        """Encodes one pass that draws the windows over ``target_view``.

        ``dt_s`` is the time since the last frame. The player's changes are written to the game's
        controls.
        """
        imgui.set_current_context(self._imgui)
        imgui.get_io().delta_time = max(dt_s, 1e-4)
        imgui.new_frame()
        self.panel.update()
        size, layout, controls = imgui.get_io().display_size, self._layout, self._game.controls
        self.rectangles = {}
        if controls.welcome:
            self.rectangles["welcome"] = welcome.draw(controls)
        bottom = self.rectangles["welcome"][1] if controls.welcome else size.y
        self._column("left", _MARGIN, layout.left_width, bottom)
        if layout.columns > 1:
            x = size.x - _MARGIN - layout.right_width
            self._column("right", x, layout.right_width, bottom)
        self.panel.end_draw()
        imgui.render()
        self._backend.draw(encoder, target_view, imgui.get_draw_data(), timestamp_writes)

    def _column(self, side: Any, x: float, width: float, bottom: float) -> None:
        height = max(1.0, bottom - 2 * _MARGIN)
        imgui.set_next_window_pos(ImVec2(x, _MARGIN), imgui.Cond_.always.value)
        imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, height))
        if imgui.begin(side, None, theme.WINDOW_FLAGS)[0]:
            self.panel.draw_column(side, self._layout)
        self.rectangles[side] = theme.window_rectangle()
        imgui.end()
