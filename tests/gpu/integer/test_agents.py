"""The demo's agents as integer networks: what is committed gives the same digest everywhere."""

import pytest

import cml_engine as cml
from cml_engine.integer.check import check_bits, random_words
from cml_engine.integer.digest import run_digest
from demo_game.training.integer import INTEGER
from tests.fixtures.integer.agents import DIGESTS

LONG = pytest.mark.long


@pytest.mark.parametrize(
    "name", ["population", *(pytest.param(n, marks=LONG) for n in ("upres", "texture"))]
)
def test_no_bit_differs_from_numpy(name, gpu):
    graph = cml.load(INTEGER / f"{name}.nnef")
    inputs = random_words(graph, 11)
    found = check_bits(graph, gpu, inputs)
    assert found.ok, found
    assert run_digest(graph, cml.Session(graph, gpu).run(inputs)) == DIGESTS[name]
