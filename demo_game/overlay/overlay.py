"""The overlay: an imgui context, its input, and the engine's panel, drawn in one pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import imgui_bundle
import wgpu
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.demo_game.overlay.backend import Backend
from cml_engine.demo_game.overlay.controls import ControlsSection
from cml_engine.demo_game.render.binding import Descriptor
from cml_engine.panel import Panel, check_titles, drawing, layout_for, palette

if TYPE_CHECKING:
    from cml_engine.demo_game.game import Controls, Game

_MARGIN = 6.0
#: seconds between two frames of imgui: the graph moves and tables change no more often
_EVERY_S = 1 / 12
#: frames of imgui after an input or a new size, until windows have their places
_SETTLING_FRAMES = 4
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
    check_titles(titles, (*drawing.SECTIONS, ControlsSection))


class Overlay:
    """Panels over the game's picture.

    They are drawn into a picture of their own, twelve times a second and after each input, and
    every frame copies its windows. A frame that shows nothing new creates nothing on the GPU.

    Parameters
    ----------
    target_format : the format of the views that :meth:`draw` is given. Their textures need the
        usage ``COPY_DST``.
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
        _load_font()
        self._backend = Backend(game.gpu, target_format, palette.GROUND, scale)
        self._scale = scale
        #: seconds since imgui's last frame, and the frames that follow at once
        self._waited_s, self._urgent_frames = 0.0, _SETTLING_FRAMES
        #: True: imgui has triangles that are not in the picture yet
        self._is_built = False
        #: True: the panel's data was refreshed since the last drawing
        self._is_refreshed = False
        self.resize(width, height)
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
        """Takes an event of the canvas; returns True if it is for the overlay, not for the game."""
        imgui.set_current_context(self._imgui)
        self._urgent_frames = _SETTLING_FRAMES
        io, event_type = imgui.get_io(), event["event_type"]
        if event_type in ("key_down", "key_up"):
            key = _KEYS.get(event["key"])
            if key is not None:
                io.add_key_event(key, event_type == "key_down")
            return bool(io.want_capture_keyboard)
        if event_type == "char":
            io.add_input_characters_utf8(event["data"])
            return bool(io.want_capture_keyboard)
        if event_type == "wheel":
            io.add_mouse_wheel_event(-event["dx"] / 100, -event["dy"] / 100)
        elif event_type in ("pointer_move", "pointer_down", "pointer_up"):
            io.add_mouse_pos_event(event["x"], event["y"])
            if event_type != "pointer_move":  # the canvas counts from 1: left, right, middle
                button = event["button"] if event["button"] in (1, 2, 3) else 1
                io.add_mouse_button_event(button - 1, event_type == "pointer_down")
        else:
            return False
        return bool(io.want_capture_mouse)

    def resize(self, width: int, height: int) -> None:
        """Changes the size of the views, in pixels."""
        imgui.set_current_context(self._imgui)
        io = imgui.get_io()
        points = width / self._scale, height / self._scale
        io.display_size = ImVec2(*points)
        io.display_framebuffer_scale = ImVec2(self._scale, self._scale)
        font_size = _font_size(*points)
        self._layout = layout_for(points[0] - 4 * _MARGIN, points[1], font_size)
        _apply_style(self._layout.compact, font_size)
        self._urgent_frames = _SETTLING_FRAMES

    # --- a frame

    def draw(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        dt_s: float,
        *,
        timestamp_writes: Descriptor | None = None,
    ) -> None:
        """Encodes the copy of the windows over the texture of ``target_view``.

        Where they change, a pass that draws them comes before. ``dt_s`` is the time since the last
        frame. The player's changes are written to the game's controls.
        """
        start = time.perf_counter()
        imgui.set_current_context(self._imgui)
        self.panel.update()
        self._waited_s += dt_s
        # what one frame lays out the next one draws, unless the player waits for it
        is_drawn = self._is_built or self._urgent_frames > 0
        is_due = not self._is_built and self._waited_s >= _EVERY_S
        # in a frame that does nothing else, or in one that draws if there was none since the last
        if not self._is_refreshed if is_drawn else not is_due:
            self.panel.refresh()
        self._is_refreshed = not is_drawn and (self._is_refreshed or not is_due)
        if is_due or self._urgent_frames:
            self._build()
        if is_drawn:
            self._is_built = False
            begin, timestamp_writes = _split(timestamp_writes)
            windows = self.rectangles.values()
            self._backend.draw(encoder, imgui.get_draw_data(), windows, begin)
        self._backend.copy(encoder, target_view.texture, timestamp_writes)
        self.panel.add_cpu_ms(1e3 * (time.perf_counter() - start))

    def _build(self) -> None:
        """Runs a frame of imgui, which lays out all windows and makes their triangles."""
        imgui.get_io().delta_time = max(self._waited_s, 1e-4)
        self._waited_s, self._is_built = 0.0, True
        self._urgent_frames = max(0, self._urgent_frames - 1)
        imgui.new_frame()
        size, layout, controls = imgui.get_io().display_size, self._layout, self._game.controls
        self.rectangles = {}
        if controls.welcome:
            self.rectangles["welcome"] = _draw_welcome(controls)
        bottom = self.rectangles["welcome"][1] if controls.welcome else size.y
        self._column("left", _MARGIN, layout.left_width, bottom)
        if layout.columns > 1:
            x = size.x - _MARGIN - layout.right_width
            self._column("right", x, layout.right_width, bottom)
        self.panel.end_draw()
        imgui.render()
        if imgui.is_any_item_active():  # held by the mouse, or being typed into
            self._urgent_frames = max(1, self._urgent_frames)

    def _column(self, side: Any, x: float, width: float, bottom: float) -> None:
        height = max(1.0, bottom - 2 * _MARGIN)
        imgui.set_next_window_pos(ImVec2(x, _MARGIN), imgui.Cond_.always.value)
        imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, height))
        if imgui.begin(side, None, _WINDOW_FLAGS)[0]:
            self.panel.draw_column(side, self._layout)
        self.rectangles[side] = _window_rectangle()
        imgui.end()


