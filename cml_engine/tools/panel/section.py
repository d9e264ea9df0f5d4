"""The base class of a panel's sections, the data that they show, and their layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cml_engine.tools.panel.operators import Key, OperatorTime

if TYPE_CHECKING:
    from cml_engine import Gpu, Job, Session
    from cml_engine.tools.panel.frames import FrameLog

Column = Literal["left", "right"]
#: window sizes in ems (heights of the font): below them there is one column; below them less
#: important widgets are left out
_TWO_COLUMNS_EM = 30.0
_FULL_EM = (84.0, 48.0)


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
    wide, tall = width / em, height / em
    compact = wide < _FULL_EM[0] or tall < _FULL_EM[1]
    two = wide >= _TWO_COLUMNS_EM
    left, right = min(max(0.32 * wide, 20.5), 29.0), min(max(0.42 * wide, 25.5), 44.0)
    # both columns and the space between them are never wider than the window
    squeeze = min(1.0, (wide - 3.0) / (left + right if two else left))
    return Layout(
        compact=compact,
        columns=2 if two else 1,
        left_width=math.floor(max(1.0, squeeze * left * em)),
        right_width=math.floor(max(1.0, squeeze * right * em)),
        graph_height=(3.6 if compact else 6.5) * em,
        timeline_height=(2.0 if compact else 3.2) * em,
        ranking_rows=max(4, min(16, int(0.24 * tall) - 2)),
    )


class PanelSection:
    """The base class of a section: a title that opens and closes it, and widgets below the title.

    A subclass states ``title`` and draws in :meth:`draw`. It is shown by its place in
    :data:`cml_engine.tools.panel.drawing.SECTIONS`, or in ``Panel(sections=)`` of a game.

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

    def is_empty(self, view: PanelView) -> bool:
        """Returns True if the section has nothing to show, so that even its header is left out."""
        return False

    def watch(self, view: PanelView, now_s: float) -> None:
        """Collects data in every frame, even while the section is closed; by default nothing."""

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes data that changes slowly, four times a second while the section is open."""

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the widgets below the title, in every frame while open."""
        raise NotImplementedError
