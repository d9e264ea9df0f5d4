"""The jobs under way, and the tiles that they are for."""

from __future__ import annotations

from cml_engine.tools.panel import drawing, palette
from demo_game.overlay.layout import Layout
from demo_game.overlay.view import FrameView


class TileJobsPanel:
    """The jobs, and a line about tiles."""

    def __init__(self) -> None:
        self._jobs = drawing.JobsPanel()

    def refresh(self, view: FrameView, now_s: float) -> None:
        """Ask the jobs again."""
        self._jobs.refresh(view, now_s)

    def draw(self, view: FrameView, layout: Layout) -> None:
        """The jobs, then the tiles."""
        self._jobs.draw(view, layout)
        telemetry = view.telemetry
        said = f"tiles: {telemetry.tiles_ready} there, {telemetry.tiles_wanted} wanted"
        if not layout.compact:
            said += f", {telemetry.tiles_finished} made, {telemetry.tiles_cancelled} cancelled"
        drawing.text(said, palette.DIM)
