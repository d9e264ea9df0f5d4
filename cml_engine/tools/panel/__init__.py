"""A Dear ImGui panel that shows the networks' work in a game's frames: its data and its drawing."""

from cml_engine.tools.panel.operators import Key, OperatorTime, OperatorTimes
from cml_engine.tools.panel.panel import Panel
from cml_engine.tools.panel.ranking import RankRow, rows

__all__ = ["Key", "OperatorTime", "OperatorTimes", "Panel", "RankRow", "rows"]
