"""A Dear ImGui panel that shows the networks' work in a game's frames: its data and its drawing."""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names
from cml_engine.panel import palette
from cml_engine.panel.frames import (
    FrameLog,
    FrameSample,
    Key,
    OperatorTime,
    OperatorTimes,
    percentile,
)
from cml_engine.panel.panel import (
    Layout,
    Panel,
    PanelSection,
    PanelView,
    check_titles,
    layout_for,
)
from cml_engine.panel.ranking import RankRow, rows

if TYPE_CHECKING:
    from cml_engine.panel import drawing
else:
    __getattr__, __dir__, _ = lazy_names(__name__, {"cml_engine.panel.drawing": ""})

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
    "drawing",
    "layout_for",
    "palette",
    "percentile",
    "rows",
]
