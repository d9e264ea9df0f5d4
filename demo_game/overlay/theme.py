"""The font, colours and spacing of the overlay."""

from __future__ import annotations

from pathlib import Path

import imgui_bundle
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.palette import Colour

_FONT = Path(imgui_bundle.__file__).parent / "assets" / "fonts" / "Roboto" / "Roboto-Regular.ttf"


#: flags of a window that keeps its place and is as large as its content
WINDOW_FLAGS = (
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


def font_size(width: float, height: float) -> float:
    """Returns the font's height for a window of this size, all in points."""
    if width < _ROOMY[0] or height < _ROOMY[1]:
        return 12.0
    return float(max(14, round(height / 72)))


def load_font() -> None:
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


def apply(compact: bool, font_size: float) -> None:
    """Sets the font size, the spacing and the colours of the current context."""
    style = imgui.get_style()
    style.font_size_base = font_size
    style.window_rounding = style.child_rounding = 4.0
    style.frame_rounding = style.grab_rounding = style.scrollbar_rounding = 3.0
    style.window_border_size = style.frame_border_size = style.popup_border_size = 0.0
    style.window_padding = ImVec2(5, 4) if compact else ImVec2(8, 7)
    style.frame_padding = ImVec2(4, 1) if compact else ImVec2(6, 2)
    style.item_spacing = ImVec2(5, 2) if compact else ImVec2(8, 4)
    style.cell_padding = ImVec2(3, 0.5) if compact else ImVec2(4, 1.5)
    style.scrollbar_size = 8.0 if compact else 11.0
    style.grab_min_size = 8.0
    style.indent_spacing = 10.0
    # fringes of half-covered pixels cost more than they show at this size
    style.anti_aliased_fill = not compact
    _colour_style()


def _colour_style() -> None:
    style, col = imgui.get_style(), imgui.Col_
    chosen: dict[imgui.Col_, Colour] = {
        col.text: palette.TEXT,
        col.text_disabled: palette.DIM,
        col.window_bg: palette.GROUND,
        col.popup_bg: palette.faded(palette.TITLE, 0.98),
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


def window_rectangle() -> tuple[float, float, float, float]:
    """Returns x, y, width and height of imgui's current window in points."""
    place, size = imgui.get_window_pos(), imgui.get_window_size()
    return place.x, place.y, size.x, size.y
