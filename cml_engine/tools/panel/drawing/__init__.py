"""The widgets of Dear ImGui (imgui-bundle), drawn into the current context.

They are imported on first use, because nothing else in the engine needs imgui.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cml_engine.tools.panel.drawing.jobs import JobsPanel
    from cml_engine.tools.panel.drawing.ranking import RankingPanel
    from cml_engine.tools.panel.drawing.sliders import SlidersPanel
    from cml_engine.tools.panel.drawing.timeline import TimelinePanel
    from cml_engine.tools.panel.drawing.words import bar, packed, rectangle, swatch, text

__all__ = [
    "JobsPanel",
    "RankingPanel",
    "SlidersPanel",
    "TimelinePanel",
    "bar",
    "packed",
    "rectangle",
    "swatch",
    "text",
]
_ROOMS = {
    "JobsPanel": "jobs",
    "RankingPanel": "ranking",
    "SlidersPanel": "sliders",
    "TimelinePanel": "timeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS.get(name, 'words')}"), name)
