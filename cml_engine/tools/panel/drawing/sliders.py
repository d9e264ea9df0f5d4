"""Sliders for the adjustable numbers of the networks (:class:`cml_engine.Slider`)."""

from __future__ import annotations

from collections.abc import Mapping

from imgui_bundle import imgui

from cml_engine.runtime.session import Session
from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import words
from cml_engine.tools.panel.view import ShownView


class SlidersPanel:
    """The sliders of each network, below its name.

    ``values[network][slider]`` is the current value, at first the default in the model.
    """

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.values = {
            name: {title: slider.default for title, slider in session.sliders.items()}
            for name, session in sessions.items()
        }

    def draw(self, view: ShownView) -> None:
        """Draws the sliders, and a reset button for each network whose values were changed."""
        for name, values in self.values.items():
            if not values:
                continue
            sliders = view.sessions[name].sliders
            words.text(name, palette.network_colour(name, view.sessions))
            if any(values[title] != slider.default for title, slider in sliders.items()):
                imgui.same_line()
                if imgui.small_button(f"as in the model##{name}"):
                    values |= {title: slider.default for title, slider in sliders.items()}
            for title, slider in sliders.items():
                label = f"{title}##{name}"
                moved, value = imgui.slider_float(label, values[title], slider.low, slider.high)
                if slider.description:
                    imgui.set_item_tooltip(slider.description)
                if moved:
                    values[title] = value
