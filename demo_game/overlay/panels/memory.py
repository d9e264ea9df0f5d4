"""GPU memory: who holds how much, and of what device."""

from __future__ import annotations

import numpy as np
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.tools.panel import drawing, palette
from cml_engine.tools.panel.palette import Colour
from demo_game.overlay.layout import Layout
from demo_game.overlay.memory_rows import CATEGORIES, MemoryRows, OwnerRow, limit_lines, memory_rows
from demo_game.overlay.view import FrameView

#: the allocator's statistics are asked for this seldom: they cost
_EVERY_S = 0.5
_TABLE = (
    imgui.TableFlags_.sizing_stretch_prop
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.row_bg
).value


class MemoryPanel:
    """A table by owner and category, the budget, the device."""

    def __init__(self) -> None:
        self._rows: MemoryRows | None = None
        self._limits: list[str] | None = None
        self._due_s = 0.0
        self._history = np.zeros(0, np.float32)

    def refresh(self, view: FrameView, now_s: float) -> None:
        """Ask again, where it is time to."""
        if now_s < self._due_s and self._rows is not None:
            return
        self._due_s = now_s + _EVERY_S
        self._rows = memory_rows(view.memory.stats())
        self._history = np.array(view.telemetry.memory, np.float32)

    def draw(self, view: FrameView, layout: Layout) -> None:
        """Owners, budget, device."""
        found = self._rows
        if found is not None:
            self._budget(found)
            self._table(found, view, layout.compact)
        if not layout.compact and len(self._history):
            top = float(self._history.max()) or 1.0
            size = ImVec2(-1, 2 * imgui.get_text_line_height())
            imgui.push_style_color(imgui.Col_.frame_bg.value, ImVec4(*palette.WELL))
            imgui.plot_lines("##held", self._history, 0, "", 0.0, 1.1 * top, size)
            imgui.pop_style_color()
        self._device(view, layout)

    def _budget(self, found: MemoryRows) -> None:
        if found.filled is None:
            drawing.text(found.held, palette.TEXT)
            return
        imgui.progress_bar(min(1.0, found.filled), ImVec2(-1, 0), f"{found.filled:.0%} of budget")
        drawing.text(found.held, palette.TEXT)

    def _table(self, found: MemoryRows, view: FrameView, compact: bool) -> None:
        categories = () if compact else CATEGORIES
        if not imgui.begin_table("memory", len(categories) + 2, _TABLE):
            return
        imgui.table_setup_column("MiB", 0, 1.9)
        for category in (*categories, "total"):
            weight = 1.2 if category == "weights" else 1.0
            imgui.table_setup_column(_HEADS.get(category, category), 0, weight)
        imgui.table_headers_row()
        for row in found.owners:
            colour = palette.network_colour(row.owner, view.sessions)
            _owner(row, colour, row.cells if not compact else ())
        imgui.end_table()

    def _device(self, view: FrameView, layout: Layout) -> None:
        if self._limits is None:
            self._limits = limit_lines(view.limits)
        imgui.push_text_wrap_pos(0.0)
        drawing.text(view.adapter, palette.TEXT)
        drawing.text(view.driver, palette.DIM)
        if not layout.compact:
            drawing.text("; ".join(self._limits), palette.DIM)
        imgui.pop_text_wrap_pos()


#: so that it fits into a column
_HEADS = {"activations": "activ."}


def _owner(row: OwnerRow, colour: Colour, cells: tuple[str, ...]) -> None:
    imgui.table_next_column()
    drawing.text(row.owner, colour)
    for cell in cells:
        imgui.table_next_column()
        drawing.text(cell, palette.DIM)
    imgui.table_next_column()
    imgui.text(row.total)
