"""The demo game's world in a browser: its tiles are the ones that Python makes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from demo_game.agents import tile_input
from demo_game.world.tile import TileId
from examples.web_world.__main__ import NETWORKS, write_world
from tests.players.deno import ROOT, find_deno, run_deno

HERE = Path(__file__).with_name("web")
GROUND = ("moisture", "grain", "cell")


@pytest.mark.gpu
@pytest.mark.long
def test_a_tile_is_the_one_that_python_makes(tmp_path):
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    write_world(tmp_path, ["portable"])
    done = run_deno("run", "-A", "--no-check", HERE / "tile.js", tmp_path, "3", "-2")
    found = json.loads(done.stdout)
    for name, wanted in python_tile(TileId(1, 3, -2), 7).items():
        far = np.abs(np.array(found[name]) - wanted.ravel()) / np.maximum(1, np.abs(wanted.ravel()))
        assert far.max() < 1e-3, name


def python_tile(tile: TileId, seed: int) -> dict[str, np.ndarray]:
    folder = ROOT / "demo_game" / "models"
    run = {name: cml.Session(cml.load(folder / f"{name}.nnef"), "cpu").run for name in NETWORKS}
    ground = run["terrain"]({"tile": tile_input(tile, seed)})
    heights = run["upres"]({name: ground[name] for name in ("coarse", "detail", "cell")})["heights"]
    land = {"heights": heights, **{name: ground[name] for name in GROUND}}
    albedo, density = run["texture"](land)["albedo"], run["population"](land)["density"]
    return {"heights": heights, "albedo": albedo, "density": density}
