"""Tests that a game over a baked planet shows the same world, bit for bit and without seams."""

from dataclasses import replace

import pytest

import cml_engine as cml
from cml_engine.demo_game.bake.planet import Planet, layers_of, manifest, tiles_of, to_cells
from cml_engine.demo_game.bake.region import Region
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.headless import HeadlessRun, Options
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.tile import TileId
from cml_engine.distributed.store import Store, prepare
from tests.demo.test_game import NEAR, SMALL

pytestmark = pytest.mark.gpu

pytest.importorskip("zarr")


def bake_here(gpu, place, region, seed):
    """Bakes all tiles of a region in this process, without a cluster; returns the store at
    ``place``."""
    chain = load_chain()
    layers = layers_of(region, chain)
    prepare(str(place), layers, {**manifest(region, chain, seed), "device": gpu.name})
    store, maker = Store(str(place), layers), TileMaker(chain, gpu)
    for layer in layers:
        for unit in layer.units():
            ((tile,),) = tiles_of(layer, unit)
            names = maker.chain.sessions_for(tile)
            tensors = maker.make(tile, seed, names=dict.fromkeys([*names, "population"]))
            cells = to_cells(chain, tile, tensors)
            store.write(unit, {name: value[None, None] for name, value in cells.items()})
    return store


def settled(gpu, settings):
    flown = HeadlessRun(gpu, SMALL, settings, Options(frames=0, clock="virtual"))
    flown.load()
    return flown, flown.settle()


def test_world_is_identical_with_a_baked_planet(gpu, tmp_path):
    """The world is identical with and without a planet that covers half of the view.

    One of the planet's tiles is damaged, and one is missing.
    """
    plain, world = settled(gpu, NEAR)
    tiles = sorted(tile for tile in plain.digests.of if tile.level == 1)
    plain.close()
    middle = tiles[len(tiles) // 2].x
    near = [tile for tile in tiles if tile.x <= middle][:8]
    xs, zs = [t.x for t in near], [t.z for t in near]
    region = Region(min(xs), max(xs) + 1, min(zs), max(zs) + 1, 1, 3)
    place = tmp_path / "planet.zarr"
    bake_here(gpu, place, region, 7)
    rows, columns = region.rows(1)
    at = [f"c.{t.z - rows.start}.{t.x - columns.start}" for t in near[:2]]
    (place / "L1/sha256" / f"{at[0]}.0").unlink()
    (place / "L1/albedo" / f"{at[1]}.0.0.0").write_bytes(b"damaged")
    flown, over = settled(gpu, replace(NEAR, planet=place))
    planet = flown.game.planet
    made_here = set(flown.digests.of) - set(region.tiles())
    try:
        assert over == world
        assert planet.read >= len(near) - 2 and planet.missing == 2 and made_here
        digests = {tile: flown.digests.of[tile] for tile in near}
        assert {tile: plain.digests.of[tile] for tile in near} == digests
        cells = planet.planet.cells(near[-1])
        assert cells["digest"].tobytes().hex() == digests[near[-1]]
    finally:
        flown.close()
    assert not [owner for owner, _ in gpu.memory.stats().holdings if owner == "planet"]


def test_a_planet_of_another_world_is_refused(gpu, tmp_path):
    region = Region(0, 1, 0, 1, 3, 3)
    bake_here(gpu, tmp_path / "p.zarr", region, 7)
    planet = Planet(tmp_path / "p.zarr")
    assert (planet.seed, planet.region) == (7, region)
    with pytest.raises(cml.InputError, match="its .seed. is 7, expected 8"):
        planet.open(load_chain(), 8)
    planet.manifest["model upres"] = "0"
    with pytest.raises(cml.InputError, match="its .model upres. is 0, expected"):
        planet.open(load_chain(), 7)
    assert planet.has(TileId(3, 0, 0)) and not planet.has(TileId(3, 1, 0))
