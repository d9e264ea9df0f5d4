"""The sections of a panel, drawn with Dear ImGui (imgui-bundle) into the current context."""

from cml_engine.panel.drawing.ranking import RankingPanel
from cml_engine.panel.drawing.sections import (
    FramePanel,
    JobsPanel,
    MemoryPanel,
    SlidersPanel,
    TimelinePanel,
)
from cml_engine.panel.drawing.widgets import (
    bar,
    packed,
    rectangle,
    shortened,
    swatch,
    swatches,
    text,
    wrapped,
)
from cml_engine.panel.panel import PanelSection

__all__ = [
    "FramePanel",
    "JobsPanel",
    "MemoryPanel",
    "RankingPanel",
    "SECTIONS",
    "SlidersPanel",
    "TimelinePanel",
    "bar",
    "packed",
    "rectangle",
    "shortened",
    "swatch",
    "swatches",
    "text",
    "wrapped",
]
#: the sections of every panel, from the top of their columns to the bottom
SECTIONS: tuple[type[PanelSection], ...] = (
    FramePanel,
    RankingPanel,
    TimelinePanel,
    JobsPanel,
    MemoryPanel,
    SlidersPanel,
)
