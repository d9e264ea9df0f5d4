"""The jobs under way."""

from __future__ import annotations

from imgui_bundle import imgui

from demo_game.overlay import palette, theme
from demo_game.overlay.layout import Layout
from demo_game.overlay.slices import JobRow, job_rows
from demo_game.overlay.view import FrameView
from demo_game.reporting.telemetry import Controls

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
    """The first jobs with their progress, and how many more there are."""

    def __init__(self) -> None:
        self._rows: list[JobRow] = []
        self._more = 0

    def refresh(self, view: FrameView, now_s: float) -> None:
        """Ask the jobs again."""
        now_ms = view.scheduler.clock.now_ms()
        self._rows = job_rows(view.jobs, now_ms, _SHOWN)
        self._more = sum(not job.ended for job in view.jobs) - len(self._rows)

    def draw(self, view: FrameView, layout: Layout, controls: Controls) -> None:
        """A table, and the tiles that the jobs are for."""
        telemetry = view.telemetry
        columns = ("job", "state", "done", "left") + (() if layout.compact else ("deadline",))
        if not self._rows:
            theme.text("no jobs", palette.DIM)
        elif imgui.begin_table("jobs", len(columns), _TABLE):
            for column in columns:
                imgui.table_setup_column(column, 0, _WEIGHTS.get(column, 1.0))
            if not layout.compact:
                imgui.table_headers_row()
            for row in self._rows:
                _row(row, layout.compact)
            imgui.end_table()
        if self._more > 0:
            theme.text(f"and {self._more} more", palette.DIM)
        said = f"tiles: {telemetry.tiles_ready} there, {telemetry.tiles_wanted} wanted"
        if not layout.compact:
            said += f", {telemetry.tiles_finished} made, {telemetry.tiles_cancelled} cancelled"
        theme.text(said, palette.DIM)


def _row(row: JobRow, compact: bool) -> None:
    colour = palette.network_colour(row.name)
    imgui.table_next_column()
    theme.text(row.name, colour)
    imgui.table_next_column()
    theme.text(row.state, _STATES.get(row.state, palette.DIM))
    imgui.table_next_column()
    theme.bar(row.progress, colour)
    imgui.table_next_column()
    theme.text(row.eta, palette.BAD if row.late else palette.TEXT)
    if not compact:
        imgui.table_next_column()
        theme.text(row.deadline, palette.BAD if row.late else palette.DIM)
