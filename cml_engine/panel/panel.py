"""The panel and its sections: drawn with the host's imgui, which is imported on first use."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, cast

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_callable, check_instance, check_instances, shortened
from cml_engine.ir.graph import SliderValue
from cml_engine.panel.frames import FrameLog, Key, OperatorTime

if TYPE_CHECKING:
    from cml_engine import FrameReport, FrameScheduler, Gpu, Job, Session

Column = Literal["left", "right"]
#: called with the names of a network and of its slider, and the slider's new value
OnChange = Callable[[str, str, SliderValue], None]
#: window sizes in ems (heights of the font): below them there is one column; below them less
#: important widgets are left out
_TWO_COLUMNS_EM = 30.0
_FULL_EM = (84.0, 48.0)

#: the frames of the mean CPU time of the panel
_CPU_FRAMES = 60
#: points between the window and the edges of the screen
_MARGIN = 6.0


@dataclass(frozen=True)
class PanelView:
    """The data that the sections show in a frame; ``sessions`` are by the names of their jobs.

    Examples
    --------
    >>> sessions = {"net": network}
    >>> view = PanelView(sessions, FrameLog(16.7, sessions), scheduler.jobs, 0.0, gpu)
    >>> len(view.operators)
    1
    """

    sessions: Mapping[str, Session]
    log: FrameLog
    jobs: Sequence[Job]
    now_ms: float
    #: the device of the sessions; None without a session
    gpu: Gpu | None
    #: the mean CPU ms that the panel takes in a frame
    panel_cpu_ms: float = 0.0

    @property
    def operators(self) -> Mapping[Key, OperatorTime]:
        """The accumulated cost of every operator, by network name and step number."""
        return self.log.operators


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a panel's columns and widgets in the available space, in points.

    With ``compact`` less important widgets are left out. With one column, all sections are in
    the left one.

    Examples
    --------
    >>> layout: Layout = layout_for(1280, 720, em=16)
    >>> layout.ranking_rows >= 4
    True
    """

    compact: bool
    columns: int
    left_width: float
    right_width: float
    graph_height: float
    timeline_height: float
    ranking_rows: int


def layout_for(width: float, height: float, em: float) -> Layout:
    """Returns the layout for a window of this size and a font of height ``em``, all in points.

    Examples
    --------
    >>> layout_for(640, 360, em=13).columns
    2
    """
    width_em, height_em = width / em, height / em
    compact = width_em < _FULL_EM[0] or height_em < _FULL_EM[1]
    has_two = width_em >= _TWO_COLUMNS_EM
    left_em, right_em = min(max(0.32 * width_em, 20.5), 29.0), min(max(0.42 * width_em, 25.5), 44.0)
    # both columns and the space between them are never wider than the window
    squeeze = min(1.0, (width_em - 3.0) / (left_em + right_em if has_two else left_em))
    return Layout(
        compact=compact,
        columns=2 if has_two else 1,
        left_width=math.floor(max(1.0, squeeze * left_em * em)),
        right_width=math.floor(max(1.0, squeeze * right_em * em)),
        graph_height=(3.6 if compact else 6.5) * em,
        timeline_height=(2.0 if compact else 3.2) * em,
        ranking_rows=max(4, min(16, int(0.24 * height_em) - 2)),
    )


class PanelSection:
    """The base class of a section: a title that opens and closes it, and widgets below the title.

    A subclass states ``title`` and draws in :meth:`draw`. It is shown by its place in
    :data:`cml_engine.panel.drawing.SECTIONS`, or in ``Panel(sections=)`` of a game.

    Examples
    --------
    >>> class Score(PanelSection):
    ...     title = "Score"
    ...     def draw(self, view, layout):
    ...         imgui.text(f"{game.score} points")
    """

    #: the words of the header, by which :meth:`Panel.open` and ``--panels`` know the section
    title = ""
    column: Column = "left"
    #: the height of the window, in ems, from which the section is open at start
    opens_from_em = math.inf
    #: seconds between two calls of :meth:`refresh`
    refresh_s = 0.25

    def is_empty(self, view: PanelView) -> bool:
        """Returns True if the section has nothing to show, so that even its header is left out."""
        return False

    def watch(self, view: PanelView, now_s: float) -> None:
        """Collects data in every frame, even while the section is closed; by default nothing."""

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes data that changes slowly, every ``refresh_s`` seconds while it is open.

        No frame refreshes two sections.
        """

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the widgets below the title, in every frame while open."""
        raise NotImplementedError


