"""Tests that the demo's world in a browser has the same tiles as in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cml_engine.demo_game.chain import DRAWN, load_chain
from cml_engine.demo_game.reporting.digest import tile_digest
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.tile import TileId
from examples.web_world.__main__ import write_networks, write_player, write_world
from tests.fixtures.cooked import DEVICES
from tests.players.deno import find_deno, need_core, run_deno

HERE = Path(__file__).with_name("web")
TILE, SEED = TileId(1, 3, -2), 7


def made_in_deno(folder, under=""):
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    words = (str(TILE.x), str(TILE.z), under)
    return json.loads(run_deno("run", "-A", "--no-check", HERE / "tile.js", folder, *words).stdout)


def made_by_numpy(integer):
    chain = load_chain(integer=integer)
    # the float world's plants stand on the drawn terrain
    unwanted = DRAWN if integer else (*DRAWN, "scatter")
    names = [name for name in chain.sessions_for(TILE) if name not in unwanted]
    return chain, TileMaker(chain, "cpu").make(TILE, SEED, names=names)


@pytest.mark.gpu
@pytest.mark.long
def test_integer_world_tile_is_bit_identical(tmp_path):
    write_networks(tmp_path, DEVICES, integer=True)
    need_core()
    write_player(tmp_path, "cml.js", "core.js", "tiles.js")
    chain, expected = made_by_numpy(integer=True)
    actual = made_in_deno(tmp_path)
    assert actual["digest"] == tile_digest(chain, TILE, expected.__getitem__)
    assert np.std(actual["heights"]) > 1 and len(set(actual["albedo"])) > 20


@pytest.mark.gpu
@pytest.mark.long
def test_world_tile_agrees_with_python(tmp_path):
    need_core()
    write_world(tmp_path, ["portable"])
    actual = made_in_deno(tmp_path)
    _, made = made_by_numpy(integer=False)
    for name in ("heights", "albedo", "density"):
        expected = made[name].ravel()
        far = np.abs(np.array(actual[name]) - expected) / np.maximum(1, np.abs(expected))
        assert far.max() < 1e-3, name
