"""A Dear ImGui panel that shows the networks' work in a game's frames: its data and its drawing."""

from cml_engine.tools.panel.frames import (
    FrameLog,
    FrameSample,
    Key,
    OperatorTime,
    OperatorTimes,
    percentile,
)
from cml_engine.tools.panel.panel import (
    Layout,
    Panel,
    PanelSection,
    PanelView,
    check_titles,
    layout_for,
)
from cml_engine.tools.panel.ranking import RankRow, rows

__all__ = [
    "FrameLog",
    "FrameSample",
    "Key",
    "Layout",
    "OperatorTime",
    "OperatorTimes",
    "Panel",
    "PanelSection",
    "PanelView",
    "RankRow",
    "check_titles",
    "layout_for",
    "percentile",
    "rows",
]
