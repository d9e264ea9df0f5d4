"""The list of unfinished jobs."""

from __future__ import annotations

from imgui_bundle import imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import words
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.slices import JobRow, job_rows
from cml_engine.tools.panel.view import Room, ShownView

_SHOWN = 8
_TABLE = (
    imgui.TableFlags_.sizing_stretch_prop
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.row_bg
).value
_WEIGHTS = {"job": 1.45, "done": 1.4}
_STATES = {
    "running": palette.TEXT,
    "paused": palette.WARN,
    "failed": palette.BAD,
}


class JobsPanel:
    """A table of the first jobs with their progress, and the number of the others."""

    def __init__(self) -> None:
        self._rows: list[JobRow] = []
        self._more = 0

    def refresh(self, view: ShownView, now_s: float) -> None:
        """Updates the rows from the jobs."""
        self._rows = job_rows(view.jobs, view.now_ms, _SHOWN)
        self._more = sum(not job.ended for job in view.jobs) - len(self._rows)

    def draw(self, view: ShownView, room: Room) -> None:
        """Draws the table."""
        columns = ("job", "state", "done", "left") + (() if room.compact else ("deadline",))
        if not self._rows:
            words.text("no jobs", palette.DIM)
        elif imgui.begin_table("jobs", len(columns), _TABLE):
            for column in columns:
                imgui.table_setup_column(column, 0, _WEIGHTS.get(column, 1.0))
            if not room.compact:
                imgui.table_headers_row()
            for row in self._rows:
                _row(row, palette.network_colour(row.name, view.sessions), room.compact)
            imgui.end_table()
        if self._more > 0:
            words.text(f"and {self._more} more", palette.DIM)


def _row(row: JobRow, colour: Colour, compact: bool) -> None:
    imgui.table_next_column()
    words.text(row.name, colour)
    imgui.table_next_column()
    words.text(row.state, _STATES.get(row.state, palette.DIM))
    imgui.table_next_column()
    words.bar(row.progress, colour)
    imgui.table_next_column()
    words.text(row.eta, palette.BAD if row.late else palette.TEXT)
    if not compact:
        imgui.table_next_column()
        words.text(row.deadline, palette.BAD if row.late else palette.DIM)
