"""Drawing functions that the panel's sections share; all draw into imgui's current window."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.panel import palette
from cml_engine.panel.palette import Colour

#: the share of a shortened text that is its beginning
_BEGIN = 0.4


@lru_cache(256)
def packed(colour: Colour) -> int:
    """Returns the colour as the 32-bit integer that imgui's draw lists take."""
    return int(imgui.color_convert_float4_to_u32(ImVec4(*colour)))


@lru_cache(256)
def _vector(colour: Colour) -> ImVec4:
    return ImVec4(*colour)


def text(content: str, colour: Colour) -> None:
    """Draws a line of text in a colour at the cursor."""
    imgui.text_colored(_vector(colour), content)


def wrapped(parts: Iterable[tuple[str, Colour]], gap: float = 0.8) -> None:
    """Draws coloured texts in a row, and begins a new line where a text does not fit.

    A text that is wider than a line is broken. ``gap`` is the space between texts in font heights.
    """
    space = gap * imgui.get_font_size()
    end = imgui.get_cursor_screen_pos().x + imgui.get_content_region_avail().x
    for index, (content, colour) in enumerate(parts):
        if index:
            right = imgui.get_item_rect_max().x + space + imgui.calc_text_size(content).x
            if right <= end:
                imgui.same_line(0.0, space)
        imgui.push_text_wrap_pos(0.0)
        text(content, colour)
        imgui.pop_text_wrap_pos()


def shortened(content: str, width: float) -> str:
    """Returns the text, or its ends with "..." between them if it is wider than ``width`` points.

    Names of one model often begin alike, so the larger part is the end.
    """
    if imgui.calc_text_size(content).x <= width:
        return content

    def without_middle(letters: int) -> str:
        begin = int(_BEGIN * letters)
        return f"{content[:begin].rstrip()}...{content[len(content) - letters + begin :].lstrip()}"

    low, high = 0, len(content) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if imgui.calc_text_size(without_middle(middle)).x <= width:
            low = middle
        else:
            high = middle - 1
    return without_middle(low)


def rectangle(x: float, y: float, width: float, height: float, colour: Colour) -> None:
    """Draws a filled rectangle in the current window; ``x`` and ``y`` are points of the screen."""
    imgui.get_window_draw_list().add_rect_filled(
        ImVec2(x, y), ImVec2(x + width, y + height), packed(colour)
    )


def label(x: float, y: float, content: str, colour: Colour) -> None:
    """Draws a text with a dark background at a point of the screen, in the current window."""
    size = imgui.calc_text_size(content)
    rectangle(x - 3, y, size.x + 6, size.y, palette.faded(palette.WELL, 0.85))
    imgui.get_window_draw_list().add_text(ImVec2(round(x), round(y)), packed(colour), content)


def bar(share: float, colour: Colour) -> None:
    """Draws a bar over the remaining width, filled from the left to ``share`` (0 to 1)."""
    corner, width = imgui.get_cursor_screen_pos(), imgui.get_content_region_avail().x
    height = imgui.get_text_line_height()
    rectangle(corner.x, corner.y + 2, width, height - 4, palette.WELL)
    rectangle(corner.x, corner.y + 2, width * min(1.0, max(0.0, share)), height - 4, colour)
    imgui.dummy(ImVec2(width, height))


def swatch(colour: Colour, label: str) -> None:
    """Draws a small square of the colour and the label behind it."""
    size = round(0.6 * imgui.get_font_size())
    corner = imgui.get_cursor_screen_pos()
    rectangle(corner.x, round(corner.y + 0.3 * size), size, size, colour)
    imgui.dummy(ImVec2(size, imgui.get_text_line_height()))
    imgui.same_line(0.0, 4.0)
    text(label, palette.TEXT)


def swatches(items: Iterable[tuple[Colour, str]]) -> None:
    """Draws coloured squares with labels in a row; one that does not fit begins a new line."""
    em = imgui.get_font_size()
    end = imgui.get_cursor_screen_pos().x + imgui.get_content_region_avail().x
    for index, (colour, content) in enumerate(items):
        width = 1.4 * em + imgui.calc_text_size(content).x
        if index and imgui.get_item_rect_max().x + 0.7 * em + width <= end:
            imgui.same_line(0.0, 0.7 * em)
        swatch(colour, content)
