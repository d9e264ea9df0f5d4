"""Tests of the demo's renderer on tiles made in NumPy (``tests/fixtures/landscape.py``)."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from cml_engine.demo_game.render.camera import Camera
from cml_engine.demo_game.render.drawn import DrawnTiles
from cml_engine.demo_game.render.mesh import GRASS_M
from cml_engine.demo_game.render.pace import EFFORTS
from cml_engine.demo_game.render.quality import SOFTWARE
from cml_engine.demo_game.render.renderer import EDGE_STEPS, NEIGHBOURS, Renderer, VisibleTile
from cml_engine.demo_game.world.noise import Cells, height
from cml_engine.demo_game.world.quadtree import Detail, Selection
from cml_engine.demo_game.world.tile import CELLS, FINE, PAINTED, TileId
from tests.fixtures.landscape import Landscape, bare, make
from tests.fixtures.memory import held_bytes
from tests.fixtures.texels import render_target, submitted, texels_of

pytestmark = pytest.mark.gpu

SEED = 7
WIDTH, HEIGHT = 192, 108
SMALL = replace(SOFTWARE, width=WIDTH, height=HEIGHT, slots=160)
SRGB = "rgba8unorm-srgb"
GOLDEN = Path(__file__).with_name("coast.png")
EYE = (-11520.0, 1186.0, -5886.0)
#: a few tiles of several levels
COARSE = Detail(finest=2, coarsest=5, split=1.1, view_m=6000.0)


class Screen:
    """A renderer that draws into a texture."""

    def __init__(self, gpu, quality=SMALL):
        self.gpu, self.renderer = gpu, Renderer(gpu, SRGB, quality)
        self.target, self.view = render_target(gpu.device, quality.width, quality.height, SRGB)

    def picture(self, camera, visible, time_s=0.0):
        """Draws the visible tiles and returns the picture as integers of shape (height, width, 3).

        Sets ``stats`` to the renderer's statistics.
        """
        with submitted(self.gpu) as encoder:
            self.stats = self.renderer.draw(encoder, self.view, camera, visible, time_s)
        return texels_of(self.gpu.device, self.target)[..., :3].astype(int)

    def land(self, maker, *tiles):
        """Returns a landscape of the maker's tiles, with some of them uploaded."""
        land = Landscape(self.gpu, self.renderer, SEED, maker)
        land.add(tiles)
        return land


@pytest.fixture
def screen(gpu):
    made = Screen(gpu)
    yield made
    made.renderer.close()


def coast(screen):
    """Uploads the tiles of a view of mountains, forest and sea; returns the camera and visible
    tiles."""
    land = Landscape(screen.gpu, screen.renderer, SEED)
    camera = screen.renderer.camera(EYE, 2.15, -0.13)
    return camera, land.visible(land.complete(EYE, COARSE), COARSE, camera)


def red(tile, seed):
    """Returns the tensors of a tile of evenly lit, red mountains high above the sea."""
    first_x, first_z = tile.first_cell
    k = np.arange(FINE, dtype=np.int32) - 4
    gz, gx = np.meshgrid(k + first_z, k + first_x, indexing="ij")
    texels = np.zeros((PAINTED, PAINTED, 4))
    texels[..., 0] = 255
    cells = Cells(gx, gz, tile.level, seed)
    return bare(3000 + height(cells).astype(np.float32), texels)


def plains(high):
    """Returns a maker of flat tiles, of which the tile ``high`` lies 25 m above the others."""

    def plain(tile, seed):
        height = np.full((FINE, FINE), 125.0 if tile == high else 100.0, np.float32)
        return replace(red(tile, seed), height=height)

    return plain


def whole(tile, slot):
    """Returns a visible tile that neither fades nor borders on another level."""
    return VisibleTile(tile, slot, slot, math.inf, math.inf)


def is_land(picture):
    """Returns an array that is True for each pixel of red land."""
    return picture[..., 0] > picture[..., 2] + 40


def test_rendering_is_deterministic_and_the_golden_picture(screen):
    camera, visible = coast(screen)
    first = screen.picture(camera, visible)
    assert (first == screen.picture(camera, visible[::-1])).all()
    assert (first != screen.picture(camera, visible, 40.0)).any(), "clouds and waves move"
    if not screen.gpu.limits.software:
        pytest.skip("the golden picture was drawn by a software driver")
    assert is_golden(first)


