"""The note at the start: what the demo does, and the button that shows the difference."""

from __future__ import annotations

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import drawing, palette
from demo_game.reporting.telemetry import Controls

_LINES = (
    "Neural networks make this land while you fly over it, in the time that frames leave free.",
    "The button runs whole networks in a frame instead, as engines do: feel it hitch.",
    "W A S D fly, the right mouse button looks, F1 hides the panels.",
)
#: of the font's size
_WIDTH = 40.0
_FLAGS = (
    imgui.WindowFlags_.no_title_bar
    | imgui.WindowFlags_.no_move
    | imgui.WindowFlags_.no_resize
    | imgui.WindowFlags_.no_saved_settings
    | imgui.WindowFlags_.always_auto_resize
    | imgui.WindowFlags_.no_focus_on_appearing
    | imgui.WindowFlags_.no_nav
).value


def draw(controls: Controls) -> float:
    """Draw it over the lower edge, while the player has not closed it; the points that it takes."""
    size = imgui.get_io().display_size
    width = min(_WIDTH * imgui.get_font_size(), size.x - 12)
    middle = ImVec2(0.5 * size.x, size.y - 6)
    imgui.set_next_window_pos(middle, imgui.Cond_.always.value, ImVec2(0.5, 1.0))
    imgui.set_next_window_size_constraints(ImVec2(width, 0), ImVec2(width, size.y - 12))
    if imgui.begin("welcome", None, _FLAGS)[0]:
        imgui.push_text_wrap_pos(0.0)
        for line in _LINES:
            imgui.text_unformatted(line)
        imgui.pop_text_wrap_pos()
        _buttons(controls)
    taken = imgui.get_window_size()
    imgui.end()
    return float(taken.x * taken.y)


def _buttons(controls: Controls) -> None:
    hitching = controls.mode == "unsliced"
    if imgui.button("slices again" if hitching else "make it hitch"):
        controls.mode = "sliced" if hitching else "unsliced"
    if hitching:
        imgui.same_line()
        drawing.text("whole networks in a frame", palette.WARN)
    imgui.same_line()
    if imgui.button("close"):
        controls.welcome = False
