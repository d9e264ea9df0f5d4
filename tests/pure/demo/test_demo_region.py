"""Tests of the tiles that a bake of the demo's world computes."""

import pytest

import cml_engine as cml
from demo_game.bake.planet import code_of
from demo_game.bake.region import Region, region_of
from demo_game.world.tile import TileId


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
