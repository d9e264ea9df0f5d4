"""Tests of the demo's operators in NumPy: their grids' positions, scatter's instances."""

import numpy as np
import pytest

import cml_engine as cml
from demo_game.agents import tile_input
from demo_game.chain import MODELS, load_chain
from demo_game.operators.scatter import CANDIDATES
from demo_game.world.tile import CELLS, WIDE_APRON, TileId

SEED = 7
#: the first sample at the tile's own corner, for a tile and for each of its children
CORNER = WIDE_APRON


@pytest.fixture(scope="module")
def terrain():
    return cml.Session(cml.load(MODELS / "terrain.nnef"), "cpu")


@pytest.mark.parametrize("parent", [TileId(1, -2, 3), TileId(4, 0, -1)])
def test_child_tiles_align_with_their_parent(terrain, parent):
    """A tile's moisture equals its children's at the same positions, so their grids agree.

    Moisture has the same octaves on both levels.
    """
    whole = terrain.run({"tile": tile_input(parent, SEED)})["moisture"][0, 0]
    half = CELLS // 2
    for child in parent.children:
        part = terrain.run({"tile": tile_input(child, SEED)})["moisture"][0, 0]
        x, z = CORNER + half * (child.x & 1), CORNER + half * (child.z & 1)
        mine = part[CORNER : CORNER + CELLS : 2, CORNER : CORNER + CELLS : 2]
        np.testing.assert_allclose(mine, whole[z : z + half, x : x + half], atol=1e-6)


def test_scatter_preserves_the_order_of_candidates():
    session = cml.Session(cml.load(MODELS / "scatter.nnef"), "cpu")
    inputs = {
        "density": np.full((1, 3, 64, 64), 0.2, np.float32),
        "height": np.full((1, 1, 64, 64), 5, np.float32),
        "tile": tile_input(TileId(0, -9, 4), SEED),
    }
    some = session.run(inputs)
    full = session.run({**inputs, "density": np.full((1, 3, 64, 64), 1, np.float32)})
    assert full["draw"][0, 1] == CANDIDATES**2
    count = int(some["draw"][0, 1])
    assert 0.5 < count / CANDIDATES**2 < 0.7
    numbers = [_numbers(made["instances"][0, 0, : made["draw"][0, 1]]) for made in (some, full)]
    assert (np.diff(numbers[0]) > 0).all()
    assert np.array_equal(numbers[1], np.arange(CANDIDATES**2))
    # plants present at both densities have the same position
    places = full["instances"][0, 0, numbers[0], :2]
    assert np.array_equal(places, some["instances"][0, 0, :count, :2])
    other = session.run({**inputs, "tile": tile_input(TileId(0, -9, 4), SEED + 1)})
    assert not np.array_equal(other["instances"], some["instances"])


def _numbers(placed):
    """Returns the index of each placed instance on the grid of candidates."""
    column, row = np.floor(placed[:, :2] * CANDIDATES / CELLS).astype(int).T
    numbers = row * CANDIDATES + column
    return numbers


def test_mismatched_chain_is_refused(tmp_path):
    def model(name, text):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "graph.nnef").write_text(f"version 1.0; {text}")
        return folder

    wrong = model(
        "twice.nnef",
        "graph g(x) -> (y) { x = external<scalar>(shape = [1, 3, 64, 64]); y = relu(x); }",
    )
    with pytest.raises(cml.ModelError, match=r"wanted one input \[1, 3, 128, 128\]"):
        load_chain(enlarge=wrong)
    fine = model(
        "fine.nnef",
        "graph g(x) -> (y) { x = external<scalar>(shape = [1, 3, 128, 128]); "
        "y = nearest_upsample(x, factor = [4, 4]); }",
    )
    chain = load_chain(enlarge=fine)
    assert chain.texel_side == 4 * load_chain().texel_side == 512
    names = list(chain.sources)
    assert names.index("texture") < names.index("enlarge") < names.index("paint")
