"""The section of GPU memory by owner and category, and of the device."""

from __future__ import annotations

from collections import deque

import numpy as np
from imgui_bundle import ImVec2, ImVec4, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.frames import HISTORY
from cml_engine.tools.panel.memory import CATEGORIES, MemoryRows, limit_lines, memory_rows
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView

#: seconds between two collections of the allocator's statistics, which take time
_EVERY_S = 0.5
_TABLE = (
    imgui.TableFlags_.sizing_stretch_prop
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.row_bg
).value


class MemoryPanel(PanelSection):
    """The section of GPU memory: a table by owner, the budget, a graph of frames, the device."""

    title = "memory"
    column = "right"

    def __init__(self) -> None:
        self._rows: MemoryRows | None = None
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
        """Computes the table's rows from the memory statistics, if the last ones are old."""
        if view.gpu is not None and (self._rows is None or now_s >= self._due_s):
            self._due_s = now_s + _EVERY_S
            self._rows = memory_rows(view.gpu.memory.stats())

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the budget, the owners, the graph and the device."""
        if self._rows is not None:
            self._owners(self._rows, view, layout.compact)
        if not layout.compact and self._history:
            held = np.array(self._history, np.float32)
            size = ImVec2(-1, 2 * imgui.get_text_line_height())
            imgui.push_style_color(imgui.Col_.frame_bg.value, ImVec4(*palette.WELL))
            imgui.plot_lines("##held", held, 0, "", 0.0, 1.1 * float(held.max()) or 1.0, size)
            imgui.pop_style_color()
        if view.gpu is None:
            return
        imgui.push_text_wrap_pos(0.0)
        widgets.text(str(view.gpu.info.get("device")), palette.TEXT)
        if not layout.compact:
            widgets.text(str(view.gpu.info.get("description")), palette.DIM)
            widgets.text("; ".join(limit_lines(view.gpu.device.limits)), palette.DIM)
        imgui.pop_text_wrap_pos()

    def _owners(self, found: MemoryRows, view: PanelView, compact: bool) -> None:
        if found.filled is not None:
            share = min(1.0, found.filled)
            imgui.progress_bar(share, ImVec2(-1, 0), f"{found.filled:.0%} of budget")
        widgets.text(found.held, palette.TEXT)
        categories = () if compact else CATEGORIES
        if not imgui.begin_table("memory", len(categories) + 2, _TABLE):
            return
        imgui.table_setup_column("MiB", 0, 1.9)
        for category in (*categories, "total"):
            imgui.table_setup_column(category, 0, 1.5 if len(category) > 6 else 1.0)
        imgui.table_headers_row()
        for row in found.owners:
            imgui.table_next_column()
            widgets.text(row.owner, palette.network_colour(row.owner, view.sessions))
            for cell in row.cells if not compact else ():
                imgui.table_next_column()
                widgets.text(cell, palette.DIM)
            imgui.table_next_column()
            imgui.text(row.total)
        imgui.end_table()
