"""Tests of the demo game's committed agents and of its operators in NumPy.

Neighbouring tiles meet without a seam, and the agents beat simpler methods on held-out land."""

import hashlib
import json

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.demo_game.agents import tile_input
from cml_engine.demo_game.chain import MODELS, load_chain
from cml_engine.demo_game.operators.scatter import CANDIDATES
from cml_engine.demo_game.training import data
from cml_engine.demo_game.training.data import HELD_OUT, Place
from cml_engine.demo_game.world.grids import unfold
from cml_engine.demo_game.world.tile import CELLS, COARSE, COARSE_APRON, WIDE, WIDE_APRON, TileId

RECIPE = json.loads((MODELS / "recipe.json").read_text(encoding="utf-8"))
AGENTS = ("upres", "texture", "population")
#: pairs from west to east, on hills and with the largest squares; world, level, first cell
PLACES = ((HELD_OUT + 7, 0, 5600, -2240), (HELD_OUT + 8, 5, -1120, 448))


@pytest.fixture(scope="module")
def sessions():
    return {name: cml.Session(cml.load(MODELS / f"{name}.nnef"), "cpu") for name in AGENTS}


def made(sessions, place):
    """Runs the agents for the tile at ``place``.

    Returns their outputs and, as ``seen``, their inputs.
    """
    cell = np.full((1, 1, 1, 1), place.cell_m, np.float32)
    given = {
        "coarse": place.coarse(-COARSE_APRON, COARSE)[None, None],
        "detail": place.detail(-COARSE_APRON, COARSE)[None],
        "cell": cell,
    }
    heights = sessions["upres"].run(given)["heights"]
    seen = {
        "heights": heights,
        "moisture": place.moisture(-WIDE_APRON, WIDE)[None, None],
        "grain": place.grain(-WIDE_APRON, WIDE)[None],
        "cell": cell,
    }
    return {
        "seen": seen,
        "heights": heights,
        "albedo": sessions["texture"].run(seen)["albedo"],
        "density": sessions["population"].run(seen)["density"],
    }


@pytest.fixture(scope="module", params=PLACES, ids=["level 0", "level 5"])
def pair(request, sessions):
    """A tile's place, the agents' outputs for it, and those for its eastern neighbour."""
    seed, level, x, z = request.param
    west, east = Place(seed, level, x, z), Place(seed, level, x + CELLS, z)
    return west, made(sessions, west), made(sessions, east)


@pytest.mark.parametrize("name", AGENTS)
def test_model_files_match_their_recipe(name):
    files = sorted((MODELS / f"{name}.nnef").iterdir())
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
    assert digest == RECIPE[name]["sha256"]
    assert sum(f.stat().st_size for f in files) == RECIPE[name]["bytes"]


@pytest.mark.parametrize("name, per_cell", [("heights", 1), ("albedo", 2), ("density", 1)])
def test_neighbours_meet_without_a_seam(pair, name, per_cell):
    place, west, east = pair
    shared = west[name][..., per_cell * CELLS :]
    assert shared.shape[-1] > 0
    tolerance = 1e-5 * max(1.0, float(np.abs(shared).max()))
    np.testing.assert_allclose(shared, east[name][..., : shared.shape[-1]], atol=tolerance)
    shifted = east[name][..., per_cell : per_cell + shared.shape[-1]]
    assert np.abs(shared - shifted).max() > 100 * tolerance, "a wrong offset would pass as well"


def test_heights_beat_interpolation(sessions):
    """The upres agent's error is less than half of bicubic's, with and without noise.

    Measured on a square of a held-out world.
    """
    square = data.erode_place(Place(HELD_OUT + 9, 1, 1600, -3200))
    sample = data.upres_sample(square)
    given = {
        "coarse": sample.inputs["coarse"][:, :, :36, :36],
        "detail": sample.inputs["detail"][:, :, :36, :36],
        "cell": sample.inputs["cell"],
    }
    target = sample.target[:, :, :96, :96]
    agent = sessions["upres"].run(given)["heights"]
    smooth = data.bicubic(given["coarse"][:, :, 5:-4, 5:-4])
    noisy = smooth + unfold(given["detail"][:, :, 6:-6, 6:-6], 4) * given["cell"]
    wrong = np.abs(agent - target).mean()
    assert wrong < 0.5 * np.abs(smooth - target).mean()
    assert wrong < 0.5 * np.abs(noisy - target).mean()


@pytest.mark.parametrize("name", AGENTS)
def test_tables_of_errors_are_the_recipe(name):
    """The tables in the training's README state the recipe's errors to three decimals."""
    text = (MODELS.parent / "training" / "README.md").read_text(encoding="utf-8")
    table = text.partition(f"### {name}\n")[2].partition("###")[0]
    for way, found in RECIPE[name]["errors"].items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {way} |")]
        for value in found.values():
            assert f"{value:.3f}" in row


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
