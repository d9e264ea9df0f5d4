"""The section of frame times: a graph of the last frames, with percentiles below it."""

from __future__ import annotations

import numpy as np
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.frames import (
    HISTORY,
    LANES,
    FrameSample,
    FrameSummary,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
)
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView

#: the top of the graph in targets: at least, so that a frame in time looks like one; at most
_LEAST, _MOST = 1.5, 6.0


class FramePanel(PanelSection):
    """The section with the graph of frame times and the numbers below it.

    The graph moves in every frame, the numbers change four times a second.
    """

    title = "frames"
    opens_from_em = 0.0

    def __init__(self) -> None:
        self._summary = FrameSummary(0, 0.0, 0.0, 0.0, 0)
        self._legend: list[tuple[palette.Colour, str]] = []
        self._top = _LEAST
        # marked until the next refresh, so that it can be read
        self._overrun: FrameSample | None = None
        self._overlay_ms = 0.0

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes the percentiles, the legend and the scale of the graph from the log."""
        target, frames = view.log.target_ms, complete(view.log.frames)
        self._summary = summary(frames, target)
        # in half targets, so that the scale seldom jumps
        wanted = np.ceil(2 * 1.15 * self._summary.p99 / target) / 2
        self._top = float(np.clip(wanted, _LEAST, _MOST))
        self._legend = _legend(frames, target)
        self._overrun = latest_overrun(frames, target)
        self._overlay_ms = mean_overlay_ms(frames)

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the graph and the numbers below it."""
        self._graph(complete(view.log.frames), view.log.target_ms, layout.graph_height)
        if not self._summary.frames:
            widgets.text("no frame measured yet", palette.DIM)
            return
        widgets.swatches(self._legend)
        self._numbers(view.log.target_ms, layout.compact)

    def _graph(self, frames: list[FrameSample], target: float, height: float) -> None:
        corner, width = imgui.get_cursor_screen_pos(), imgui.get_content_region_avail().x
        top = self._top * target
        widgets.rectangle(corner.x, corner.y, width, height, palette.WELL)
        line_y = corner.y + height * (1 - target / top)
        if frames:
            _lanes(frames, target, top, corner, ImVec2(width, height))
        widgets.rectangle(corner.x, round(line_y), width, 1.0, palette.TEXT)
        imgui.set_cursor_screen_pos(corner)
        imgui.dummy(ImVec2(width, height))
        said = f"{target:.1f} ms"
        widgets.label(corner.x + 5, line_y - imgui.get_text_line_height() - 1, said, palette.TEXT)
        late = self._overrun
        if frames and late is not None and late.frame_ms > target:
            reason = f"{late.frame_ms:.0f} ms" + (f": {late.cause}" if late.cause else "")
            x = corner.x + width * (1 - (frames[-1].number - late.number + 0.5) / HISTORY)
            _mark(x, corner, width, reason)

    def _numbers(self, target: float, compact: bool) -> None:
        found = self._summary
        missed = palette.BAD if found.over else palette.GOOD
        widgets.wrapped(
            [
                (f"P50 {found.p50:.1f}", palette.TEXT),
                (f"P95 {found.p95:.1f}", palette.TEXT),
                (f"P99 {found.p99:.1f} ms", palette.TEXT),
                (f"{found.over} of {found.frames} over {target:.1f}", missed),
            ]
        )
        if self._overlay_ms and not compact:
            widgets.text(f"this overlay: {self._overlay_ms:.2f} ms GPU", palette.DIM)


def _lanes(
    frames: list[FrameSample], target: float, top: float, corner: ImVec2, size: ImVec2
) -> None:
    """Draws the frames' lanes as stacked bars: the tallest lane first, each next one over it."""
    made = lanes(frames, target)
    columns = (made.numbers - made.numbers[-1]).astype(int) + HISTORY - 1
    shown = columns >= 0
    free = (shown.sum() * size.x / HISTORY, size.y * target / top)
    widgets.rectangle(
        corner.x + size.x - free[0], corner.y + size.y - free[1], *free, palette.LANES["free"]
    )
    values = np.zeros(HISTORY, np.float32)
    imgui.push_style_color(imgui.Col_.frame_bg.value, ImVec4(0, 0, 0, 0))
    imgui.push_style_var(imgui.StyleVar_.frame_padding.value, ImVec2(0, 0))
    imgui.push_style_var(imgui.StyleVar_.disabled_alpha.value, 1.0)
    imgui.begin_disabled()  # a graph under the mouse would show a tooltip
    late = made.tops[LANES.index("over")] > target
    for name in ("over", "other", "inference", "render"):
        tops = made.tops[LANES.index(name)]
        # a frame in time has no "over", and its "other" is free
        tops = np.where(late, tops, 0.0) if name in ("over", "other") else tops
        if tops.any():
            values[:] = 0.0
            values[columns[shown]] = tops[shown]
            imgui.set_cursor_screen_pos(corner)
            imgui.push_style_color(imgui.Col_.plot_histogram.value, ImVec4(*palette.LANES[name]))
            imgui.plot_histogram(f"##{name}", values, 0, None, 0.0, top, size)
            imgui.pop_style_color()
    imgui.end_disabled()
    imgui.pop_style_var(2)
    imgui.pop_style_color()


def _mark(x: float, corner: ImVec2, width: float, reason: str) -> None:
    """Draws a line at ``x`` and beside it the reason why that frame missed its target."""
    length = imgui.calc_text_size(reason).x
    left = x + 8 if x + 16 + length < corner.x + width else x - 8 - length
    widgets.rectangle(round(x), corner.y, 1.0, imgui.get_text_line_height(), palette.BAD)
    widgets.label(max(corner.x + 3, left), corner.y + 1, reason, palette.BAD)


def _legend(frames: list[FrameSample], target: float) -> list[tuple[palette.Colour, str]]:
    """Returns the colour of each visible lane, with a text of its name and mean milliseconds."""
    if not frames:
        return []
    thick = np.diff(lanes(frames, target).tops.mean(axis=1), prepend=0.0)
    return [
        (palette.LANES[name], f"{name} {ms:.1f}" if ms < 10 else f"{name} {ms:.0f}")
        for name, ms in zip(LANES, thick, strict=True)
        if ms >= 0.05 or name == "inference"
    ]
