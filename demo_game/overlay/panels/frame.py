"""The last frames as a graph, and what they come to."""

from __future__ import annotations

import numpy as np
from imgui_bundle import ImVec2, ImVec4, imgui, implot

from cml_engine.tools.panel import drawing, palette
from demo_game.overlay.frame_lanes import (
    LANES,
    FrameSummary,
    Lanes,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
)
from demo_game.overlay.layout import Layout
from demo_game.overlay.view import FrameView
from demo_game.reporting.telemetry import HISTORY, FrameSample

_PLOT = (
    implot.Flags_.no_title
    | implot.Flags_.no_legend
    | implot.Flags_.no_mouse_text
    | implot.Flags_.no_inputs
    | implot.Flags_.no_menus
    | implot.Flags_.no_box_select
    | implot.Flags_.no_frame
).value
_X_AXIS = (implot.AxisFlags_.no_decorations).value
_Y_AXIS = (implot.AxisFlags_.no_menus | implot.AxisFlags_.no_tick_marks).value
#: the graph's top in targets: never less, so that a frame in time looks like one; never more
_LEAST, _MOST = 1.5, 6.0
#: drawn from the tallest down, each over the one before: a bar reaches down to 0
_BARS = tuple(
    (name, implot.Spec(line_color=ImVec4(0, 0, 0, 0), fill_color=ImVec4(*palette.LANES[name])))
    for name in ("over", "other", "inference", "render")
)
_FREE = implot.Spec(line_color=ImVec4(0, 0, 0, 0), fill_color=ImVec4(*palette.LANES["free"]))
_TARGET = implot.Spec(
    line_color=ImVec4(*palette.TEXT),
    line_weight=1.0,
    flags=implot.InfLinesFlags_.horizontal.value,
)


class FramePanel:
    """The frame graph. The graph moves in every frame, the numbers four times a second."""

    def __init__(self) -> None:
        self._summary = FrameSummary(0, 0.0, 0.0, 0.0, 0)
        self._legend: list[tuple[str, str]] = []
        self._top = _LEAST
        # marked until the next look, so that what it says can be read
        self._overrun: FrameSample | None = None
        #: GPU time of the overlay's own pass, mean
        self.overlay_ms = 0.0

    def refresh(self, view: FrameView, now_s: float) -> None:
        """Count again."""
        frames = complete(view.telemetry.frames)
        target = view.telemetry.target_ms
        self._summary = summary(frames, target)
        # the top follows P99 in half targets, so that it seldom jumps
        wanted = np.ceil(2 * 1.15 * self._summary.p99 / target) / 2
        self._top = float(np.clip(wanted, _LEAST, _MOST))
        self._legend = _legend(frames, target)
        self._overrun = latest_overrun(frames, target)
        self.overlay_ms = mean_overlay_ms(frames)

    def draw(self, view: FrameView, layout: Layout) -> None:
        """The graph and the numbers below it."""
        target = view.telemetry.target_ms
        frames = complete(view.telemetry.frames)
        if implot.begin_plot("##frames", ImVec2(-1, layout.plot_height), _PLOT):
            last = frames[-1].number + 1 if frames else 0
            self._axes(target)
            if frames:
                _bars(lanes(frames, target), last, target)
            implot.plot_inf_lines("##target", np.array([target]), _TARGET)
            if self._overrun is not None:
                _mark(self._overrun, last, target, self._top * target)
            implot.end_plot()
        self._numbers(target, layout)

    def _axes(self, target_ms: float) -> None:
        implot.setup_axes("", "", _X_AXIS, _Y_AXIS)
        implot.setup_axis_limits(implot.ImAxis_.x1.value, -HISTORY, 0, implot.Cond_.always.value)
        top = self._top * target_ms
        implot.setup_axis_limits(implot.ImAxis_.y1.value, 0, top, implot.Cond_.always.value)
        every = 1 if self._top < 3 else 2
        ticks = [n * target_ms for n in range(0, int(self._top) + 1, every)]
        labels = [f"{tick:.1f}" if tick else "0 ms" for tick in ticks]
        implot.setup_axis_ticks(implot.ImAxis_.y1.value, ticks, labels)

    def _numbers(self, target_ms: float, layout: Layout) -> None:
        shown = [item for item in self._legend if item[0] != "other" or not layout.compact]
        for index, (name, label) in enumerate(shown):
            if index:
                imgui.same_line()
            drawing.swatch(palette.LANES[name], label)
        found = self._summary
        if not found.frames:
            drawing.text("no frame measured yet", palette.DIM)
            return
        imgui.text(f"P50 {found.p50:.1f}   P95 {found.p95:.1f}   P99 {found.p99:.1f} ms")
        imgui.same_line()
        colour = palette.BAD if found.over else palette.GOOD
        drawing.text(f"{found.over} of {found.frames} over {target_ms:.1f}", colour)


def _legend(frames: list[FrameSample], target_ms: float) -> list[tuple[str, str]]:
    """The lanes that there are, with their means."""
    if not frames:
        return []
    tops = lanes(frames, target_ms).tops.mean(axis=1)
    thick = np.diff(tops, prepend=0.0)
    return [
        (name, f"{name} {ms:.1f}" if ms < 10 else f"{name} {ms:.0f}")
        for name, ms in zip(LANES, thick, strict=True)
        if ms >= 0.05 or name in ("render", "inference")
    ]


def _bars(made: Lanes, last: int, target_ms: float) -> None:
    x = made.numbers - last + 0.5
    by_name = dict(zip(LANES, made.tops, strict=True))
    late = by_name["over"] > by_name["free"]
    # what no bar covers below the target is free: one rectangle for all frames
    middle, width = np.array([0.5 * (x[0] + x[-1])]), x[-1] - x[0] + 1.0
    implot.plot_bars("##free", middle, np.array([target_ms]), width, _FREE)
    for name, spec in _BARS:
        tops = by_name[name]
        if name not in ("over", "other"):
            implot.plot_bars(f"##{name}", x, tops, 1.0, spec)
        elif late.any():
            implot.plot_bars(f"##{name}", x[late], tops[late], 1.0, spec)


def _mark(overrun: FrameSample, last: int, target_ms: float, top_ms: float) -> None:
    """Why the latest overrun was one, beside its bar."""
    x = overrun.number - last + 0.5
    offset = ImVec2(-12 if x > -HISTORY / 2 else 12, -2)
    said = f"{overrun.frame_ms:.0f} ms"
    if overrun.cause:
        said += f": {overrun.cause}"
    height = min(overrun.frame_ms, 0.92 * top_ms)
    colour = ImVec4(*palette.faded(palette.BAD, 0.9))
    implot.annotation(x, max(height, target_ms), colour, offset, True, said)