class _Sliders(Protocol):
    """The section of sliders, as the panel uses it."""

    on_change: OnChange | None

    def values(self, network: str, session: Session) -> dict[str, SliderValue]: ...


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
    on_change : called with the network, the slider's name and its value when the user moves a
        slider in the panel, or resets it.
    log : costs that the host collects itself; then it calls :meth:`update` instead of
        :meth:`watch`.
    """

    def __init__(
        self,
        scheduler: FrameScheduler,
        sessions: Mapping[str, Session],
        *,
        sections: Iterable[PanelSection] = (),
        on_change: OnChange | None = None,
        log: FrameLog | None = None,
    ) -> None:
        if not hasattr(scheduler, "frame_ms"):
            raise InputError(
                f"scheduler: wanted a FrameScheduler, got {shortened(repr(scheduler))}"
            )
        if on_change is not None:
            check_callable(on_change, "on_change")
        if log is not None:
            check_instance(FrameLog, log, "log")
        sections = check_instances(PanelSection, sections, "sections")
        self._imgui = _drawing("imgui_bundle").imgui
        drawing = _drawing("cml_engine.panel.drawing")
        self._scheduler, self._sessions = scheduler, sessions
        self.log = log or FrameLog(scheduler.frame_ms, sessions)
        self.sections: tuple[PanelSection, ...] = (
            *(section() for section in drawing.SECTIONS),
            *sections,
        )
        self._sliders = cast(_Sliders, self.section("sliders"))
        self._sliders.on_change = on_change
        self._watched_ms: float | None = None
        #: the sections to open or to close in the next frame; None: those that are open at start
        self._arranged: set[str] | None = None
        self._arrange = True
        self._open: set[PanelSection] = set()
        self._cpu_ms: deque[float] = deque(maxlen=_CPU_FRAMES)
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
        if not hasattr(report, "cpu_ms"):
            raise InputError(
                "report: wanted the FrameReport of scheduler.encode(), and then the list of "
                f"end_frame(), got {shortened(repr(report))}"
            )
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

    def values(self, network: str) -> dict[str, SliderValue]:
        """Returns the current slider values of the network by input name, as inputs of a job.

        Raises :class:`InputError` for an unknown network.
        """
        if network not in self._sessions:
            networks = ", ".join(self._sessions) or "none"
            raise InputError(f"this panel has no network '{network}'; it has {networks}")
        return self._sliders.values(network, self._sessions[network])

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
        start, imgui = time.perf_counter(), self._imgui
        self._check_context()
        size, style = imgui.get_io().display_size, imgui.get_style()
        flags = imgui.WindowFlags_.always_auto_resize | imgui.WindowFlags_.no_saved_settings
        first = imgui.Cond_.first_use_ever.value
        imgui.set_next_window_pos(imgui.ImVec2(_MARGIN, _MARGIN), first)
        largest = imgui.ImVec2(max(1, size.x - 2 * _MARGIN), max(1, size.y - 2 * _MARGIN))
        imgui.set_next_window_size_constraints(imgui.ImVec2(0, 0), largest)
        if imgui.begin(title, None, flags.value)[0]:
            edges = 2 * (_MARGIN + style.window_padding.x) + style.scrollbar_size
            self._draw_columns(size.x - edges, size.y)
        imgui.end()
        self.add_cpu_ms(1e3 * (time.perf_counter() - start))

    def draw_widgets(self) -> None:
        """Draws the panel's sections into the host's current imgui window."""
        self._check_context()
        start, available = time.perf_counter(), self._imgui.get_content_region_avail()
        self._draw_columns(available.x, self._imgui.get_io().display_size.y)
        self.add_cpu_ms(1e3 * (time.perf_counter() - start))

    def _check_context(self) -> None:
        """Raises :class:`InputError` if the host has no context of Dear ImGui."""
        if self._imgui.get_current_context() is None:
            raise InputError(
                "there is no context of Dear ImGui to draw into: imgui.create_context(), or wgpu's "
                "ImguiRenderer(device, canvas), makes one; then draw between imgui.new_frame() and "
                "imgui.render()"
            )

    def add_cpu_ms(self, ms: float) -> None:
        """Adds the CPU milliseconds that the panel took in a frame, for the line that shows them.

        :meth:`draw` and :meth:`draw_widgets` call it. A host that draws the columns itself does.
        """
        self._cpu_ms.append(ms)

    def _draw_columns(self, width: float, height: float) -> None:
        imgui = self._imgui
        layout = layout_for(width, height, imgui.get_font_size())
        fit = imgui.ChildFlags_.auto_resize_y.value
        columns: tuple[tuple[Column, float], ...] = (
            ("left", layout.left_width),
            ("right", layout.right_width),
        )
        for side, column_width in columns[: layout.columns]:
            if side == "right":
                imgui.same_line()
            if imgui.begin_child(side, imgui.ImVec2(column_width, 0), fit):
                self.draw_column(side, layout)
            imgui.end_child()
        self.end_draw()
        self.refresh()

    def draw_column(self, side: Column, layout: Layout) -> None:
        """Draws the sections of one column into the current window; with one column, all sections.

        A host that arranges the columns itself calls :meth:`end_draw` after the last one, and
        :meth:`refresh` in this or another frame.
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
        """Ends the drawing of a frame."""
        self._arrange = False

    def refresh(self) -> None:
        """Refreshes the open section that has waited longest, if one is due.

        No frame pays for all sections. A host that does not draw the panel in every frame calls it
        in a frame in which it does not.
        """
        view = self._view()
        now_s = 1e-3 * view.now_ms
        section = min(self._open, key=lambda s: self._due_s.get(s, 0.0), default=None)
        if section is not None and self._due_s.get(section, 0.0) <= now_s:
            self._due_s[section] = now_s + section.refresh_s
            section.refresh(view, now_s)

    def _view(self) -> PanelView:
        scheduler, sessions = self._scheduler, self._sessions
        gpu = next((session.gpu for session in sessions.values()), None)
        cpu_ms = sum(self._cpu_ms) / len(self._cpu_ms) if self._cpu_ms else 0.0
        return PanelView(sessions, self.log, scheduler.jobs, scheduler.clock.now_ms(), gpu, cpu_ms)


def check_titles(
    titles: Iterable[str], sections: Sequence[PanelSection | type[PanelSection]]
) -> None:
    """Raises :class:`InputError` if one of the titles is not the title of a section.

    Examples
    --------
    >>> check_titles(["Operators"], [type("Section", (PanelSection,), {"title": "Operators"})])
    """
    all_titles = [section.title for section in sections]
    for title in titles:
        if title not in all_titles:
            raise InputError(f"there is no panel '{title}': choose from {', '.join(all_titles)}")


def _drawing(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        problem = f"a panel is drawn with imgui-bundle ({error})"
        raise InputError(f'{problem}: pip install "cml-engine[game]"') from None
