"""Tests that the demo's committed integer agents have the same digest on every device."""

import pytest

import cml_engine as cml
from cml_engine.compiler.integer.digest import run_digest
from cml_engine.runtime.integer_check import check_bits, random_words
from demo_game.chain import load_chain
from demo_game.maker import TileMaker
from demo_game.reporting.digest import tile_digest
from demo_game.training.integer import INTEGER
from tests.fixtures.integer.agents import DIGESTS
from tests.fixtures.integer.world import TILES
from tests.gpu.integer.digests import on_driver, swiftshader

LONG = pytest.mark.long
ICD = swiftshader()


@pytest.mark.parametrize(
    "name", ["population", *(pytest.param(n, marks=LONG) for n in ("upres", "texture"))]
)
def test_no_bit_differs_from_numpy(name, gpu):
    graph = cml.load(INTEGER / f"{name}.nnef")
    inputs = random_words(graph, 11)
    found = check_bits(graph, gpu, inputs)
    assert found.ok, found
    assert run_digest(graph, cml.Session(graph, gpu).run(inputs)) == DIGESTS[name]


@LONG
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_of_the_demos_world_are_those_that_were_committed(tile, makers):
    chain, maker = makers
    assert tile_digest(chain, tile, maker.make(tile, 7).__getitem__) == TILES[tile]


@pytest.fixture(scope="module")
def makers(gpu):
    chain = load_chain(integer=True)
    return chain, TileMaker(chain, gpu)


@LONG
@pytest.mark.skipif(ICD is None, reason="no SwiftShader: it comes with Chromium")
def test_another_driver_gives_the_same():
    """SwiftShader, in its own process, gives the same digest.

    ``python -m tests.gpu.integer.digests`` checks all agents.
    """
    device, found = on_driver(ICD, ["population"])
    assert "SwiftShader" in device and found == {"population": DIGESTS["population"]}
