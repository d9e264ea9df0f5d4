"""The section of one frame's slices on a line of GPU time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView
from cml_engine.tools.panel.slices import Bar, bars, times, why

if TYPE_CHECKING:
    from cml_engine import FrameReport

_INK = (0.05, 0.07, 0.09, 1.0)


class TimelinePanel(PanelSection):
    """The section with the newest measured frame; it changes four times a second to be readable."""

    title = "this frame"
    opens_from_em = 48.0

    def __init__(self) -> None:
        self._report: FrameReport | None = None
        self._bars: list[Bar] = []

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Selects the newest measured frame and computes its bars."""
        self._report = view.log.measured_report
        self._bars = bars(self._report) if self._report else []

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the slices as bars, the budget's line, the times, and why the frame stopped."""
        report = self._report
        if report is None:
            widgets.text("no frame yet", palette.DIM)
            return
        width, height = imgui.get_content_region_avail().x, layout.timeline_height
        corner = imgui.get_cursor_screen_pos()
        used_ms = self._bars[-1].start_ms + self._bars[-1].ms if self._bars else 0.0
        scale = width / (1.25 * max(report.budget_ms, used_ms, 0.1))
        widgets.rectangle(corner.x, corner.y, width, height, palette.WELL)
        for bar in self._bars:
            _bar(bar, palette.network_colour(bar.network, view.sessions), corner, scale, height)
        over = used_ms > report.budget_ms
        _budget_line(corner, report.budget_ms * scale, height, over)
        imgui.dummy(ImVec2(width, height))
        if imgui.is_item_hovered():
            _tooltip(self._bars, (imgui.get_mouse_pos().x - corner.x) / scale)
        widgets.wrapped(
            (said, palette.BAD if over and said.startswith("measured") else palette.TEXT)
            for said in times(report)
        )
        count = len(report.slices)
        slices = f"{count} slice" if count == 1 else f"{count} slices"
        widgets.wrapped([(f"frame {report.frame}: {slices};", palette.DIM),
                         (why(report), palette.DIM)], 0.3)  # fmt: skip
        if not layout.compact:
            cpu = f"CPU {report.cpu_ms:.2f} ms, of it {report.encode_ms:.2f} encoding"
            widgets.text(cpu, palette.DIM)


def _bar(bar: Bar, colour: Colour, corner: ImVec2, scale: float, height: float) -> None:
    left, width = corner.x + bar.start_ms * scale, bar.ms * scale
    widgets.rectangle(left, corner.y + 2, max(1.0, width - 1), height - 4, colour)
    if width > imgui.calc_text_size(bar.network).x + 6:
        y = corner.y + 0.5 * (height - imgui.get_text_line_height())
        place = ImVec2(round(left + 3), round(y))
        imgui.get_window_draw_list().add_text(place, widgets.packed(_INK), bar.network)


def _budget_line(corner: ImVec2, x: float, height: float, over: bool) -> None:
    colour = palette.BAD if over else palette.TEXT
    widgets.rectangle(round(corner.x + x), corner.y, 1.0, height, colour)
    # the line has a fifth of the width on its right, or more
    widgets.label(corner.x + x + 5, corner.y + 1, "budget", colour)


def _tooltip(found: list[Bar], at_ms: float) -> None:
    for bar in found:
        if bar.start_ms <= at_ms < bar.start_ms + bar.ms:
            took = f"measured {bar.ms:.3f} ms, " if bar.measured else ""
            imgui.set_tooltip(
                f"{bar.network}: {bar.title}\n{bar.groups} workgroups\n"
                f"{took}planned {bar.predicted_ms:.3f} ms"
            )
            return
