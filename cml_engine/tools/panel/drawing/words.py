"""Drawing functions that the panels share."""

from __future__ import annotations

from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.palette import Colour


def packed(colour: Colour) -> int:
    """Returns the colour in the format of draw lists."""
    return int(imgui.get_color_u32(ImVec4(*colour)))


def text(said: str, colour: Colour) -> None:
    """Draws a line of text in a colour."""
    imgui.text_colored(ImVec4(*colour), said)


def rectangle(x: float, y: float, width: float, height: float, colour: Colour) -> None:
    """Draws a filled rectangle in the current window; coordinates are points of the screen."""
    imgui.get_window_draw_list().add_rect_filled(
        ImVec2(x, y), ImVec2(x + width, y + height), packed(colour)
    )


def bar(share: float, colour: Colour) -> None:
    """Draws a bar of one line's height over the remaining width, filled to ``share``."""
    corner, width = imgui.get_cursor_screen_pos(), imgui.get_content_region_avail().x
    height = imgui.get_text_line_height()
    rectangle(corner.x, corner.y + 2, width, height - 4, palette.WELL)
    rectangle(corner.x, corner.y + 2, width * min(1.0, max(0.0, share)), height - 4, colour)
    imgui.dummy(ImVec2(width, height))


def swatch(colour: Colour, label: str) -> None:
    """Draws a small square of the colour and its label."""
    size = round(0.6 * imgui.get_font_size())
    corner = imgui.get_cursor_screen_pos()
    rectangle(corner.x, round(corner.y + 0.3 * size), size, size, colour)
    imgui.dummy(ImVec2(size, imgui.get_text_line_height()))
    imgui.same_line(0.0, 4.0)
    text(label, palette.DIM)