def is_golden(picture):
    """Returns True if the picture equals the stored one up to blending and rounding."""
    golden = np.asarray(Image.open(GOLDEN).convert("RGB"), int)
    if picture.shape != golden.shape:
        return False
    away = np.abs(picture.astype(int) - golden)
    return bool(away.mean() < 1.0 and (away.max(-1) > 16).mean() < 0.01)


def test_golden_comparison_rejects_other_pictures():
    golden = np.asarray(Image.open(GOLDEN).convert("RGB"), int)
    rounded = golden + np.indices(golden.shape).sum(0) % 2
    assert is_golden(golden) and is_golden(rounded)
    spot = golden.copy()
    rows, columns = (extent // 8 for extent in spot.shape[:2])
    spot[:rows, :columns] += 30
    for wrong in (golden[..., ::-1], np.roll(golden, 4, 1), golden[::-1], golden + 3, spot,
                  np.zeros_like(golden), golden[:1], golden[..., :1]):  # fmt: skip
        assert not is_golden(wrong)


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("tilt", [-0.5, -1.2])
def test_no_holes_between_levels(gpu, step, tilt):
    """Land covers every pixel of a view from above on tiles of several levels, also while they
    fade."""
    screen = Screen(gpu, replace(SMALL, mesh_step=step))
    land = screen.land(red)
    eye = (-9230.0, 4300.0, -5176.0)
    detail = Detail(finest=1, coarsest=5, split=1.1, view_m=4000.0)
    camera = screen.renderer.camera(eye, 0.4, tilt - 0.3)
    draw = land.complete(eye, detail)
    for fade in (0.0, 0.5):
        visible = [replace(v, fade=fade) for v in land.visible(draw, detail, camera)]
        picture = screen.picture(camera, visible)
        assert len({v.tile.level for v in visible}) >= 2
        assert is_land(picture).all()
    # a missing tile is visible
    assert not is_land(screen.picture(camera, visible[::2])).all()
    screen.renderer.close()


def test_a_skirt_hides_a_step_between_neighbours(screen):
    """No gap is visible under the edge of a plain that lies 25 m higher than its neighbour."""
    low, high = TileId(2, 0, 1), TileId(2, 0, 0)
    land = screen.land(plains(high), low, high)
    (x, z), span = low.origin, low.span_m
    camera = screen.renderer.camera((x + span / 2, 160.0, z + span * 0.3), 0.0, -0.2)
    visible = [whole(tile, slot) for tile, slot in land.slots.items()]
    seen = is_land(screen.picture(camera, visible))[:, WIDTH // 2 - 10 : WIDTH // 2 + 10]
    assert seen.any() and not seen.all()
    assert (np.maximum.accumulate(seen, 0) == seen).all(), "below land there is land"


def test_tile_edge_slopes_to_a_coarser_neighbour(screen):
    """A plain 25 m above its parent slopes down to the parent's height at an edge with
    ``EDGE_STEPS``.

    Without it the edge is a cliff, which covers more pixels.
    """
    parent, near, far = TileId(3, 0, 0), TileId(2, 0, 1), TileId(2, 0, 0)
    land = screen.land(plains(far), parent, near, far)
    (x, z), span = near.origin, near.span_m
    camera = screen.renderer.camera((x + span / 2, 105.0, z + span * 0.05), 0.0, 0.0)
    at = land.slots
    pictures = [
        screen.picture(
            camera,
            [
                whole(near, at[near]),
                VisibleTile(far, at[far], at[parent], math.inf, math.inf, 0.0, edges << 4 * 3),
            ],
        )
        for edges in (0, EDGE_STEPS)
    ]
    cliff, slope = (is_land(picture).mean() for picture in pictures)
    assert slope < cliff - 0.02


def test_edges_to_coarser_or_fading_neighbours_are_marked(screen):
    tile, fading = TileId(1, 4, 4), TileId(1, 5, 4)
    fades = {fading: 0.4}
    streaming = SimpleNamespace(
        changes=0,
        drawn=lambda tile: SimpleNamespace(slot=tile.level),
        fade=lambda tile, now_s: fades.get(tile, 0.0),
    )
    others = [TileId(1, 4, 5), TileId(1, 5, 5), fading]
    selection = Selection([tile, *others, TileId(3, 0, 0)], {}, {TileId(3, 0, 0)})
    drawn = DrawnTiles(streaming)
    (visible,) = drawn.list_visible([tile], selection, Detail(), 0.0)
    weights = {place: visible.edges >> 4 * i & 15 for i, place in enumerate(NEIGHBOURS)}
    # the coarse tile covers x and z from 0 to 3 of this level
    assert {place: weight for place, weight in weights.items() if weight} == {
        (1, 0): 6, (-1, -1): 15,
    }  # fmt: skip
    del fades[fading]
    (visible,) = drawn.list_visible([tile], selection, Detail(), 0.0)
    assert visible.edges >> 8 & 15 == 0, "what fades is looked at in every frame"


def test_new_tile_begins_with_its_parents_shape(screen):
    parent = TileId(3, -3, -2)
    land = screen.land(red, parent, *parent.children)
    (x, z), span = parent.origin, parent.span_m
    camera = screen.renderer.camera((x + span / 2, 4200.0, z + span * 1.2), 0.0, -0.35)

    def children(fade):
        at = land.slots
        return [
            VisibleTile(t, at[t], at[parent], math.inf, math.inf, fade) for t in parent.children
        ]

    slot = land.slots[parent]
    alone = is_land(screen.picture(camera, [whole(parent, slot)]))
    assert 0.1 < alone.mean() < 0.9
    assert (is_land(screen.picture(camera, children(1.0))) == alone).all()
    assert (is_land(screen.picture(camera, children(0.0))) != alone).any()


def test_plants_stand_on_the_land(screen):
    tile = TileId(0, -42, -24)
    land = screen.land(make, tile)
    tensors, slot = make(tile, SEED), land.slots[tile]
    (x, z), span = tile.origin, tile.span_m
    ground = float(tensors.height[4 + CELLS // 2, 4 + CELLS // 2])
    camera = screen.renderer.camera((x + span / 2, ground + 60, z + span * 0.9), 0.0, -0.5)
    visible = [whole(tile, slot)]
    with_plants = screen.picture(camera, visible)
    assert tensors.draw[1] > 50, "the test's tile should be wooded"
    assert screen.stats.planted_tiles == 1
    screen.renderer.tiles.plants.draws.write(np.zeros(4, np.uint32), 16 * slot)
    bare = screen.picture(camera, visible)
    covered = np.abs(with_plants - bare).max(-1) > 8
    assert 0.01 < covered.mean() < 0.6
    assert with_plants[covered].mean() < bare[covered].mean(), "firs are darker than grass"


def test_the_plants_pipeline_is_used_before_plants_are_seen(screen, monkeypatch):
    tile = TileId(0, 0, 0)
    land, plants, hidden = screen.land(red, tile), screen.renderer.tiles.plants, []
    camera = screen.renderer.camera((100.5, 3300.0, 300.25), 0.0, -0.8)
    screen.renderer._pipelines["plants"]  # is built
    draw = plants.draw_hidden
    monkeypatch.setattr(plants, "draw_hidden", lambda render: (hidden.append(1), draw(render)))
    pictures, counts = [], []
    for _ in range(3):
        pictures.append(screen.picture(camera, [whole(tile, land.slots[tile])]))
        counts.append(len(hidden))
    assert counts == [0, 1, 1], "not in the first picture, which is awaited"
    assert (pictures[0] == pictures[1]).all(), "it covers no pixel"


def test_picture_is_identical_far_from_the_origin(screen):
    """The pictures of the same land at the origin and 11,000 km away are identical."""
    pictures = []
    for x in (0, 49152):
        here = TileId(0, x, 0)

        def same(tile, seed):
            return red(TileId(0, 0, 0), seed)

        land = screen.land(same, here)
        slot = land.slots[here]
        eye = (here.origin[0] + 100.5, 3300.0, 300.25)
        camera = screen.renderer.camera(eye, 0.0, -0.8)
        pictures.append(screen.picture(camera, [whole(here, slot)]))
    assert is_land(pictures[0]).mean() > 0.05
    assert (pictures[0] == pictures[1]).all()


def test_renderer_memory_has_owners_and_is_released(gpu):
    before = held_bytes(gpu)
    screen = Screen(gpu)
    held = gpu.memory.held_bytes
    owners = {owner for owner, _ in gpu.memory.stats().holdings}
    assert {"terrain", "plants", "picture", "patterns"} <= owners
    per_slot = 2 * 4 * FINE * FINE + 4 * PAINTED * PAINTED + 16 * 1024
    assert held - before > SMALL.slots * per_slot
    screen.renderer.resize(64, 64)
    assert gpu.memory.held_bytes == held - 4 * (WIDTH * HEIGHT - 64 * 64)
    screen.renderer.close()
    assert gpu.memory.held_bytes == before


def test_camera_sees_boxes_that_have_a_corner_inside_of_each_plane():
    rng = np.random.default_rng(5)
    camera = Camera((300.0, 80.0, -90.0), 0.7, -0.2, far=900.0)
    centre = rng.uniform(-800, 800, (500, 3)) + camera.position
    half = rng.uniform(0, 300, (500, 3))
    signs = np.array(list(product((-1, 1), repeat=3)))
    corners = centre[:, None] + signs * half[:, None] - camera.position
    x, y, w = (camera.view_projection[row, :3] for row in (0, 1, 3))
    inside = [(corners @ plane >= 0).any(1) for plane in (w + x, w - x, w + y, w - y)]
    nearest = np.maximum(abs(centre - camera.position) - half, 0)
    expected = np.all(inside, axis=0) & (np.linalg.norm(nearest, axis=1) <= 900)
    assert 50 < expected.sum() < 450
    assert np.array_equal(camera.sees_boxes(centre, half), expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (37, 2), (WIDTH, HEIGHT)])
@pytest.mark.parametrize("effort", [EFFORTS[0], EFFORTS[-1]])
def test_a_target_of_any_size_is_filled(gpu, size, effort):
    width, height = size
    screen = Screen(gpu, replace(SMALL, width=width, height=height))
    camera, visible = coast(screen)
    while screen.renderer.effort != effort:  # its pipeline may still be under construction
        screen.renderer.effort = effort
    screen.renderer.resize(width, height)
    picture = screen.picture(camera, visible)
    assert picture.shape == (height, width, 3) and (picture.sum(-1) > 0).all()
    screen.renderer.close()


# --- the richer presets: the land under the sea, and grass near the camera

RICH = replace(SMALL, width=160, height=90, slots=8, mesh_step=1, rich=True)
TILE = TileId(0, 0, 0)


def slope(tile, seed):
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
def rich_screen(gpu):
    screen = Screen(gpu, RICH)
    for late in map(screen.renderer._pipelines._made.get, ("mirrored", "grass")):
        assert late is not None
        late.result()
    yield screen
    screen.renderer.close()


def pictures(screen, maker, eye, pipeline):
    """Returns two pictures of a tile: a complete one, and one without the draw of ``pipeline``."""
    land = screen.land(maker, TILE)
    slot = land.slots[TILE]
    camera = screen.renderer.camera(eye, 0.0, -0.3)
    visible = [whole(TILE, slot)]
    complete = screen.picture(camera, visible)
    pipelines = screen.renderer._pipelines._made
    removed = pipelines.pop(pipeline)
    try:
        return complete, screen.picture(camera, visible)
    finally:
        pipelines[pipeline] = removed
        screen.renderer.tiles.release(slot)


def test_sea_reflects_land_above_water_only(rich_screen):
    complete, without = pictures(rich_screen, slope, (112.0, 6.0, 210.0), "mirrored")
    redder = (complete - without)[..., 0]
    assert (redder > 8).mean() > 0.02
    assert redder.min() > -8, "the dark seabed"


def test_grass_grows_near_the_eye_where_the_land_is_green(rich_screen):
    complete, without = pictures(rich_screen, meadow, (111.0, 7.0, 150.0), "grass")
    west, east = np.split(np.abs(complete - without).max(2)[RICH.height // 2 :] > 8, 2, axis=1)
    assert east.mean() > 0.3 > 5 * west[:, : RICH.width // 4].mean()
    complete, without = pictures(rich_screen, meadow, (112.0, 7.0 + 2 * GRASS_M, 150.0), "grass")
    assert (complete == without).all(), "from further away nothing but its colour"