def _split(writes: Descriptor | None) -> tuple[Descriptor | None, Descriptor | None]:
    """Returns a pass's timestamps as those of the first and of the last of two passes."""
    if writes is None:
        return None, None
    begin, end = "beginning_of_pass_write_index", "end_of_pass_write_index"
    return (
        {key: value for key, value in writes.items() if key != end},
        {key: value for key, value in writes.items() if key != begin},
    )


# --- the font, colours and spacing

_FONT = Path(imgui_bundle.__file__).parent / "assets" / "fonts" / "Roboto" / "Roboto-Regular.ttf"


#: flags of a window that keeps its place and is as large as its content
_WINDOW_FLAGS = (
    imgui.WindowFlags_.no_title_bar
    | imgui.WindowFlags_.no_move
    | imgui.WindowFlags_.no_resize
    | imgui.WindowFlags_.no_saved_settings
    | imgui.WindowFlags_.always_auto_resize
    | imgui.WindowFlags_.no_focus_on_appearing
    | imgui.WindowFlags_.no_nav
).value
#: points of the smallest window with the larger font
_ROOMY = (1200.0, 690.0)


def _font_size(width: float, height: float) -> float:
    """Returns the font's height for a window of this size, all in points."""
    if width < _ROOMY[0] or height < _ROOMY[1]:
        return 12.0
    return float(max(14, round(height / 72)))


def _load_font() -> None:
    """Adds Roboto, which comes with imgui-bundle, to imgui's fonts.

    If it is missing, imgui's own font is added.
    """
    fonts = imgui.get_io().fonts
    # lines drawn from the font's texture would need a filtering sampler
    fonts.flags |= imgui.ImFontAtlasFlags_.no_baked_lines.value
    if _FONT.exists():
        fonts.add_font_from_file_ttf(str(_FONT), 0.0)
    else:
        fonts.add_font_default()


