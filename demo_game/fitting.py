"""Fits the picture and the number of tiles to the machine, by times measured in the first seconds.

A machine that keeps up has its preset. On a slower one the picture becomes smaller until its frames
have time for the networks. Then the world gets as many tiles as the networks finish in the time
that is left, within :data:`FINISHED_S`: first it ends nearer, then its tiles become coarser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cml_engine.demo_game.render.camera import Point
from cml_engine.demo_game.render.pace import EFFORTS
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.world.quadtree import Detail, fit_detail, list_needed

#: seconds of flight in which the networks should finish all tiles in view
FINISHED_S = 20.0
#: shares of a frame that a picture takes at most: usually, and while tiles are waited for
PICTURE_SHARE, BEHIND_SHARE = 0.7, 0.45
#: share of a frame above which a picture at its first effort is made cheaper: more than
#: ``BEHIND_SHARE``, so that it is the machine that is slow, and not what else runs on it
_MOST_SHARE = 0.55
#: share of the free time of frames that the networks are expected to use, and the tiles that come
#: into view in :data:`FINISHED_S` of flight, as a share of those of one view
_USED, _COMING = 0.7, 0.5
#: sides of smaller pictures and shorter views, as shares of the preset's
_SHARES = (1.0, 2 / 3, 1 / 2, 1 / 3)
#: numbers of tiles are multiples of this, so that equal machines have equal worlds
_STEP_TILES = 16

#: returns the milliseconds of a picture with this share of the target's sides, at the effort with
#: this index in ``EFFORTS``
MeasurePicture = Callable[[float, int], float]


@dataclass
class MachineFit:
    """A quality and a detail that follow the measured times of one machine.

    ``least_ms`` are the milliseconds that networks get in any frame. With ``keeps_size`` only the
    effort of the picture is chosen; with ``keeps_tiles`` the world's detail stays. Several games
    can share a fit: the first one measures.
    """

    quality: Quality
    detail: Detail
    frame_ms: float
    least_ms: float
    keeps_size: bool = False
    keeps_tiles: bool = False
    #: the most tiles of a view; None: as many as there are slots
    max_tiles: int | None = None
    #: the measured milliseconds of the chosen picture, and of all networks of a tile
    picture_ms: float | None = None
    tile_ms: float | None = None
    #: (share of the target's sides, effort, ms) of each measured picture
    measured: list[tuple[float, int, float]] = field(default_factory=list)

    def fit_picture(self, measure: MeasurePicture) -> None:
        """Chooses the largest picture that leaves time for the networks, at a first effort.

        The first picture is the preset's. One that is too slow at the first effort is kept if its
        cheapest effort leaves the time that networks need while tiles are waited for. If no picture
        is fast enough, the fastest is chosen.
        """
        first, cheapest = self.quality.effort, len(EFFORTS) - 1
        most_shares = {first: _MOST_SHARE, cheapest: BEHIND_SHARE}
        for share in _SHARES[:1] if self.keeps_size else _SHARES:
            for effort, most_share in most_shares.items():
                ms = measure(share, effort)
                self.measured.append((share, effort, ms))
                if ms <= most_share * self.frame_ms:
                    break
            else:
                continue
            break
        share, effort, self.picture_ms = min(self.measured, key=lambda picture: picture[2])
        first_ms = next(ms for measured, _, ms in self.measured if measured == share)
        if first_ms <= PICTURE_SHARE * self.frame_ms:  # the effort falls while tiles are waited for
            effort = first
        width, height = (round(share * s) for s in (self.quality.width, self.quality.height))
        self.quality = replace(self.quality, width=width, height=height, effort=effort)

    def fit_tiles(self, cost_ms: Mapping[int, float], eye: Point, seed: int) -> None:
        """Chooses the number of tiles and the view that the networks finish in time.

        ``cost_ms`` are the milliseconds of all networks of a tile, by its level.
        """
        needed = list_needed(eye, seed, self.detail)
        self.tile_ms = tile_ms = sum(cost_ms[tile.level] for tile in needed) / len(needed)
        picture_ms = self.picture_ms or 0.0
        interval_ms = max(self.frame_ms, picture_ms + self.least_ms)
        used_ms = max(self.least_ms, _USED * (interval_ms - picture_ms))
        finished = 1e3 * FINISHED_S * used_ms / interval_ms / tile_ms
        tiles = int(finished / (1 + _COMING))
        if tiles >= len(needed):
            return
        self.max_tiles = max(1, tiles // _STEP_TILES) * _STEP_TILES
        views = [replace(self.detail, view_m=share * self.detail.view_m) for share in _SHARES]
        fitted = [fit_detail(eye, seed, view, self.max_tiles).finest for view in views]
        self.detail = views[fitted.index(min(fitted))]

    @property
    def is_done(self) -> bool:
        """True once the picture's effort and the number of tiles are chosen."""
        return self.picture_ms is not None and (self.keeps_tiles or self.tile_ms is not None)

    def describe(self) -> str:
        """Returns a sentence with what was measured and chosen; "" before anything was."""
        if not self.measured:
            return ""
        _, preset_effort, ms = self.measured[0]
        times = f"a picture takes {ms:.1f} of {self.frame_ms:.1f} ms"
        if self.tile_ms is not None:
            times += f", a tile's networks {self.tile_ms:.0f} ms"
        quality, chosen = self.quality, []
        smallest = min(share for share, _, _ in self.measured)
        if smallest < 1.0 or quality.effort != preset_effort:
            scale = EFFORTS[quality.effort].scale
            chosen.append(
                f"a picture of {quality.width}x{quality.height}, drawn at "
                f"{round(scale * quality.width)}x{round(scale * quality.height)} at first"
            )
        if self.max_tiles is not None:
            view_km = self.detail.view_m / 1e3
            chosen.append(f"at most {self.max_tiles} tiles, {view_km:g} km of view")
        if not chosen:
            return f"fits this machine: {times}"
        return (
            f"fitted to this machine, where {times}: {' and '.join(chosen)}; --quality "
            f"{quality.name} keeps the preset"
        )
