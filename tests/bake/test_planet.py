"""Tests of ``python -m demo_game.bake`` on a small part of the demo's world."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.demo_game.bake.__main__ import main
from cml_engine.demo_game.bake.planet import Planet
from cml_engine.demo_game.chain import load_chain, name_shown_tensors
from cml_engine.demo_game.reporting.digest import digest_of
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.tile import TileId
from cml_engine.distributed import ANY_DEVICE
from tests.fixtures.integer.world import TILES
from tests.fixtures.pages import example

pytest.importorskip("distributed")
zarr = pytest.importorskip("zarr")


def words(place: Path, region: str = "-1:1,3:4", levels: str = "1:2") -> list[str]:
    return ["--region", region, "--levels", levels, "-o", str(place), "--backend", "cpu"]


def test_a_region_is_baked_and_drawn_and_not_baked_again(client, tmp_path, capsys):
    place, report = tmp_path / "planet.zarr", tmp_path / "report.json"
    more = ["--scheduler", client.scheduler.address, "--report", str(report)]
    assert main([*words(place), *more]) == 0
    assert "4 of 4 tiles" in capsys.readouterr().out and (tmp_path / "planet.png").exists()
    planet = zarr.open_group(place, mode="r")
    manifest = planet.attrs["cml"]
    assert (
        manifest["seed"] == 7
        and manifest["licence"] == "Apache-2.0"
        and len(manifest["model upres"]) == 64
    )
    assert {"height", "albedo", "density", "instances", "sha256", "x"} <= set(planet["L1"])
    assert "instances" not in planet["L2"] and "density" in planet["L2"]

    maker = TileMaker(load_chain(), "cpu")
    for tile, at in ((TileId(1, 0, 3), (0, 1)), (TileId(2, -1, 1), (0, 0))):
        tensors = maker.make(tile, 7)
        group = planet[f"L{tile.level}"]
        np.testing.assert_array_equal(group["height"][at], tensors["height"][0, 0])
        expected = digest_of([tensors[name] for name in name_shown_tensors(tile)])
        assert group["digest"][at].tobytes().hex() == expected

    assert main([*words(place), *more]) == 0
    again = json.loads(report.read_text())
    assert (again["made"], again["kept"]) == (0, 4)
    capsys.readouterr()
    assert main([*words(place), *more, "--seed", "8"]) == 2
    assert "was made with another seed: 7 there, 8 here" in capsys.readouterr().err
    assert main([*words(place, levels="1:3"), *more]) == 2
    assert "was made with another levels: 1:2 there, 1:3 here" in capsys.readouterr().err


def test_baked_integer_tile_has_the_committed_digest(client, tmp_path, capsys):
    place = tmp_path / "planet.zarr"
    (tile,) = (tile for tile in TILES if tile.level == 4)
    more = ["--scheduler", client.scheduler.address, "--integer"]
    assert main([*words(place, "-1:0,2:3", "4"), *more]) == 0
    planet = Planet(place)
    with pytest.raises(cml.InputError, match="its .world. is integer, expected float"):
        planet.open(load_chain(), 7)
    planet.open(load_chain(integer=True), 7)
    assert planet.device == ANY_DEVICE, "workers of any kind may go on with it"
    found = planet.tensors(tile)
    assert found is not None and found["digest"].tobytes().hex() == TILES[tile]


def test_tiles_baked_in_blocks_are_identical(client, tmp_path):
    more = ["--scheduler", client.scheduler.address]
    for name, block in (("one", "1"), ("two", "2")):
        assert main([*words(tmp_path / f"{name}.zarr", "-1:2,3:5"), *more, "--block", block]) == 0
    one, two = (Planet(tmp_path / f"{name}.zarr") for name in ("one", "two"))
    for planet in (one, two):
        planet.open(load_chain(), 7)
    for tile in one.region.tiles():
        expected, found = one.cells(tile), two.cells(tile)
        assert expected is not None and found is not None
        assert found["digest"].any() and not any((found[n] != a).any() for n, a in expected.items())


def test_xarray_makes_a_map_of_it(client, tmp_path, monkeypatch):
    pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "planet.zarr"
    assert main([*words(place), "--scheduler", client.scheduler.address]) == 0
    page = {}
    exec(example("docs/cluster.md", "xarray.open_zarr"), page)
    with page["level"] as level:
        land = page["land"].values
        assert land.shape == (56, 112)
        edge = np.abs(np.diff(land, axis=1))
        assert edge[:, 55].max() <= 2 * np.delete(edge, 55, 1).max()
        assert level.x.values.tolist() == [-1, 0] and level.attrs["metres_per_cell"] == 8


@pytest.mark.parametrize(
    "more, message",
    [
        (["--region", "0:0,0:1"], "X0 must be less than X1"),
        (["--levels", "2:9"], "none beyond 6"),
        (["--models", "nowhere"], "wanted upres.nnef"),
        (["-o", "no/such/planet.zarr"], "make it first"),
        (["--scheduler", "nonsense://x"], "no scheduler answers at 'nonsense://x'"),
    ],
)
def test_invalid_arguments_end_with_one_message(more, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cml_engine.distributed.cluster._ANSWER_S", 0.5)
    monkeypatch.chdir(tmp_path)
    assert main([*words(tmp_path / "planet.zarr"), *more]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and "Traceback" not in printed
