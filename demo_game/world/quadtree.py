"""Selects the tiles to draw and to generate: a quadtree around the camera.

A tile is divided while the camera is nearer than ``split`` of its spans (continuous distance-
dependent level of detail: Strugar, "Continuous Distance-Dependent Level of Detail for Rendering
Heightmaps", 2009). A level is drawn out to ``split`` spans of the next one, and its vertices have
moved onto the next level's surface before they get there, so that levels meet without cracks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from cml_engine.demo_game.world.bounds import box, is_known
from cml_engine.demo_game.world.tile import TileId

#: share of a level's distance at which its vertices begin to move to the next level's surface.
#: Late, because tiles of the level below reach farther than their distance, in this level's shape
MORPH_FROM = 0.85
#: the least ``split`` that :func:`fit_detail` tries before it drops the finest level
_LEAST_SPLIT = 0.5
#: step in metres to which :func:`fit_detail` rounds the eye's position
_STEP_M = 64.0


@dataclass(frozen=True, slots=True)
class Detail:
    """The level of detail: levels ``finest`` to ``coarsest``, and the view distance.

    ``split`` is the distance in spans of a tile within which the tile is divided.
    """

    finest: int = 0
    coarsest: int = 6
    split: float = 1.5
    view_m: float = 20_000.0

    def range_m(self, level: int) -> tuple[float, float]:
        """Returns the distances in metres where a level's vertices begin and end to move.

        They move to the next level's surface.
        """
        if level >= self.coarsest:
            return math.inf, math.inf
        end = self.split * TileId(level + 1, 0, 0).span_m
        return MORPH_FROM * end, end


@dataclass(slots=True)
class Selection:
    """The tiles to draw, and the tiles to generate (``wanted``) with their distances in metres.

    ``coarse`` are the drawn tiles whose children should be drawn, but are not ready yet. ``ahead``
    are tiles that are not needed yet, with the seconds until they will be and their distance then.
    """

    draw: list[TileId] = field(default_factory=list)
    wanted: dict[TileId, float] = field(default_factory=dict)
    coarse: set[TileId] = field(default_factory=set)
    ahead: dict[TileId, tuple[float, float]] = field(default_factory=dict)
    #: the detail that the tiles were selected with
    detail: Detail = field(default_factory=Detail)


def distance(tile: TileId, seed: int, eye: tuple[float, float, float]) -> float:
    """Returns the metres from the eye to the nearest point of the tile's box."""
    x0, y0, z0, x1, y1, z1 = box(tile, seed)
    x, y, z = eye
    dx = max(x0 - x, 0.0, x - x1)
    dy = max(y0 - y, 0.0, y - y1)
    dz = max(z0 - z, 0.0, z - z1)
    return math.sqrt(dx * dx + dy * dy + dz * dz)


def select(
    eye: tuple[float, float, float],
    seed: int,
    detail: Detail,
    ready: Callable[[TileId], bool],
    settled: Callable[[TileId], bool] = lambda tile: True,
) -> Selection:
    """Selects the tiles to draw and to generate around the eye.

    A tile is drawn in place of its four children until all of them are ready, so the picture has
    no holes. It is also drawn until it is ``settled`` itself, so that its children begin with
    the shape that was seen before.
    """

    def add(tile: TileId, selection: Selection) -> None:
        """Adds the tile, which is ready, or its children if near and ready."""
        if tile.level > detail.finest and distance(tile, seed, eye) < detail.split * tile.span_m:
            missing = [child for child in tile.children if not ready(child)]
            for child in missing:
                selection.wanted[child] = distance(child, seed, eye)
            if not missing:
                below = selection if settled(tile) else Selection(wanted=selection.wanted)
                for child in tile.children:
                    add(child, below)
                if below is selection:
                    return
            selection.coarse.add(tile)
        selection.draw.append(tile)

    result = Selection(detail=detail)
    for root in _roots(eye, detail):
        if ready(root):
            add(root, result)
        else:
            result.wanted[root] = distance(root, seed, eye)
    return result


def compute_boxes(eye: tuple[float, float, float], seed: int, detail: Detail) -> Iterator[None]:
    """Computes the boxes of all tiles that a selection around the eye looks at.

    It yields before each piece of work, so that a frame need not do all of it.
    """
    tiles = _roots(eye, detail)
    while tiles:
        tile = tiles.pop()
        if not is_known(tile, seed):
            yield
        if distance(tile, seed, eye) < detail.split * tile.span_m and tile.level > detail.finest:
            tiles += tile.children


