"""Tests of the richer presets: the land under the sea, and grass near the camera."""

from dataclasses import replace

import numpy as np
import pytest

from demo_game.render.mesh import GRASS_M
from demo_game.render.quality import SOFTWARE
from demo_game.world.tile import FINE, PAINTED, TileId
from tests.fixtures.landscape import bare
from tests.gpu.demo.test_demo_render import Screen, whole

WIDTH, HEIGHT = 160, 90
RICH = replace(SOFTWARE, width=WIDTH, height=HEIGHT, slots=8, mesh_step=1, rich=True)
TILE = TileId(0, 0, 0)


def coast(tile, seed):
    """Returns the tensors of a slope that falls to the south: red land, green under water."""
    row = np.arange(FINE) - 4.0
    heights = np.repeat((28 - row)[:, None], FINE, 1)
    under = np.arange(PAINTED)[:, None, None] / 2 - 4.25 > 28
    texels = np.where(under, (0, 255, 0, 255), (255, 0, 0, 255))
    return bare(heights, np.repeat(texels, PAINTED, 1))


def meadow(tile, seed):
    """Returns the tensors of a green plain whose western half is rock."""
    west = np.arange(PAINTED)[None, :, None] < PAINTED // 2
    texels = np.where(west, (120, 120, 120, 255), (60, 140, 30, 255))
    return bare(np.full((FINE, FINE), 5.0), np.repeat(texels, PAINTED, 0))


@pytest.fixture(scope="module")
def screen(gpu):
    shown = Screen(gpu, RICH)
    for late in map(shown.renderer._pipelines._made.get, ("mirrored", "grass")):
        assert late is not None
        late.result()
    yield shown
    shown.renderer.close()


def pictures(screen, maker, eye, pipeline):
    """Returns two pictures of a tile: a complete one, and one without the draw of ``pipeline``."""
    land = screen.land(maker, TILE)
    slot = land.slots[TILE]
    camera = screen.renderer.camera(eye, 0.0, -0.3)
    visible = [whole(TILE, slot)]
    complete = screen.picture(camera, visible)
    pipelines = screen.renderer._pipelines._made
    made = pipelines.pop(pipeline)
    try:
        return complete, screen.picture(camera, visible)
    finally:
        pipelines[pipeline] = made
        screen.renderer.tiles.release(slot)


def test_sea_reflects_land_above_water_only(screen):
    complete, without = pictures(screen, coast, (112.0, 6.0, 210.0), "mirrored")
    redder = (complete - without)[..., 0]
    assert (redder > 8).mean() > 0.02
    assert redder.min() > -8, "the dark seabed"


def test_grass_grows_near_the_eye_where_the_land_is_green(screen):
    complete, without = pictures(screen, meadow, (111.0, 7.0, 150.0), "grass")
    west, east = np.split(np.abs(complete - without).max(2)[HEIGHT // 2 :] > 8, 2, axis=1)
    assert east.mean() > 0.3 > 5 * west[:, : WIDTH // 4].mean()
    complete, without = pictures(screen, meadow, (112.0, 7.0 + 2 * GRASS_M, 150.0), "grass")
    assert (complete == without).all(), "from further away nothing but its colour"
