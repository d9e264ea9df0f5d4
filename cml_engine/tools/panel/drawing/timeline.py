"""One frame's slices on a line of GPU time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import words
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.slices import Bar, Reports, bars, why
from cml_engine.tools.panel.sources import ShownFrame
from cml_engine.tools.panel.view import Room, ShownView


class TimelinePanel:
    """The newest measured frame, updated four times a second so that it is readable."""

    def __init__(self) -> None:
        self._reports = Reports()
        self._report: ShownFrame | None = None
        self._bars: list[Bar] = []

    def watch(self, view: ShownView) -> None:
        """Keeps this frame's report until it is measured."""
        self._reports.add(view.last_report)

    def refresh(self, view: ShownView, now_s: float) -> None:
        """Selects the frame to show."""
        self._report = self._reports.shown()
        self._bars = bars(self._report) if self._report else []

    def draw(self, view: ShownView, room: Room) -> None:
        """Draws the bars, the lines of budget and planned time, and the reason of the stop."""
        report = self._report
        if report is None:
            words.text("no frame yet", palette.DIM)
            return
        width, height = imgui.get_content_region_avail().x, room.timeline_height
        corner = imgui.get_cursor_screen_pos()
        used_ms = self._bars[-1].start_ms + self._bars[-1].ms if self._bars else 0.0
        whole_ms = 1.12 * max(report.budget_ms, used_ms, 0.1)
        scale = width / whole_ms
        words.rectangle(corner.x, corner.y, width, height, palette.WELL)
        for bar in self._bars:
            colour = palette.network_colour(bar.network, view.sessions)
            _bar(bar, colour, corner, scale, height)
        aim, budget = report.aim_ms * scale, report.budget_ms * scale
        _line(corner.x + aim, corner.y, height, "aim", budget - aim, palette.DIM)
        colour = palette.BAD if used_ms > report.budget_ms else palette.TEXT
        _line(corner.x + budget, corner.y, height, "budget", width - budget, colour)
        imgui.dummy(ImVec2(width, height))
        if imgui.is_item_hovered():
            _tooltip(self._bars, (imgui.get_mouse_pos().x - corner.x) / scale)
        _words(report, used_ms, room.compact)


def _words(report: ShownFrame, used_ms: float, compact: bool) -> None:
    how = "measured" if report.measured_ms is not None else "predicted"
    said = f"{used_ms:.2f} ms {how}, aim {report.aim_ms:.2f}, budget {report.budget_ms:.2f}"
    colour = palette.BAD if report.over_budget else palette.TEXT
    words.text(said, colour)
    count = len(report.slices)
    parts = f"{count} slice" if count == 1 else f"{count} slices"
    words.text(f"frame {report.frame}: {parts}; {why(report)}", palette.DIM)
    if not compact:
        words.text(
            f"CPU {report.cpu_ms:.2f} ms, of it {report.encode_ms:.2f} encoding", palette.DIM
        )


def _bar(bar: Bar, colour: Colour, corner: Any, scale: float, height: float) -> None:
    left, width = corner.x + bar.start_ms * scale, bar.ms * scale
    top = corner.y + 2
    words.rectangle(left, top, max(1.0, width - 1), height - 4, palette.faded(colour, 0.85))
    if width > imgui.calc_text_size(bar.network).x + 6:
        ink = words.packed((0.05, 0.07, 0.09, 1.0))
        y = top + 0.5 * (height - 4 - imgui.get_text_line_height())
        imgui.get_window_draw_list().add_text(ImVec2(left + 3, y), ink, bar.network)


def _line(x: float, y: float, height: float, label: str, room: float, colour: Colour) -> None:
    words.rectangle(round(x), y, 1.0, height, colour)
    if imgui.calc_text_size(label).x + 6 < room:
        imgui.get_window_draw_list().add_text(ImVec2(x + 4, y + 1), words.packed(colour), label)


def _tooltip(found: Sequence[Bar], at_ms: float) -> None:
    for bar in found:
        if bar.start_ms <= at_ms < bar.start_ms + bar.ms:
            took = f"{bar.ms:.3f} ms, " if bar.measured else ""
            imgui.set_tooltip(
                f"{bar.network}: {bar.title}\n{bar.groups} workgroups\n"
                f"{took}predicted {bar.predicted_ms:.3f} ms"
            )
            return