def _apply_style(compact: bool, font_size: float) -> None:
    """Sets the font size, the spacing and the colours of the current context."""
    style = imgui.get_style()
    style.font_size_base = font_size
    # corners and fringes of half-covered pixels cost more than they show at this size
    style.window_rounding = style.child_rounding = style.popup_rounding = 0.0
    style.frame_rounding = style.grab_rounding = style.scrollbar_rounding = 0.0
    style.anti_aliased_fill = style.anti_aliased_lines = False
    style.window_border_size = style.frame_border_size = style.popup_border_size = 0.0
    style.window_padding = ImVec2(5, 4) if compact else ImVec2(8, 7)
    style.frame_padding = ImVec2(4, 1) if compact else ImVec2(6, 2)
    style.item_spacing = ImVec2(5, 2) if compact else ImVec2(8, 4)
    style.cell_padding = ImVec2(3, 0.5) if compact else ImVec2(4, 1.5)
    style.scrollbar_size = 8.0 if compact else 11.0
    style.grab_min_size = 8.0
    style.indent_spacing = 10.0
    col = imgui.Col_
    chosen: dict[imgui.Col_, palette.Colour] = {
        col.text: palette.TEXT,
        col.text_disabled: palette.DIM,
        col.window_bg: palette.faded(palette.GROUND, 0.0),  # the backend's
        col.popup_bg: palette.TITLE,
        col.border: palette.FAINT,
        col.frame_bg: palette.RAISED,
        col.frame_bg_hovered: palette.HOVERED,
        col.frame_bg_active: palette.ACTIVE,
        col.header: palette.TITLE,
        col.header_hovered: palette.HOVERED,
        col.header_active: palette.ACTIVE,
        col.button: palette.RAISED,
        col.button_hovered: palette.HOVERED,
        col.button_active: palette.ACTIVE,
        col.check_mark: palette.ACCENT,
        col.slider_grab: palette.ACCENT,
        col.slider_grab_active: palette.TEXT,
        col.plot_histogram: palette.ACCENT,
        col.plot_lines: palette.ACCENT,
        col.scrollbar_bg: (0.0, 0.0, 0.0, 0.0),
        col.scrollbar_grab: palette.HOVERED,
        col.table_header_bg: palette.TITLE,
        col.table_row_bg: (0.0, 0.0, 0.0, 0.0),
        col.table_row_bg_alt: (1.0, 1.0, 1.0, 0.025),
        col.table_border_light: palette.FAINT,
        col.table_border_strong: palette.FAINT,
    }
    for index, colour in chosen.items():
        style.set_color_(index.value, ImVec4(*colour))


def _window_rectangle() -> tuple[float, float, float, float]:
    """Returns x, y, width and height of imgui's current window in points."""
    corner, size = imgui.get_window_pos(), imgui.get_window_size()
    return corner.x, corner.y, size.x, size.y


# --- the note at the start

_WELCOME = (
    "Neural networks generate this land while you fly over it, in the time that frames leave free.",
    "The button runs whole networks in one frame instead: feel the hitch.",
    "W A S D fly, the right mouse button looks, F1 hides the panels.",
)
#: the width of the welcome note in ems
_WIDTH_EM = 42.0


def _draw_welcome(controls: Controls) -> tuple[float, float, float, float]:
    """Draws the welcome note at the lower edge; returns x, y, width and height in points.

    Its buttons write to ``controls``.
    """
    size = imgui.get_io().display_size
    width = min(_WIDTH_EM * imgui.get_font_size(), size.x - 12)
    middle = ImVec2(0.5 * size.x, size.y - 6)
    imgui.set_next_window_pos(middle, imgui.Cond_.always.value, ImVec2(0.5, 1.0))
    imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, size.y - 12))
    if imgui.begin("welcome", None, _WINDOW_FLAGS)[0]:
        imgui.push_text_wrap_pos(0.0)
        for line in _WELCOME:
            imgui.text_unformatted(line)
        imgui.pop_text_wrap_pos()
        _welcome_buttons(controls)
    rectangle = _window_rectangle()
    imgui.end()
    return rectangle


def _welcome_buttons(controls: Controls) -> None:
    unsliced = controls.mode == "unsliced"
    if imgui.button("slices again" if unsliced else "make it hitch"):
        controls.mode = "sliced" if unsliced else "unsliced"
    if unsliced:
        imgui.same_line()
        drawing.text("whole networks in a frame", palette.WARN)
    imgui.same_line()
    if imgui.button("close"):
        controls.welcome = False
