"""Tests of a run's report and film, and of the tiles that a bake of the demo's world computes."""

import numpy as np
import pytest
from PIL import Image

import cml_engine as cml
from cml_engine.demo_game.bake.planet import code_of
from cml_engine.demo_game.bake.region import Region, region_of
from cml_engine.demo_game.headless import write_film
from cml_engine.demo_game.reporting.report import RunReport, player_table, table
from cml_engine.demo_game.world.tile import TileId

TIMES = {"p50": 9.0, "p95": 15.0, "p99": 17.0, "max": 22.4}


def report(mode, **changed):
    known = {
        "mode": mode, "device": "d", "driver": "v", "quality": "software", "width": 960,
        "height": 540, "seed": 7, "clock": "real", "target_ms": 16.667, "frames": 600,
        "first_picture_s": 1.0, "ground_s": 2.0, "load_s": 3.0, "settle_s": 4.0, "frame_ms": TIMES,
        "frame_times_ms": [9.0], "cpu_ms": TIMES,
        "render_ms": None, "inference_ms": None, "frames_over": 6, "frames_over_budget": None,
        "budget_used": None, "tiles": 0, "tiles_cancelled": 0, "tiles_ahead": 0, "tiles_per_s": 0.0,
        "jobs_per_s": {}, "latency_s": {**TIMES, "p50": 2.66}, "memory_peak_bytes": 1,
        "memory_bytes_by_owner": {}, "world": "abc",
    }  # fmt: skip
    return RunReport(**{**known, **changed})


def test_plain_table_of_a_comparison():
    runs = [report("off"), report("sliced", tiles=19, frames_over=12),
            report("unsliced", tiles=51, frames_over=78)]  # fmt: skip
    said = player_table(runs).splitlines()
    assert said[0] == "600 frames of one flight, each to take 16.7 ms:"
    assert said[2].startswith("no networks") and " - " in said[2] and "1.0 %" in said[2]
    assert "19       2.7 s" in said[3] and "2.0 %     22 ms" in said[3]
    assert "alone, +1.0 percentage points" in said[5] and "+12.0 unsliced" in said[5]
    assert "the world is the same" in said[5]
    late = [{"cause": cause} for cause in ("the picture", "selecting tiles", "the picture")]
    told = player_table([*runs[:1], report("sliced", late_frames=late)])
    assert "late frames, sliced: the picture (2), selecting tiles (1)" in told.splitlines()
    assert "late frames" not in "".join(said), "there is no account of them"
    told = player_table([report("sliced", guarantee="the picture alone takes 19.6 of 16.7 ms")])
    assert told.endswith("\nsliced: the picture alone takes 19.6 of 16.7 ms")
    other = [*runs[:2], report("unsliced", world="xyz")]
    assert "WORLDS DIFFER" in player_table(other)
    assert len(player_table(runs[1:2]).splitlines()) == 3, "nothing to compare with"
    assert len(table(runs).splitlines()) == 4


def test_a_film_has_all_its_pictures(tmp_path, rng):
    pictures = [rng.integers(0, 255, (90, 500, 3)).astype(np.uint8) for _ in range(5)]
    write_film(tmp_path / "film.gif", pictures)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 5 and film.size == (400, 72)  # type: ignore[attr-defined]
        assert film.info["duration"] == 100 and film.info["loop"] == 0


def test_a_region_has_the_tiles_that_cover_it_at_every_level():
    region = region_of("-3:3,0:2", "0:2")
    assert region == Region(-3, 3, 0, 2, 0, 2)
    assert region.rows(0) == (range(2), range(-3, 3))
    assert region.rows(1) == (range(1), range(-2, 2))
    assert region.rows(2) == (range(1), range(-1, 1))
    tiles = list(region.tiles())
    assert len(tiles) == 12 + 4 + 2 and len(set(tiles)) == len(tiles)
    assert tiles[0].level == 2 and all(region.has(tile) for tile in tiles)
    for tile in tiles:
        assert tile.level == 2 or region.has(tile.parent)
    outside = [TileId(0, 3, 0), TileId(0, 0, 2), TileId(1, 2, 0), TileId(3, 0, 0)]
    assert not any(region.has(tile) for tile in outside)
    assert region_of(region.text, "0:2") == region
    assert region_of("0:1,0:1", "4").levels == range(4, 5)


@pytest.mark.parametrize(
    "region, levels, said",
    [
        ("", "0:1", "wanted X0:X1,Z0:Z1"),
        ("0:1", "0:1", "wanted X0:X1,Z0:Z1"),
        ("0:1,nan:1", "0:1", "wanted X0:X1,Z0:Z1"),
        ("0:0,0:1", "0:1", "X0 must be less than X1"),
        ("0:99999999,0:1", "0:1", "the world ends at 16,777,216 tiles"),
        ("0:1,0:1", "-1:2", "wanted A:B"),
        ("0:1,0:1", "2:1", "wanted the finest first"),
        ("0:1,0:1", "0:7", "none beyond 6"),
    ],
)
def test_invalid_regions_are_refused(region, levels, said):
    with pytest.raises(cml.InputError, match=said):
        region_of(region, levels)


PYTHON = 'X = 1\n\n\ndef f(a):\n    """Says it."""\n    return a[X:]\n'
HLSL = "// Says it.\nfloat f(float a) { return a * 2.0; }\n"


@pytest.mark.parametrize(
    "name, text, edits, same",
    [
        ("a.py", PYTHON, {"Says": "Tells"}, True),
        ("a.py", PYTHON, {'    """Says it."""\n': "", "X = 1": "X = (1)  # one"}, True),
        ("a.py", PYTHON, {"X = 1": "X = 2"}, False),
        ("a.py", PYTHON, {"a[X:]": "a[:X]"}, False),
        ("a.hlsl", HLSL, {"Says": "Tells", " a ": "  /* a */ a ", "{ ": "{\n    "}, True),
        ("a.hlsl", HLSL, {"2.0": "3.0"}, False),
    ],
)
def test_the_rules_of_a_bake_are_code_and_not_its_comments(name, text, edits, same, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    before = code_of(path)
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    assert (code_of(path) == before) == same
