"""The section of sliders for the adjustable inputs of the networks (:class:`cml_engine.Slider`)."""

from __future__ import annotations

from imgui_bundle import imgui

from cml_engine.runtime.session import Session
from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView


class SlidersPanel(PanelSection):
    """The section with the sliders of each network, below its name.

    ``changed[network][slider]`` is the value of a slider that was moved.
    """

    title = "sliders"
    column = "right"
    opens_from_em = 0.0

    def __init__(self) -> None:
        self.changed: dict[str, dict[str, float]] = {}

    def values(self, network: str, session: Session) -> dict[str, float]:
        """Returns the value of each slider of the network: the default, unless it was moved."""
        default = {title: slider.default for title, slider in session.sliders.items()}
        return default | self.changed.get(network, {})

    def is_empty(self, view: PanelView) -> bool:
        """Returns True if no network has a slider."""
        return not any(session.sliders for session in view.sessions.values())

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the sliders and stores moved values in :attr:`changed`.

        A network whose values were changed has a reset button.
        """
        for name, session in view.sessions.items():
            if not session.sliders:
                continue
            widgets.text(name, palette.network_colour(name, view.sessions))
            values = self.values(name, session)
            if any(values[title] != slider.default for title, slider in session.sliders.items()):
                imgui.same_line()
                if imgui.small_button(f"reset##{name}"):
                    self.changed.pop(name, None)
            for title, slider in session.sliders.items():
                imgui.set_next_item_width(0.5 * imgui.get_content_region_avail().x)
                found = imgui.slider_float(
                    f"##{title} of {name}", values[title], slider.low, slider.high
                )
                if slider.description:
                    imgui.set_item_tooltip(slider.description)
                if found[0]:
                    self.changed.setdefault(name, {})[title] = found[1]
                imgui.same_line()
                room = imgui.get_content_region_avail().x
                widgets.text(widgets.shortened(title, room), palette.TEXT)
