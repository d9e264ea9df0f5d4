"""The note at the start: it explains the demo, and a button shows the game without slices."""

from __future__ import annotations

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import drawing, palette
from demo_game.controls import Controls
from demo_game.overlay import theme

_LINES = (
    "Neural networks generate this land while you fly over it, in the time that frames leave free.",
    "The button runs whole networks in one frame instead: feel the hitch.",
    "W A S D fly, the right mouse button looks, F1 hides the panels.",
)
#: in ems
_WIDTH_EM = 42.0


def draw(controls: Controls) -> tuple[float, float, float, float]:
    """Draws the note at the lower edge; returns its x, y, width and height in points.

    Its buttons write to ``controls``.
    """
    size = imgui.get_io().display_size
    width = min(_WIDTH_EM * imgui.get_font_size(), size.x - 12)
    middle = ImVec2(0.5 * size.x, size.y - 6)
    imgui.set_next_window_pos(middle, imgui.Cond_.always.value, ImVec2(0.5, 1.0))
    imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, size.y - 12))
    if imgui.begin("welcome", None, theme.WINDOW_FLAGS)[0]:
        imgui.push_text_wrap_pos(0.0)
        for line in _LINES:
            imgui.text_unformatted(line)
        imgui.pop_text_wrap_pos()
        _buttons(controls)
    taken = theme.window_rectangle()
    imgui.end()
    return taken


def _buttons(controls: Controls) -> None:
    unsliced = controls.mode == "unsliced"
    if imgui.button("slices again" if unsliced else "make it hitch"):
        controls.mode = "sliced" if unsliced else "unsliced"
    if unsliced:
        imgui.same_line()
        drawing.text("whole networks in a frame", palette.WARN)
    imgui.same_line()
    if imgui.button("close"):
        controls.welcome = False
