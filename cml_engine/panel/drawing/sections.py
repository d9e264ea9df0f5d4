"""The sections of frames, slices, jobs, memory and sliders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.ir.graph import Slider, SliderValue
from cml_engine.ir.memory import MemoryStats, mib
from cml_engine.panel import palette
from cml_engine.panel.drawing import widgets
from cml_engine.panel.frames import (
    HISTORY,
    LANES,
    Bar,
    FrameSample,
    FrameSummary,
    bars,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
    times,
    why,
)
from cml_engine.panel.palette import Colour
from cml_engine.panel.panel import Layout, OnChange, PanelSection, PanelView
from cml_engine.runtime.session import Session

if TYPE_CHECKING:
    from cml_engine import FrameReport, Job

_TABLE = (
    imgui.TableFlags_.sizing_stretch_prop
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.row_bg
).value

# ---------------------------------------------------------------- frames

#: the top of the graph in targets: at least, so that a frame in time looks like one; at most
_LEAST, _MOST = 1.5, 6.0
#: seconds between two changes of the graph, and of the numbers
_GRAPH_S, _NUMBERS_S = 1 / 15, 0.25
#: frames that share a bar, which is as high as the highest of them
_BAR_FRAMES = 2
_BARS = HISTORY // _BAR_FRAMES
_Heights = npt.NDArray[np.float32]


class FramePanel(PanelSection):
    """The section with the graph of frame times and the numbers below it.

    The graph changes fifteen times a second, the numbers four times.
    """

    title = "frames"
    opens_from_em = 0.0
    refresh_s = _GRAPH_S

    def __init__(self) -> None:
        self._summary = FrameSummary(0, 0.0, 0.0, 0.0, 0)
        self._legend: list[tuple[Colour, str]] = []
        self._top = _LEAST
        # marked until the next refresh, so that it can be read
        self._overrun: FrameSample | None = None
        self._cost = ""
        self._numbers_due_s = 0.0
        self._bars: dict[str, _Heights] = {}
        self._filled = 0.0
        self._newest = 0

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes the graph's bars from the log, or its scale, the legend and the percentiles."""
        target, frames = view.log.target_ms, complete(view.log.frames)
        if now_s < self._numbers_due_s or not self._bars:
            self._update_bars(frames, target)
        if now_s < self._numbers_due_s:
            return
        self._numbers_due_s = now_s + _NUMBERS_S
        self._summary = summary(frames, target)
        # in half targets, so that the scale seldom jumps
        top = np.ceil(2 * 1.15 * self._summary.p99 / target) / 2
        self._top = float(np.clip(top, _LEAST, _MOST))
        self._legend = _legend(frames, target)
        self._overrun = latest_overrun(frames, target)
        self._cost = _own_cost(view.panel_cpu_ms, mean_overlay_ms(frames), target)

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the graph and the numbers below it."""
        target = view.log.target_ms
        self._graph(target, layout.graph_height)
        if not self._summary.frames:
            widgets.text("no frame measured yet", palette.DIM)
            return
        widgets.swatches(self._legend)
        self._numbers(target)

    def _update_bars(self, frames: list[FrameSample], target: float) -> None:
        self._bars, self._filled = {}, 0.0
        if frames:
            self._newest = frames[-1].number
            self._bars, self._filled = _stacked_bars(frames, target)

    def _graph(self, target: float, height: float) -> None:
        corner, width = imgui.get_cursor_screen_pos(), imgui.get_content_region_avail().x
        top = self._top * target
        widgets.rectangle(corner.x, corner.y, width, height, palette.WELL)
        line_y = corner.y + height * (1 - target / top)
        if self._bars:
            free = self._filled * width
            free_y = corner.y + height * (1 - target / top)
            free_height = height * target / top
            colour = palette.LANES["free"]
            widgets.rectangle(corner.x + width - free, free_y, free, free_height, colour)
            _draw_bars(self._bars, top, corner, ImVec2(width, height))
        widgets.rectangle(corner.x, round(line_y), width, 1.0, palette.TEXT)
        imgui.set_cursor_screen_pos(corner)
        imgui.dummy(ImVec2(width, height))
        text_y = line_y - imgui.get_text_line_height() - 1
        widgets.label(corner.x + 5, text_y, f"{target:.1f} ms", palette.TEXT)
        if self._overrun is not None:  # the mark of the frame that the line below is about
            behind = (self._newest - self._overrun.number + 0.5) / HISTORY
            if 0 <= behind < 1:
                x = round(corner.x + width * (1 - behind))
                widgets.rectangle(x - 2, corner.y, 4.0, 4.0, palette.TEXT)

    def _numbers(self, target: float) -> None:
        numbers = self._summary
        colour = palette.BAD if numbers.over else palette.GOOD
        widgets.wrapped(
            [
                (f"P50 {numbers.p50:.1f}", palette.TEXT),
                (f"P95 {numbers.p95:.1f}", palette.TEXT),
                (f"P99 {numbers.p99:.1f} ms", palette.TEXT),
                (f"{numbers.over} of {numbers.frames} over {target:.1f}", colour),
            ]
        )
        widgets.wrapped([(_late_frame(self._overrun), palette.TEXT)])
        if self._cost:
            widgets.wrapped([(self._cost, palette.DIM)])


def _late_frame(frame: FrameSample | None) -> str:
    """Returns a text about the latest frame that missed its target."""
    if frame is None:
        return "no frame was late"
    cause = f", {frame.cause}" if frame.cause else ""
    if frame.cause in frame.parts:
        cause += f" {frame.parts[frame.cause]:.0f} ms"
    return f"last late frame: {frame.frame_ms:.0f} ms{cause}"


def _own_cost(cpu_ms: float, gpu_ms: float, target_ms: float) -> str:
    """Returns a text with the time that the panel takes, and its share of a frame.

    It is "" if that is not known.
    """
    if not cpu_ms:
        return ""
    gpu = f", {gpu_ms:.2f} GPU" if gpu_ms else ""
    share = 100 * (cpu_ms + gpu_ms) / target_ms
    return f"this overlay: {cpu_ms:.2f} ms CPU{gpu}, {share:.0f} %"


def _stacked_bars(frames: list[FrameSample], target: float) -> tuple[dict[str, _Heights], float]:
    """Returns the heights in ms of each lane's bars, and the share of the graph that has frames.

    Lanes are stacked: the tallest is drawn first, each next one over it.
    """
    stacked = lanes(frames, target)
    numbers = np.fromiter((s.number for s in frames), np.int64, len(frames))
    columns = numbers // _BAR_FRAMES - frames[-1].number // _BAR_FRAMES + _BARS - 1
    visible = columns >= 0
    is_over = stacked[LANES.index("over")] > target
    heights = {}
    for name in ("over", "other", "inference", "render"):
        tops = stacked[LANES.index(name)]
        # a frame in time has no "over", and its "other" is free
        tops = np.where(is_over, tops, 0.0) if name in ("over", "other") else tops
        values = np.zeros(_BARS, np.float32)
        np.maximum.at(values, columns[visible], tops[visible].astype(np.float32))
        if values.any():
            heights[name] = values
    return heights, float(np.unique(columns[visible]).size / _BARS)


def _draw_bars(heights: Mapping[str, _Heights], top: float, corner: ImVec2, size: ImVec2) -> None:
    imgui.push_style_color(imgui.Col_.frame_bg.value, ImVec4(0, 0, 0, 0))
    imgui.push_style_var(imgui.StyleVar_.frame_padding.value, ImVec2(0, 0))
    imgui.push_style_var(imgui.StyleVar_.disabled_alpha.value, 1.0)
    imgui.begin_disabled()  # a graph under the mouse would show a tooltip
    for name, values in heights.items():
        imgui.set_cursor_screen_pos(corner)
        imgui.push_style_color(imgui.Col_.plot_histogram.value, ImVec4(*palette.LANES[name]))
        imgui.plot_histogram(f"##{name}", values, 0, None, 0.0, top, size)
        imgui.pop_style_color()
    imgui.end_disabled()
    imgui.pop_style_var(2)
    imgui.pop_style_color()


def _legend(frames: list[FrameSample], target: float) -> list[tuple[Colour, str]]:
    """Returns the colour of each visible lane, with a text of its name and mean milliseconds."""
    if not frames:
        return []
    heights = np.diff(lanes(frames, target).mean(axis=1), prepend=0.0)
    return [
        (palette.LANES[name], f"{name} {ms:.1f}" if ms < 10 else f"{name} {ms:.0f}")
        for name, ms in zip(LANES, heights, strict=True)
        if ms >= 0.05 or name == "inference"
    ]


# ---------------------------------------------------------------- slices

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
        is_over = used_ms > report.budget_ms
        _budget_line(corner, report.budget_ms * scale, height, is_over)
        imgui.dummy(ImVec2(width, height))
        if imgui.is_item_hovered():
            _tooltip(self._bars, (imgui.get_mouse_pos().x - corner.x) / scale)
        widgets.wrapped(
            (part, palette.BAD if is_over and part.startswith("measured") else palette.TEXT)
            for part in times(report)
        )
        count = len(report.slices)
        slices = f"{count} slice" if count == 1 else f"{count} slices"
        widgets.wrapped([(f"frame {report.frame}: {slices};", palette.DIM),
                         (why(report), palette.DIM)], 0.3)  # fmt: skip
        if not layout.compact:
            cpu = f"CPU {report.cpu_ms:.2f} ms, of it {report.encode_ms:.2f} encoding"
            widgets.text(cpu, palette.DIM)


def _bar(bar: Bar, colour: Colour, corner: ImVec2, scale: float, height: float) -> None:
    x, width = corner.x + bar.start_ms * scale, bar.ms * scale
    widgets.rectangle(x, corner.y + 2, max(1.0, width - 1), height - 4, colour)
    if width > imgui.calc_text_size(bar.network).x + 6:
        y = corner.y + 0.5 * (height - imgui.get_text_line_height())
        position = ImVec2(round(x + 3), round(y))
        imgui.get_window_draw_list().add_text(position, widgets.packed(_INK), bar.network)


def _budget_line(corner: ImVec2, x: float, height: float, is_over: bool) -> None:
    colour = palette.BAD if is_over else palette.TEXT
    widgets.rectangle(round(corner.x + x), corner.y, 1.0, height, colour)
    # the line has a fifth of the width on its right, or more
    widgets.label(corner.x + x + 5, corner.y + 1, "budget", colour)


def _tooltip(frame_bars: list[Bar], at_ms: float) -> None:
    for bar in frame_bars:
        if bar.start_ms <= at_ms < bar.start_ms + bar.ms:
            took = f"measured {bar.ms:.3f} ms, " if bar.measured else ""
            imgui.set_tooltip(
                f"{bar.network}: {bar.title}\n{bar.groups} workgroups\n"
                f"{took}planned {bar.predicted_ms:.3f} ms"
            )
            return


# ---------------------------------------------------------------- jobs

#: jobs with a row
_SHOWN_JOBS = 8
#: the widest texts of the columns that have a fixed width
_SAMPLES = {"state": "running", "left": "888 ms", "deadline": "deadline"}
_STATES = {"running": palette.TEXT, "paused": palette.WARN, "failed": palette.BAD}


@dataclass(frozen=True, slots=True)
class JobRow:
    """The cells of one job in the table; ``late`` is True if it is predicted to end too late."""

    name: str
    state: str
    progress: float
    remaining: str
    deadline: str
    late: bool

    @classmethod
    def of(cls, job: Job, now_ms: float) -> JobRow:
        state = str(job.state)
        if job.paused:
            state = "paused"
        elif any(not producer.ended for producer in job.producers):
            state = "waiting"
        at_ms, eta_ms = job.deadline_at_ms, job.eta_ms
        if at_ms is None:
            return cls(job.name, state, job.progress, duration(eta_ms), "-", False)
        is_late = not job.paused and eta_ms > at_ms - now_ms
        deadline = duration(at_ms - now_ms)
        return cls(job.name, state, job.progress, duration(eta_ms), deadline, is_late)


def duration(ms: float) -> str:
    """Returns milliseconds as text with a unit, such as "12 ms"; "-0.2 s" is in the past."""
    if abs(ms) < 100:
        return f"{ms:.0f} ms"
    if abs(ms) < 60_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms / 60e3:.0f} min" if abs(ms) < 3600e3 else "> 1 h" if ms > 0 else "< -1 h"


class JobsPanel(PanelSection):
    """The section with a table of the first unfinished jobs, and the number of the others."""

    title = "jobs"

    def __init__(self) -> None:
        self._rows: list[JobRow] = []
        self._more = 0

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes the table's rows from the unfinished jobs of the view, running ones first."""
        jobs = [job for job in view.jobs if not job.ended]
        jobs.sort(key=lambda job: (job.state != "running", job.paused, job.number))
        self._rows = [JobRow.of(job, view.now_ms) for job in jobs[:_SHOWN_JOBS]]
        self._more = len(jobs) - len(self._rows)

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the table of jobs, and the number of jobs that are not in it."""
        columns = ("job", "state", "done", "left") + (() if layout.compact else ("deadline",))
        if not self._rows:
            widgets.text("no jobs", palette.DIM)
        elif imgui.begin_table("jobs", len(columns), _TABLE):
            flags = imgui.TableColumnFlags_
            for column in columns:
                if column in _SAMPLES:
                    width = imgui.calc_text_size(_SAMPLES[column]).x
                    imgui.table_setup_column(column, flags.width_fixed.value, width)
                else:
                    weight = 1.3 if column == "job" else 1.0
                    imgui.table_setup_column(column, flags.width_stretch.value, weight)
            if not layout.compact:
                imgui.table_headers_row()
            for row in self._rows:
                _job_row(row, palette.network_colour(row.name, view.sessions), layout.compact)
            imgui.end_table()
        if self._more > 0:
            widgets.text(f"and {self._more} more", palette.DIM)


def _job_row(row: JobRow, colour: Colour, compact: bool) -> None:
    imgui.table_next_column()
    widgets.text(widgets.shortened(row.name, imgui.get_content_region_avail().x), colour)
    imgui.table_next_column()
    widgets.text(row.state, _STATES.get(row.state, palette.DIM))
    imgui.table_next_column()
    widgets.bar(row.progress, colour)
    imgui.table_next_column()
    widgets.text(row.remaining, palette.BAD if row.late else palette.TEXT)
    if not compact:
        imgui.table_next_column()
        widgets.text(row.deadline, palette.BAD if row.late else palette.DIM)


# ---------------------------------------------------------------- memory

#: seconds between two collections of the allocator's statistics, which take time
_EVERY_S = 0.5
#: the columns of the table; all categories without a column are in the last but one
_COLUMNS = ("weights", "activations", "render", "other", "total")
#: owners with a row; all others share a row
_SHOWN_OWNERS = 6
_SHOWN_LIMITS = {
    "max-buffer-size": "largest buffer",
    "max-storage-buffer-binding-size": "largest binding",
    "max-compute-invocations-per-workgroup": "threads in a workgroup",
    "max-compute-workgroup-storage-size": "shared memory",
}


class MemoryPanel(PanelSection):
    """The section of GPU memory: a table by owner, the budget, a graph of frames, the device."""

    title = "memory"
    column = "right"

    def __init__(self) -> None:
        self._stats: MemoryStats | None = None
        self._rows: list[tuple[str, dict[str, str]]] = []
        self._due_s = 0.0
        self._history: deque[int] = deque(maxlen=HISTORY)

    def is_empty(self, view: PanelView) -> bool:
        """Returns True if the view has no device."""
        return view.gpu is None

    def watch(self, view: PanelView, now_s: float) -> None:
        """Adds the bytes of GPU memory in use to the graph."""
        if view.gpu is not None:
            self._history.append(view.gpu.memory.held_bytes)

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Collects the memory statistics, if the last ones are old."""
        if view.gpu is not None and (self._stats is None or now_s >= self._due_s):
            self._due_s = now_s + _EVERY_S
            self._stats = view.gpu.memory.stats()
            self._rows = _memory_rows(self._stats)

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the budget, the owners, the graph and the device."""
        if self._stats is not None:
            self._owners(self._stats, view, layout.compact)
        if not layout.compact and self._history:
            history = np.array(self._history, np.float32)
            size = ImVec2(-1, 2 * imgui.get_text_line_height())
            imgui.push_style_color(imgui.Col_.frame_bg.value, ImVec4(*palette.WELL))
            imgui.plot_lines("##held", history, 0, "", 0.0, 1.1 * float(history.max()) or 1.0, size)
            imgui.pop_style_color()
        if view.gpu is None:
            return
        imgui.push_text_wrap_pos(0.0)
        widgets.text(str(view.gpu.info.get("device")), palette.TEXT)
        if not layout.compact:
            widgets.text(str(view.gpu.info.get("description")), palette.DIM)
            widgets.text("; ".join(_limit_lines(view.gpu.device.limits)), palette.DIM)
        imgui.pop_text_wrap_pos()

    def _owners(self, stats: MemoryStats, view: PanelView, compact: bool) -> None:
        if stats.budget_bytes:
            filled = stats.reserved_bytes / stats.budget_bytes
            imgui.progress_bar(min(1.0, filled), ImVec2(-1, 0), f"{filled:.0%} of budget")
        totals = f"{mib(stats.held_bytes)} held, peak {mib(stats.peak_bytes)}"
        widgets.text(totals, palette.TEXT)
        columns = _COLUMNS[-1:] if compact else _COLUMNS
        if not imgui.begin_table("memory", len(columns) + 1, _TABLE):
            return
        imgui.table_setup_column("MiB", 0, 1.9)
        for column in columns:
            imgui.table_setup_column(column, 0, 1.5 if len(column) > 6 else 1.0)
        imgui.table_headers_row()
        for owner, cells in self._rows:
            imgui.table_next_column()
            widgets.text(owner, palette.network_colour(owner, view.sessions))
            for column in columns:
                imgui.table_next_column()
                colour = palette.TEXT if column == "total" else palette.DIM
                widgets.text(cells[column], colour)
        imgui.end_table()


def _memory_rows(stats: MemoryStats) -> list[tuple[str, dict[str, str]]]:
    """Returns the largest owners of memory, and one row for all others, with texts by column."""
    owners: dict[str, Counter[str]] = {}
    for (owner, category), holding in stats.holdings.items():
        column = category if category in _COLUMNS else "other"
        owners.setdefault(owner, Counter()).update(
            {column: holding.nbytes, "total": holding.nbytes}
        )
    ranked = sorted(owners.items(), key=lambda item: (-item[1]["total"], item[0]))
    smaller = ranked[_SHOWN_OWNERS:]
    if smaller:
        ranked[_SHOWN_OWNERS:] = [(f"{len(smaller)} more", sum((c for _, c in smaller), Counter()))]
    return [
        (owner, {c: _short_mib(by_column[c]) if by_column[c] else "" for c in _COLUMNS})
        for owner, by_column in ranked
    ]


def _short_mib(nbytes: int) -> str:
    """Returns bytes as a text in MiB with about three digits, without the unit."""
    value = nbytes / (1 << 20)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _limit_lines(limits: Mapping[str, int]) -> list[str]:
    """Returns lines of text with the device's limits that decide which networks fit.

    Limits that ``limits`` lacks are left out.
    """
    lines = []
    for key, label in _SHOWN_LIMITS.items():
        value = limits.get(key)
        if value is not None:
            size = str(value) if "invocations" in key else mib(int(value)).replace(".00", "")
            lines.append(f"{label} {size}")
    return lines


# ---------------------------------------------------------------- sliders


class SlidersPanel(PanelSection):
    """The section with the sliders of each network, below its name.

    ``changed[network][slider]`` is the value of a slider that was moved. A slider with choices is
    a list, one of a truth value a check box. ``on_change`` is called as :class:`Panel` says.
    """

    title = "sliders"
    column = "right"
    opens_from_em = 0.0

    def __init__(self) -> None:
        self.changed: dict[str, dict[str, SliderValue]] = {}
        self.on_change: OnChange | None = None

    def values(self, network: str, session: Session) -> dict[str, SliderValue]:
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
                    for title in self.changed.pop(name, {}):
                        self._tell(name, title, session.sliders[title].default)
            for title, slider in session.sliders.items():
                imgui.set_next_item_width(0.5 * imgui.get_content_region_avail().x)
                moved, value = _widget(f"##{title} of {name}", slider, values[title])
                if slider.description:
                    imgui.set_item_tooltip(slider.description)
                if moved:
                    self.changed.setdefault(name, {})[title] = value
                    self._tell(name, title, value)
                imgui.same_line()
                width = imgui.get_content_region_avail().x
                widgets.text(widgets.shortened(title, width), palette.TEXT)

    def _tell(self, network: str, slider: str, value: SliderValue) -> None:
        if self.on_change is not None:
            self.on_change(network, slider, value)


def _widget(label: str, slider: Slider, value: SliderValue) -> tuple[bool, SliderValue]:
    """Draws the widget of one slider; returns True if it was moved, and the value."""
    if slider.choices:
        choices = list(slider.choices.values())
        chosen = choices.index(value) if value in choices else -1
        moved, chosen = imgui.combo(label, chosen, list(slider.choices))
        return moved, choices[chosen] if moved else value
    if isinstance(value, bool):
        moved, checked = imgui.checkbox(label, value)
        return moved, checked
    numbers = value if isinstance(value, tuple) else (value,)
    width = imgui.calc_item_width() / len(numbers)
    moved, moved_numbers = False, list[float]()
    for i, number in enumerate(numbers):
        imgui.set_next_item_width(width)
        if i:
            imgui.same_line(0, 0)
        name, result = f"{label}{i or ''}", (False, 0.0)
        if isinstance(number, int):
            result = imgui.slider_int(name, number, int(slider.low), int(slider.high))
        else:
            result = imgui.slider_float(name, number, slider.low, slider.high)
        moved |= result[0]
        moved_numbers.append(result[1])
    return moved, tuple(moved_numbers) if isinstance(value, tuple) else moved_numbers[0]
