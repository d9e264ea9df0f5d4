"""The overlay that shows what the game's frames cost and why (imgui and implot)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demo_game.overlay.view import FrameView

if TYPE_CHECKING:
    from demo_game.overlay.overlay import Overlay

__all__ = ["Overlay", "FrameView"]


def __getattr__(name: str) -> Any:
    """Only the drawing needs imgui: it is imported with :class:`Overlay`."""
    if name == "Overlay":
        from demo_game.overlay.overlay import Overlay

        return Overlay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
