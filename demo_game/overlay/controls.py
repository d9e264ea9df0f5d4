"""The overlay's section with the player's controls and a line about the game."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgui_bundle import ImVec4, imgui

from cml_engine.demo_game.game import PLANNERS, POLICIES, Controls
from cml_engine.panel import Layout, PanelSection, PanelView, drawing, palette

if TYPE_CHECKING:
    from cml_engine.demo_game.game import Game

_POLICIES = list(POLICIES)
_MODES = list(PLANNERS)
_MODE_NAMES = ["sliced", "one operator", "unsliced"]
_MODE_HINTS = {
    "sliced": "slices as large as the budget allows",
    "layer": "a whole operator in each frame, however long it takes",
    "unsliced": "a whole network in one frame: feel the hitch",
}
#: the networks whose jobs the player can pause
AGENTS = ("upres", "texture", "population")
_LEAST_BUDGET_MS = 0.25


class ControlsSection(PanelSection):
    """A section of the panel whose widgets write to the game's controls."""

    title = "controls"
    column = "right"
    opens_from_em = 60.0

    def __init__(self, game: Game) -> None:
        self._game = game

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the widgets that change the game's controls, and the game's notice."""
        controls = self._game.controls
        imgui.push_item_width(-1)
        self._budget(controls)
        self._mode(layout, controls)
        policy = _POLICIES.index(controls.policy)
        names = [name.replace("_", " ") for name in _POLICIES]
        changed, policy = imgui.combo("##policy", policy, names)
        if changed:
            controls.policy = _POLICIES[policy]
        imgui.pop_item_width()
        self._agents(view, layout, controls)
        _, controls.scripted = imgui.checkbox("scripted camera", controls.scripted)
        if not layout.compact:
            imgui.same_line()
        self._trace(controls)
        imgui.push_text_wrap_pos(0.0)
        drawing.text(self._game.notice, palette.DIM)
        imgui.pop_text_wrap_pos()

    def _budget(self, controls: Controls) -> None:
        spare_ms = self._game.scheduler.next_budget_ms
        spare = controls.budget_ms is None
        if self._game.loading:
            drawing.text("the budget applies once the ground is there", palette.DIM)
        imgui.begin_disabled(self._game.loading)
        changed, spare = imgui.checkbox("budget: the time that rendering leaves", spare)
        if changed:
            controls.budget_ms = None if spare else max(_LEAST_BUDGET_MS, round(spare_ms, 2))
        slider_ms = spare_ms if controls.budget_ms is None else controls.budget_ms
        imgui.begin_disabled(spare)
        moved, slider_ms = imgui.slider_float(
            "##budget", slider_ms, _LEAST_BUDGET_MS, self._game.scheduler.frame_ms, "%.2f ms"
        )
        if moved and not spare:
            controls.budget_ms = slider_ms
        imgui.end_disabled()
        imgui.end_disabled()

    def _mode(self, layout: Layout, controls: Controls) -> None:
        mode = _MODES.index(controls.mode)
        changed, mode = imgui.combo("##mode", mode, _MODE_NAMES)
        if changed:
            controls.mode = _MODES[mode]
        unusual = controls.mode != "sliced"
        if unusual or not layout.compact:
            imgui.push_text_wrap_pos(0.0)
            colour = palette.WARN if unusual else palette.DIM
            drawing.text(_MODE_HINTS[controls.mode], colour)
            imgui.pop_text_wrap_pos()

    def _agents(self, view: PanelView, layout: Layout, controls: Controls) -> None:
        for index, name in enumerate(AGENTS):
            if index and not layout.compact:
                imgui.same_line()
            colour = ImVec4(*palette.network_colour(name, view.sessions))
            imgui.push_style_color(imgui.Col_.check_mark.value, colour)
            imgui.push_style_color(imgui.Col_.text.value, colour)
            changed, works = imgui.checkbox(name, name not in controls.paused)
            imgui.pop_style_color(2)
            if changed:
                (controls.paused.discard if works else controls.paused.add)(name)

    def _trace(self, controls: Controls) -> None:
        _, controls.recording = imgui.checkbox("record a trace", controls.recording)
        if controls.recording:
            imgui.same_line()
            drawing.text("recording", palette.BAD)
        if controls.trace_path is not None:
            path, width = controls.trace_path, imgui.get_content_region_avail().x
            drawing.text(drawing.shortened(f"last: {path}", width), palette.DIM)
            imgui.set_item_tooltip(str(path.absolute()))
