"""All panels in one window of the host's imgui, which is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cml_engine.errors import InputError
from cml_engine.runtime.session import Session
from cml_engine.tools.panel import drawing
from cml_engine.tools.panel.operators import Key, OperatorTime, OperatorTimes
from cml_engine.tools.panel.sources import Scheduler, ShownFrame, ShownJob

#: interval between updates of slowly changing data
_REFRESH_MS = 250.0
#: the initial size of the window, in points
_FIRST_SIZE = (560, 480)


@dataclass(frozen=True)
class _View:
    """The data to show in a frame."""

    sessions: Mapping[str, Session]
    operators: Mapping[Key, OperatorTime]
    jobs: Sequence[ShownJob]
    last_report: ShownFrame | None
    now_ms: float


@dataclass(frozen=True)
class _Room:
    """The available space, in points."""

    compact: bool = False
    timeline_height: float = 46.0
    ranking_rows: int = 10


class Panel:
    """A panel that shows the networks' work in the frames.

    It shows the newest frame's slices on a line of GPU time with its budget, operators by cost,
    jobs, and sliders. ``sessions`` are the networks by the names of their jobs; a job has the
    name of its network unless ``submit(..., name=)`` sets another. The panel draws with
    imgui-bundle into the host's own context and submits nothing itself.

    >>> panel = Panel(scheduler, {"upres": upres})        # doctest: +SKIP
    >>> panel.watch(report, scheduler.end_frame())        # doctest: +SKIP
    >>> panel.draw()                                      # doctest: +SKIP
    """

    def __init__(self, scheduler: Scheduler, sessions: Mapping[str, Session]) -> None:
        self._imgui = _imgui()
        self._scheduler = scheduler
        self._times = OperatorTimes(sessions)
        self._report: ShownFrame | None = None
        self._timeline, self.ranking = drawing.TimelinePanel(), drawing.RankingPanel()
        self._jobs, self._sliders = drawing.JobsPanel(), drawing.SlidersPanel(sessions)
        self._refreshed_ms: float | None = None

    def watch(self, report: ShownFrame, measured: Iterable[ShownFrame]) -> None:
        """Takes the results of ``scheduler.encode`` and ``scheduler.end_frame``.

        Call it once per frame.
        """
        self._report = report
        for frame in measured:
            self._times.add(frame)
        view = self._view()
        self._timeline.watch(view)
        self.ranking.watch(view, 1e-3 * view.now_ms)

    def values(self, network: str) -> dict[str, float]:
        """Returns the values of the network's sliders, as inputs of a job."""
        if network not in self._sliders.values:
            known = ", ".join(self._sliders.values) or "none"
            raise InputError(f"this panel has no network '{network}'; it has {known}")
        return dict(self._sliders.values[network])

    def draw(self, title: str = "networks") -> None:
        """Draws a separate window.

        Call it between the host's ``imgui.new_frame()`` and ``imgui.render()``.
        """
        imgui = self._imgui
        imgui.set_next_window_size(_FIRST_SIZE, imgui.Cond_.first_use_ever.value)
        if imgui.begin(title)[0]:
            self.draw_widgets()
        imgui.end()

    def draw_widgets(self) -> None:
        """Draws only the widgets, into the current window."""
        imgui, view, room = self._imgui, self._view(), _Room()
        self._refresh(view)
        opened = imgui.TreeNodeFlags_.default_open.value
        if imgui.collapsing_header("this frame", opened):
            self._timeline.draw(view, room)
        if imgui.collapsing_header("operators", opened):
            self.ranking.draw(view, room)
        if imgui.collapsing_header("jobs", opened):
            self._jobs.draw(view, room)
        if any(self._sliders.values.values()) and imgui.collapsing_header("sliders", opened):
            self._sliders.draw(view)

    def _refresh(self, view: _View) -> None:
        last = self._refreshed_ms
        if last is not None and view.now_ms - last < _REFRESH_MS:
            return
        self._refreshed_ms = view.now_ms
        for panel in (self._timeline, self.ranking, self._jobs):
            panel.refresh(view, 1e-3 * view.now_ms)

    def _view(self) -> _View:
        return _View(
            self._times.sessions,
            self._times.operators,
            self._scheduler.jobs,
            self._report,
            self._scheduler.clock.now_ms(),
        )


def _imgui() -> Any:
    try:
        from imgui_bundle import imgui
    except ImportError as error:
        what = f"a panel is drawn with imgui-bundle ({error})"
        raise InputError(f"{what}: pip install 'cml-engine[game]'") from None
    return imgui
