"""Tests of the demo's world: its noise, also in integers, matching tile edges, and its quadtree."""

import random

import numpy as np
import pytest

from cml_engine.demo_game.flight import ScriptedFlight
from cml_engine.demo_game.world import exact_noise, noise
from cml_engine.demo_game.world.bounds import bounds, ground
from cml_engine.demo_game.world.draft import drafts
from cml_engine.demo_game.world.quadtree import Detail, fit_detail, list_needed, select
from cml_engine.demo_game.world.tile import CELLS, FINE, TileId
from tests.reference import exact_land

SEED = 7


def cells(first_x, first_z, count=24):
    z, x = np.meshgrid(
        np.arange(first_z, first_z + count, dtype=np.int32),
        np.arange(first_x, first_x + count, dtype=np.int32),
        indexing="ij",
    )
    return x, z


def test_levels_differ_only_by_missing_octaves():
    fine = noise.height(noise.Cells(*(4 * c for c in cells(100, 50)), 0, SEED))
    coarse = noise.height(noise.Cells(*cells(100, 50), 2, SEED))
    missing = sum(noise.amplitude(octave) for octave in (3, 4)) * 2
    assert np.abs(fine - coarse).max() <= missing


def test_height_bounds_contain_the_terrain():
    for tile in (TileId(0, -3, 9), TileId(3, 4, -4), TileId(6, 0, 0)):
        low, high = bounds(tile, SEED)
        x, z = cells(*tile.first_cell, CELLS)
        heights = np.maximum(noise.height(noise.Cells(x, z, tile.level, SEED)), 0)
        assert low <= heights.min() and heights.max() <= high


def covered(tiles, around, reach):
    """Returns the number of tiles over each point of a 41 x 41 grid around the point ``around``.

    The grid reaches ``reach`` metres to each side.
    """
    steps = np.linspace(-reach, reach, 41)
    count = np.zeros((41, 41), int)
    for tile in tiles:
        (x, z), span = tile.origin, tile.span_m
        in_x = (around[0] + steps >= x) & (around[0] + steps < x + span)
        in_z = (around[1] + steps >= z) & (around[1] + steps < z + span)
        count += np.outer(in_z, in_x)
    return count


@pytest.mark.parametrize("eye", [(0.0, 50.0, 0.0), (-5000.3, 900.0, 12_345.6)])
def test_drawn_tiles_cover_the_land_once_at_every_stage_of_loading(
    eye,
):
    detail, there = Detail(0, 5, 1.1, 9000.0), set[TileId]()
    reach = 5000.0
    for stage in range(12):
        found = select(eye, SEED, detail, there.__contains__)
        if stage:
            assert (covered(found.draw, (eye[0], eye[2]), reach) == 1).all()
        assert set(found.draw) <= there and not set(found.wanted) & there
        if not found.wanted:
            break
        there |= set(found.wanted)
    else:
        pytest.fail("loading does not end")
    assert min(tile.level for tile in found.draw) == (0 if eye[1] < 100 else 1)


def test_neighbours_differ_by_one_level_where_all_is_loaded():
    detail = Detail(0, 5, 1.1, 9000.0)
    draw = select((100.0, 30.0, 40.0), SEED, detail, lambda tile: True).draw
    drawn = {(t.level, t.x, t.z) for t in draw}
    for tile in draw:
        for dx, dz in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            above = TileId(tile.level, tile.x + dx, tile.z + dz).parent.parent
            assert (above.level, above.x, above.z) not in drawn


def test_level_morph_ends_before_the_next_level_begins():
    detail = Detail(0, 4, 1.1, 9000.0)
    for level in range(4):
        begins, ends = detail.range_m(level)
        assert begins < ends == detail.split * TileId(level + 1, 0, 0).span_m
        assert ends <= detail.range_m(level + 1)[0] or level == 3


def test_scripted_flight_is_deterministic_and_above_the_terrain():
    flight, again = ScriptedFlight(SEED), ScriptedFlight(SEED)
    for seconds in (0.0, 3.7, 59.9, 600.0):
        pose = flight.pose(seconds)
        assert pose == again.pose(seconds)
        x, y, z = pose.position
        assert y > float(ground(np.array([x]), np.array([z]), SEED)[0]) + 20


