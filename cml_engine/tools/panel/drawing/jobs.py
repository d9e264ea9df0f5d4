"""The section of unfinished jobs."""

from __future__ import annotations

from imgui_bundle import imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView
from cml_engine.tools.panel.slices import JobRow, job_rows

_SHOWN = 8
_TABLE = (
    imgui.TableFlags_.sizing_stretch_prop
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.row_bg
).value
#: the widest texts of the columns that have a fixed width
_SAMPLES = {"state": "running", "left": "888 ms", "deadline": "deadline"}
_STATES = {
    "running": palette.TEXT,
    "paused": palette.WARN,
    "failed": palette.BAD,
}


class JobsPanel(PanelSection):
    """The section with a table of the first unfinished jobs, and the number of the others."""

    title = "jobs"

    def __init__(self) -> None:
        self._rows: list[JobRow] = []
        self._more = 0

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes the table's rows from the jobs of the view."""
        self._rows = job_rows(view.jobs, view.now_ms, _SHOWN)
        self._more = sum(not job.ended for job in view.jobs) - len(self._rows)

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the table of jobs, and the number of jobs that are not in it."""
        columns = ("job", "state", "done", "left") + (() if layout.compact else ("deadline",))
        if not self._rows:
            widgets.text("no jobs", palette.DIM)
        elif imgui.begin_table("jobs", len(columns), _TABLE):
            for column in columns:
                sample = _SAMPLES.get(column)
                if sample is None:
                    weight = 1.3 if column == "job" else 1.0
                    stretched = imgui.TableColumnFlags_.width_stretch.value
                    imgui.table_setup_column(column, stretched, weight)
                else:
                    width = imgui.calc_text_size(sample).x
                    fixed = imgui.TableColumnFlags_.width_fixed.value
                    imgui.table_setup_column(column, fixed, width)
            if not layout.compact:
                imgui.table_headers_row()
            for row in self._rows:
                _row(row, palette.network_colour(row.name, view.sessions), layout.compact)
            imgui.end_table()
        if self._more > 0:
            widgets.text(f"and {self._more} more", palette.DIM)


def _row(row: JobRow, colour: Colour, compact: bool) -> None:
    imgui.table_next_column()
    widgets.text(widgets.shortened(row.name, imgui.get_content_region_avail().x), colour)
    imgui.table_next_column()
    widgets.text(row.state, _STATES.get(row.state, palette.DIM))
    imgui.table_next_column()
    widgets.bar(row.progress, colour)
    imgui.table_next_column()
    widgets.text(row.eta, palette.BAD if row.late else palette.TEXT)
    if not compact:
        imgui.table_next_column()
        widgets.text(row.deadline, palette.BAD if row.late else palette.DIM)
