"""The quality presets of the picture."""

from __future__ import annotations

from dataclasses import dataclass

from cml_engine.demo_game.world.quadtree import Detail
from cml_engine.demo_game.world.tile import PAINTED


@dataclass(frozen=True)
class Quality:
    """A preset of the picture's quality.

    ``mesh_step`` cells are a side of a terrain square (1, 2, 4 or 7: a divisor of half a tile).
    ``slots`` is the number of tiles that fit in memory. Plants are drawn to ``plants_m`` metres
    with ``plant_vertices`` vertices each (12 or 36). ``rich`` shaders blend with the coarser
    level's texels and add grain and highlights. ``samples`` (1 or 4) per pixel smooth the edges.
    """

    name: str
    width: int
    height: int
    mesh_step: int
    slots: int
    detail: Detail
    plants_m: float
    plant_vertices: int
    rich: bool
    samples: int
    #: texels along a side of a tile's colour texture
    texels: int = PAINTED
    #: index in ``pace.EFFORTS`` of the first frames' effort; later it follows their times
    effort: int = 0


SOFTWARE = Quality(
    "software", 960, 540, 4, 224, Detail(0, 5, 1.1, 9_000.0), 350.0, 12, False, 1, effort=4
)
LOW = Quality("low", 1280, 720, 2, 320, Detail(0, 6, 1.3, 14_000.0), 700.0, 36, True, 4)
HIGH = Quality("high", 1920, 1080, 1, 512, Detail(0, 6, 1.8, 24_000.0), 1600.0, 36, True, 4)
PRESETS = {quality.name: quality for quality in (SOFTWARE, LOW, HIGH)}