def test_drafts_are_the_noise_and_meet_their_neighbours():
    tiles = [TileId(3, -2, 5), TileId(3, -1, 5), TileId(3, -2, 6), TileId(4, -1, 2)]
    made = {draft.tile: draft for draft in drafts(tiles, SEED)}
    assert set(made) == set(tiles)
    for tile, draft in made.items():
        x, z = cells(tile.first_cell[0] - 4, tile.first_cell[1] - 4, FINE)
        heights = noise.height(noise.Cells(x, z, tile.level, SEED))
        assert np.array_equal(draft.height, heights.astype("f4"))
    first, east, south = (made[tile] for tile in tiles[:3])
    for name in ("height", "shading", "colours"):
        grid, beside, below = (getattr(draft, name) for draft in (first, east, south))
        assert np.array_equal(grid[:, CELLS:], beside[:, : FINE - CELLS]), name
        assert np.array_equal(grid[CELLS:], below[: FINE - CELLS]), name


def test_detail_is_reduced_if_tiles_exceed_slots():
    detail, eye = Detail(finest=0, coarsest=5, split=1.1, view_m=9_000.0), (900.0, 150.0, -300.0)
    expected = len(list_needed(eye, SEED, detail))
    assert fit_detail(eye, SEED, detail, expected + 20) == detail, "what fits is left as it is"
    rooms = (100, 60, 30)
    fitted = [fit_detail(eye, SEED, detail, most) for most in rooms]
    for found, most in zip(fitted, rooms, strict=True):
        assert len(list_needed((896.0, 128.0, -320.0), SEED, found)) <= most < expected
    assert fitted[0].split > fitted[1].split and fitted[2].finest > detail.finest
    nothing = fit_detail(eye, SEED, detail, 1)
    assert nothing.finest == nothing.coarsest, "as coarse as it gets, and no endless search"


FUNCTIONS = ("height", "detail", "moisture", "grain")
#: the ends of 32 bits, of a world of 2^31 metres, and of lattice cells
EDGES = [n for at in (0, 2**13, 2**29, 2**31 - 1) for n in (at - 1, at, -at)]
SEEDS = (0, 7, 2**31 - 1)


@pytest.mark.parametrize("level", range(7))
def test_noise_equals_exact_integers_and_fits_in_32_bits(level):
    rng = random.Random(level)
    places = [(x, z) for x in EDGES for z in rng.sample(EDGES, 3)]
    places += [(rng.randrange(-(2**31), 2**31), rng.randrange(-4000, 4000)) for _ in range(40)]
    x, z = (np.array(axis, np.int32) for axis in zip(*places, strict=True))
    for name in FUNCTIONS:
        seed = rng.choice(SEEDS)
        found = getattr(exact_noise, name)(noise.Cells(x, z, level, seed))
        expected = [getattr(exact_land, name)(*place, level, seed) for place in places]
        assert found.tolist() == expected, name


def test_the_steepest_corners_fit_into_32_bits(monkeypatch):
    """The reference, which checks every sum, accepts the most extreme gradients side by side."""
    for h in (0, 1023, 1023 << 10, (1 << 20) - 1):
        turned = iter(range(1 << 30))
        monkeypatch.setattr(
            exact_land, "hashed", lambda *_, h=h, t=turned: h ^ ((1 << 20) - 1) * (next(t) % 2)
        )
        for x in (0, 1, 4095, 4096, 8191):
            exact_land.height(x, 8191 - x, 0, 0)
            exact_land.detail(x, 8191 - x, 6, 0)


def test_integer_heights_are_within_metres_of_float_heights():
    rng = np.random.default_rng(1)
    x, z = rng.integers(-(2**18), 2**18, (2, 500), dtype=np.int32)
    cells = noise.Cells(x, z, 0, 7)
    metres = exact_noise.height(cells) / 2.0**exact_noise.HEIGHT_BITS
    assert 0 < np.abs(metres - noise.height(cells)).max() < 4.0
