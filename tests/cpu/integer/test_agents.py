"""Tests that the demo's integer agents are close to the float agents and never overflow."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.integer.digest import run_digest
from cml_engine.runtime.node_check import random_words
from demo_game.training import integer
from tests.fixtures.integer.agents import DIGESTS


@pytest.mark.parametrize("name", DIGESTS)
def test_integer_agent_is_close_to_the_float_agent(name):
    graph, floats = cml.load(integer.INTEGER / f"{name}.nnef"), integer.trained_part(name)
    (tile,) = integer.tiles_of(name, 1, 2)
    sample, output = integer.inputs_of(name, tile), integer.OUTPUT[name]
    whole, real = (cml.Session(g, "cpu").run(sample)[output] for g in (graph, floats))
    off = float(np.sqrt(np.mean((whole - real) ** 2)))
    assert 0 < off < 3 * integer.LOST[name]
    # the complete float agent is close to its inner network too
    off = float(np.sqrt(np.mean((real - integer.run_float_agent(name, tile)) ** 2)))
    assert 0 < off < integer.LOST[name]


@pytest.mark.parametrize("name", DIGESTS)
def test_integer_agent_has_the_committed_digest(name):
    graph = cml.load(integer.INTEGER / f"{name}.nnef")
    inputs = random_words(graph, 11)
    assert run_digest(graph, cml.Session(graph, "cpu").run(inputs)) == DIGESTS[name]
