"""The panel: draws its sections with the host's imgui, which is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cml_engine.errors import InputError
from cml_engine.tools.panel.frames import FrameLog
from cml_engine.tools.panel.section import Column, Layout, PanelSection, PanelView, layout_for

if TYPE_CHECKING:
    from cml_engine import FrameReport, FrameScheduler, Session

#: seconds between updates of slowly changing data
_REFRESH_S = 0.25
#: points between the window and the edges of the screen
_MARGIN = 6.0


class Panel:
    """A panel that shows the networks' work in the frames.

    It shows frame times and operators by cost at start; the newest frame's slices beside its
    budget, jobs, memory and sliders can be opened. ``sessions`` are the networks by the names of
    their jobs; a job has the name of its network unless ``submit(..., name=)`` sets another. The
    panel draws with imgui-bundle into the host's own context and submits nothing itself.

    >>> panel = Panel(scheduler, {"upres": upres})        # doctest: +SKIP
    >>> panel.watch(report, scheduler.end_frame())        # doctest: +SKIP
    >>> panel.draw()                                      # doctest: +SKIP

    Parameters
    ----------
    sections : the game's own sections, shown below the others.
    log : costs that the host collects itself; then it calls :meth:`update` instead of
        :meth:`watch`.
    """

    def __init__(
        self,
        scheduler: FrameScheduler,
        sessions: Mapping[str, Session],
        *,
        sections: Iterable[PanelSection] = (),
        log: FrameLog | None = None,
    ) -> None:
        self._imgui = _drawing("imgui_bundle").imgui
        drawing = _drawing("cml_engine.tools.panel.drawing")
        self._scheduler, self._sessions = scheduler, sessions
        self.log = log or FrameLog(scheduler.frame_ms, sessions)
        self.sections: tuple[PanelSection, ...] = (
            *(section() for section in drawing.SECTIONS),
            *sections,
        )
        self._watched_ms: float | None = None
        #: the sections to open or to close in the next frame; None: those that are open at start
        self._arranged: set[str] | None = None
        self._arrange = True
        self._open: set[PanelSection] = set()
        self._due_s: dict[PanelSection, float] = {}

    def watch(
        self,
        report: FrameReport,
        measured: Iterable[FrameReport],
        passes: Iterable[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        """Records a frame: takes the results of the calls that the host made in it.

        ``report`` is from ``scheduler.encode``, ``measured`` from ``scheduler.end_frame``, and
        ``passes``, if the host times its own passes, from ``timer.end_frame``. Call it once per
        frame.
        """
        now_ms, before = self._scheduler.clock.now_ms(), self._watched_ms
        if before is not None and self.log.frames:
            self.log.frames[-1].frame_ms = now_ms - before
        self._watched_ms = now_ms
        self.log.begin(report, report.cpu_ms)
        for frame in measured:
            self.log.add_inference(frame)
        for number, times in passes:
            self.log.add_passes(number, times)
        self.update()

    def update(self) -> None:
        """Passes the current data to all sections; :meth:`watch` calls it."""
        view = self._view()
        for section in self.sections:
            section.watch(view, 1e-3 * view.now_ms)

    def values(self, network: str) -> dict[str, float]:
        """Returns the current slider values of the network by input name, as inputs of a job.

        Raises :class:`InputError` for an unknown network.
        """
        if network not in self._sessions:
            known = ", ".join(self._sessions) or "none"
            raise InputError(f"this panel has no network '{network}'; it has {known}")
        sliders: Any = self.section("sliders")
        found: dict[str, float] = sliders.values(network, self._sessions[network])
        return found

    def section(self, title: str) -> PanelSection:
        """Returns the section with this title; raises :class:`InputError` if there is none."""
        check_titles((title,), self.sections)
        return next(section for section in self.sections if section.title == title)

    def open(self, *titles: str) -> None:
        """Opens the sections with these titles and closes all others, in the next frame."""
        check_titles(titles, self.sections)
        self._arranged, self._arrange = set(titles), True

    def draw(self, title: str = "networks") -> None:
        """Draws the panel as a separate imgui window that is as large as its content.

        Call it between the host's ``imgui.new_frame()`` and ``imgui.render()``.
        """
        imgui = self._imgui
        size, style = imgui.get_io().display_size, imgui.get_style()
        flags = imgui.WindowFlags_.always_auto_resize | imgui.WindowFlags_.no_saved_settings
        first = imgui.Cond_.first_use_ever.value
        imgui.set_next_window_pos(imgui.ImVec2(_MARGIN, _MARGIN), first)
        most = imgui.ImVec2(max(1, size.x - 2 * _MARGIN), max(1, size.y - 2 * _MARGIN))
        imgui.set_next_window_size_constraints(imgui.ImVec2(0, 0), most)
        if imgui.begin(title, None, flags.value)[0]:
            edges = 2 * (_MARGIN + style.window_padding.x) + style.scrollbar_size
            self._draw_columns(size.x - edges, size.y)
        imgui.end()

    def draw_widgets(self) -> None:
        """Draws the panel's sections into the host's current imgui window."""
        room = self._imgui.get_content_region_avail()
        self._draw_columns(room.x, self._imgui.get_io().display_size.y)

    def _draw_columns(self, width: float, height: float) -> None:
        imgui = self._imgui
        layout = layout_for(width, height, imgui.get_font_size())
        fit = imgui.ChildFlags_.auto_resize_y.value
        sides: tuple[tuple[Column, float], ...] = (
            ("left", layout.left_width),
            ("right", layout.right_width),
        )
        for side, column_width in sides[: layout.columns]:
            if side == "right":
                imgui.same_line()
            if imgui.begin_child(side, imgui.ImVec2(column_width, 0), fit):
                self.draw_column(side, layout)
            imgui.end_child()
        self.end_draw()

    def draw_column(self, side: Column, layout: Layout) -> None:
        """Draws the sections of one column into the current window; with one column, all sections.

        A host that arranges the columns itself calls :meth:`end_draw` after the last one.
        """
        imgui, view = self._imgui, self._view()
        now_s, height_em = 1e-3 * view.now_ms, imgui.get_io().display_size.y / imgui.get_font_size()
        for section in self.sections:
            if (section.column != side and layout.columns > 1) or section.is_empty(view):
                continue
            if self._arrange:
                at_start = height_em >= section.opens_from_em
                opened = section.title in self._arranged if self._arranged is not None else at_start
                imgui.set_next_item_open(opened, imgui.Cond_.always.value)
            if not imgui.collapsing_header(section.title):
                self._open.discard(section)
                continue
            if section not in self._open:
                self._open.add(section)
                section.refresh(view, now_s)
            section.draw(view, layout)

    def end_draw(self) -> None:
        """Ends the drawing of a frame: refreshes one open section at most.

        No frame pays for all sections.
        """
        self._arrange = False
        view = self._view()
        now_s = 1e-3 * view.now_ms
        due = [s for s in self.sections if s in self._open and self._due_s.get(s, 0.0) <= now_s]
        for section in due[:1]:
            self._due_s[section] = now_s + _REFRESH_S
            section.refresh(view, now_s)

    def _view(self) -> PanelView:
        scheduler, sessions = self._scheduler, self._sessions
        gpu = next((session.gpu for session in sessions.values()), None)
        return PanelView(sessions, self.log, scheduler.jobs, scheduler.clock.now_ms(), gpu)


def check_titles(
    titles: Iterable[str], sections: Sequence[PanelSection | type[PanelSection]]
) -> None:
    """Raises :class:`InputError` if one of the titles is not the title of a section.

    Examples
    --------
    >>> check_titles(["Operators"], [type("Section", (PanelSection,), {"title": "Operators"})])
    """
    known = [section.title for section in sections]
    for title in titles:
        if title not in known:
            raise InputError(f"there is no panel '{title}': choose from {', '.join(known)}")


def _drawing(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        what = f"a panel is drawn with imgui-bundle ({error})"
        raise InputError(f"{what}: pip install 'cml-engine[game]'") from None
