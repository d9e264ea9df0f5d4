"""The positions and sizes of the overlay's panels, by the window's size in points."""

from __future__ import annotations

from dataclasses import dataclass

#: from this size on there is room for more than a graph
FULL_SIZE = (1280, 720)
_MARGIN = 6.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Two columns of panels, left and right. All lengths in points."""

    compact: bool
    font_size: float
    margin: float
    left_width: float
    right_width: float
    #: of the left column while the ranking is open
    ranking_width: float
    #: the most that a column may take
    height: float
    plot_height: float
    timeline_height: float
    #: rows of the ranking that are seen at a time
    ranking_rows: int


def layout_for(width: float, height: float) -> Layout:
    """Compact below :data:`FULL_SIZE`: two narrow columns. At first the panels leave four fifths of
    the picture to the game."""
    compact = width < FULL_SIZE[0] or height < FULL_SIZE[1]
    room = max(40.0, height - 2 * _MARGIN)
    if compact:
        left = min(270.0, 0.47 * width)
        right = min(190.0, 0.31 * width)
        return Layout(True, 12.0, _MARGIN, left, right, left, room, 0.12 * height, 34.0, 7)
    wide = min(640.0, 0.44 * width)
    rows = max(7, int((height - 530) / 17))
    return Layout(False, 14.0, 8.0, 420.0, 310.0, wide, room, 96.0, 46.0, min(rows, 20))
