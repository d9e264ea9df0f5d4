"""A Dear ImGui panel that shows the networks' work in a game's frames: its data and its drawing."""

from cml_engine.tools.panel.frames import FrameLog, FrameSample, percentile
from cml_engine.tools.panel.operators import Key, OperatorTime, OperatorTimes
from cml_engine.tools.panel.panel import Panel, check_titles
from cml_engine.tools.panel.ranking import RankRow, rows
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView, layout_for

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