def list_ahead(
    selection: Selection,
    moments: Sequence[tuple[float, tuple[float, float, float]]],
    seed: int,
    detail: Detail,
    ready: Callable[[TileId], bool],
) -> dict[TileId, tuple[float, float]]:
    """Returns the tiles that will be needed and are not ready, as in :attr:`Selection.ahead`.

    ``selection`` is the present one. ``moments`` are the eye's next positions, each with the
    seconds until the eye is there, the soonest first.
    """
    ahead: dict[TileId, tuple[float, float]] = {}

    def look(tile: TileId) -> None:
        """Adds the children of a tile that will be divided."""
        if tile.level <= detail.finest:
            return
        near_m = detail.split * tile.span_m
        for seconds, eye in moments:
            if distance(tile, seed, eye) < near_m:
                for child in tile.children:
                    if not ready(child):
                        ahead[child] = seconds, distance(child, seed, eye)
                    look(child)
                return

    for tile in selection.draw:
        if tile not in selection.coarse:
            look(tile)
    for seconds, eye in reversed(moments):
        for root in _roots(eye, detail):
            if not ready(root):
                ahead[root] = seconds, distance(root, seed, eye)
    return {tile: need for tile, need in ahead.items() if tile not in selection.wanted}


def list_needed(eye: tuple[float, float, float], seed: int, detail: Detail) -> set[TileId]:
    """Returns the tiles that are drawn when all tiles are ready, and their ancestors."""
    tiles: set[TileId] = set()

    def ready(tile: TileId) -> bool:
        tiles.add(tile)
        return True

    select(eye, seed, detail, ready)
    return tiles


def fit_detail(
    eye: tuple[float, float, float], seed: int, detail: Detail, max_tiles: int
) -> Detail:
    """Returns the finest detail around the eye that needs about ``max_tiles`` tiles at most.

    Tiles are divided nearer to the eye, then less finely, than ``detail`` says. If even that
    needs more tiles, the coarsest detail is returned. The result depends on the eye's position
    in steps of some metres, so it is rarely recomputed.
    """
    x, y, z = (round(coordinate / _STEP_M) * _STEP_M for coordinate in eye)
    return _fit_detail((x, y, z), seed, detail, max_tiles)


@lru_cache(maxsize=256)
def _fit_detail(
    eye: tuple[float, float, float], seed: int, detail: Detail, max_tiles: int
) -> Detail:
    roots = _roots(eye, detail)
    for finest in range(detail.finest, detail.coarsest + 1):
        detail = replace(detail, finest=finest)
        divided = sorted(_divided(roots, eye, seed, detail))
        while len(roots) + 4 * bisect_left(divided, detail.split) > max_tiles:
            if detail.split <= _LEAST_SPLIT:
                break
            detail = replace(detail, split=0.85 * detail.split)
        else:
            return detail
    return detail  # as coarse as it gets


def _divided(
    roots: list[TileId], eye: tuple[float, float, float], seed: int, detail: Detail
) -> Iterator[float]:
    """Yields, for each divided tile, the least ``split`` that divides it and its ancestors."""
    tiles = [(root, 0.0) for root in roots]
    while tiles:
        tile, above = tiles.pop()
        if tile.level > detail.finest:
            split = max(above, distance(tile, seed, eye) / tile.span_m)
            if split < detail.split:
                yield split
                tiles += [(child, split) for child in tile.children]


def _roots(eye: tuple[float, float, float], detail: Detail) -> list[TileId]:
    span = TileId(detail.coarsest, 0, 0).span_m
    radius_m = detail.view_m

    def around(at: float) -> range:
        return range(math.floor((at - radius_m) / span), math.floor((at + radius_m) / span) + 1)

    tiles = [TileId(detail.coarsest, x, z) for z in around(eye[2]) for x in around(eye[0])]
    return [tile for tile in tiles if _flat_distance(tile, eye) < radius_m]


def _flat_distance(tile: TileId, eye: tuple[float, float, float]) -> float:
    (x, z), span = tile.origin, tile.span_m
    return math.hypot(
        max(x - eye[0], 0.0, eye[0] - x - span), max(z - eye[2], 0.0, eye[2] - z - span)
    )
