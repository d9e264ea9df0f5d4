"""Where tiles lie: which part of the whole each reads, and which part of it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from cml_engine.errors import InputError
from cml_engine.ranges import EXTENT, OVERLAP


@dataclass(frozen=True, slots=True)
class Span:
    """Along one axis: ``[first, end)`` is read, ``[kept_first, kept_end)`` of the whole is kept of
    the result."""

    first: int
    end: int
    kept_first: int
    kept_end: int


def spans(whole: int, tile: int, overlap: int, align: int = 1) -> list[Span]:
    """Tiles of one size that cover an axis. The first begins where the whole does and the last
    ends there, so that borders are what they are without tiles; of every other end ``overlap`` is
    thrown away. ``align``: tiles begin at multiples of it."""
    EXTENT.check(tile, "tile")
    OVERLAP.check(overlap, "overlap")
    EXTENT.check(align, "align")
    for what, value in (("the picture's extent", whole), ("tile", tile), ("overlap", overlap)):
        if value % align:
            raise InputError(f"{what} {value}: wanted a multiple of align={align}")
    if whole <= tile:
        return [Span(0, whole, 0, whole)]
    step = tile - 2 * overlap
    if step < 1:
        raise InputError(
            f"tiles of {tile} with an overlap of {overlap} at each end keep nothing: the overlap "
            f"must be less than {tile // 2}"
        )
    found = []
    kept = 0
    while kept < whole:
        first = min(max(0, kept - overlap), whole - tile)
        end = first + tile
        kept_end = whole if end == whole else end - overlap
        found.append(Span(first, end, kept, kept_end))
        kept = kept_end
    return found
