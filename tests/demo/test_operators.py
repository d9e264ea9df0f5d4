"""Tests that the demo's own operators agree with NumPy in any partition and that tile edges
match."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.demo_game.agents import tile_input
from cml_engine.demo_game.chain import MODELS
from cml_engine.demo_game.operators.scatter import CANDIDATES, VERTICES
from cml_engine.demo_game.world.tile import CELLS, COARSE, SCALE, WIDE, TileId
from cml_engine.testing import check

pytestmark = pytest.mark.gpu

OPERATORS = (
    "land_height", "land_detail", "land_moisture", "land_grain", "land_cell",
    "shading", "pack_bytes", "scatter",
    "exact_height", "exact_detail", "exact_relief", "exact_ground", "exact_features",
    "exact_scatter",
)  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_agrees_with_numpy_in_any_partition(gpu, name):
    check(name, gpu)


@pytest.fixture(scope="module")
def terrain(gpu):
    return cml.Session(cml.load(MODELS / "terrain.nnef"), gpu)


@pytest.mark.parametrize("level", [0, 3, 6])
def test_neighbouring_tiles_share_their_edges(terrain, level):
    west, east = (terrain.run({"tile": tile_input(TileId(level, x, -2), 7)}) for x in (-1, 0))
    for name in ("moisture", "grain"):
        assert np.array_equal(west[name][..., CELLS:], east[name][..., : WIDE - CELLS]), name
    shift = CELLS // SCALE
    for name in ("coarse", "detail"):
        assert np.array_equal(west[name][..., shift:], east[name][..., : COARSE - shift]), name


def test_light_is_equal_on_both_sides_of_a_tile_edge(gpu):
    session = cml.Session(cml.load(MODELS / "surface.nnef"), gpu)
    x, z = np.arange(WIDE + CELLS, dtype=np.float32), np.arange(WIDE, dtype=np.float32)[:, None]
    land = (60 * np.sin(x / 5) * np.cos(z / 7) + 40 * np.sin((x + z) / 3)).astype(np.float32)
    cell = np.full((1, 1, 1, 1), 4, np.float32)
    west, east = (
        session.run(
            {"heights": np.ascontiguousarray(land[None, None, :, i : i + WIDE]), "cell": cell}
        )
        for i in (0, CELLS)
    )
    for name in ("height", "shading"):
        assert np.array_equal(west[name][..., CELLS:], east[name][..., : 64 - CELLS]), name


def test_surface_has_the_tiles_own_heights_and_its_light(gpu):
    session = cml.Session(cml.load(MODELS / "surface.nnef"), gpu)
    slope = np.broadcast_to(np.arange(WIDE, dtype=np.float32), (1, 1, WIDE, WIDE)) * 4 + 100
    outputs = session.run({"heights": slope, "cell": np.full((1, 1, 1, 1), 4, np.float32)})
    assert np.array_equal(outputs["height"], slope[..., 16:80, 16:80])
    texels = outputs["shading"].view(np.uint8).reshape(64, 64, 4)
    # a slope of one upwards to the east: the normal leans west, half of the eastern sky is hidden
    assert (texels[..., 0] == round((0.5 - 0.5 / 2**0.5) * 255)).all()
    assert (texels[..., 1] == 128).all()
    assert (texels[..., 2] < 250).all() and (texels[..., 2] > 150).all()


def test_scatter_follows_density_and_avoids_the_sea(gpu):
    session = cml.Session(cml.load(MODELS / "scatter.nnef"), gpu)
    density = np.zeros((1, 3, 64, 64), np.float32)
    density[:, 0, :, :32] = 1.0  # a forest in the west
    density[:, 2, :, 40:] = 0.5  # rocks in the east
    inputs = {
        "density": density,
        "height": np.full((1, 1, 64, 64), 12, np.float32),
        "tile": tile_input(TileId(0, 3, -4), 7),
    }
    outputs = session.run(inputs)
    vertices, count, *rest = outputs["draw"][0]
    assert (vertices, rest) == (VERTICES, [0, 0])
    placed = outputs["instances"][0, 0]
    assert (placed[count:] == 0).all() and (placed[:count, 2] == 12).all()
    kind = placed[:count, 3].astype(np.int64) & 3
    assert set(kind) == {0, 2}
    assert placed[:count][kind == 0, 0].max() < 29 and placed[:count][kind == 2, 0].min() > 34
    assert 0.4 < (kind == 0).sum() / CANDIDATES**2 < 0.6
    assert placed[:count, :2].min() >= 0 and placed[:count, :2].max() < CELLS
    sea = session.run({**inputs, "height": np.full((1, 1, 64, 64), 0.5, np.float32)})
    assert sea["draw"][0, 1] == 0 and not sea["instances"].any()
