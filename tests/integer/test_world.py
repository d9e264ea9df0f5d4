"""Tests of the demo's integer agents and world: errors, committed tiles, their hash, lockstep."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.demo_game.chain import MODELS, load_chain
from cml_engine.demo_game.lockstep.__main__ import address
from cml_engine.demo_game.lockstep.connection import Connection
from cml_engine.demo_game.lockstep.play import Player, play, tile_at
from cml_engine.demo_game.reporting.digest import (
    compare_worlds,
    rules_of,
    tile_digest,
    world_hash,
    world_on_cpu,
)
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.training import integer
from cml_engine.demo_game.world.tile import TileId
from cml_engine.integer import run_digest
from cml_engine.runtime.node_check import random_words
from cml_engine.tools.selftest.networks import integer_digests
from tests.fixtures.integer.world import TILES

DIGESTS = integer_digests()


@pytest.fixture(scope="module")
def maker():
    return TileMaker(load_chain(integer=True), "cpu")


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_integer_tile_has_the_committed_digest(maker, tile):
    made = maker.make(tile, 7)
    assert tile_digest(maker.chain, tile, made.__getitem__) == TILES[tile]
    # the renderer's tensors hold the same numbers
    assert np.array_equal(made["height"] * 1024, made["ground"][..., 16:80, 16:80])
    if tile.level < 2:
        instances, draw = made["instances"], int(made["draw"][0, 1])
        assert np.array_equal(instances * [4096, 4096, 1024, 1], made["plants"])
        assert draw == np.count_nonzero(made["plants"].any(-1))


def test_the_worlds_hash_is_of_rules_models_and_seed():
    chain, tiles = load_chain(integer=True), {TileId(4, -1, 2): "ab"}
    rules = rules_of(chain)
    assert rules[:2] == ("integer rule 1", "world 1") and len(rules) == 2 + 7
    other = _turned(chain, "texture")
    hashes = {world_hash(*given) for given in (
        (chain, 7, tiles), (chain, 8, tiles), (other, 7, tiles), (chain, 7, {}))}  # fmt: skip
    assert len(hashes) == 4 and all(found.startswith("sha256:") for found in hashes)
    tile = next(iter(TILES))
    assert world_on_cpu(chain, 7, [tile]) == world_hash(chain, 7, {tile: TILES[tile]})
    said, one = compare_worlds({"sliced": "a", "CPU": "b"})
    assert not one and "WORLDS DIFFER" in said and compare_worlds({"off": "a", "CPU": "a"})[1]


def _turned(chain, name):
    """Returns a copy of the chain in which one weight of one network is changed by one step."""
    graph = chain.graphs[name]
    label = next(label for label in graph.constants if label.endswith("_filter"))
    weights = graph.constants[label].copy()
    weights.flat[0] -= 1 if weights.flat[0] > 0 else -1
    turned = graph.with_(constants={**graph.constants, label: weights})
    return replace(chain, graphs={**chain.graphs, name: turned})


class Faulty:
    """A tile maker that adds 1 to one element of a tensor, from the tile number ``at`` on."""

    def __init__(self, maker, tensor, at):
        self.maker, self.chain, self.tensor, self.left = maker, maker.chain, tensor, at

    def make(self, tile, seed, *, names, computed):
        made = self.maker.make(tile, seed, names=names, computed=computed)
        if self.tensor in made and self.tensor not in computed:
            self.left -= 1
            if self.left < 0:
                made[self.tensor].flat[100] += 1
        return made


def _played(here, there, ticks, first=0):
    """Plays lockstep between two players in this process.

    Returns the result or error message of each.
    """
    ends = [Connection(end) for end in socket.socketpair()]

    def one(player, end):
        try:
            return play(player, end, lambda tick: tick + 1 >= first + ticks, first)
        except cml.CmlError as error:
            return str(error)
        finally:
            end.close()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (here, there), ends))


def test_lockstep_players_agree(maker):
    players = [Player(maker, name, 7) for name in ("one", "two")]
    one, two = _played(*players, 2, first=3)
    assert (one.ticks, one.difference, one.other) == (2, "", "two") and one.state == two.state
    # levels 3 and 4 have no plants: 5 sessions each, none for drawing only
    assert one.stages == 10


@pytest.mark.parametrize("tensor,stage", [("albedo", "texture"), ("ground", "ground")])
def test_lockstep_names_the_first_difference(maker, tensor, stage):
    faulty = Player(Faulty(maker, tensor, 1), "CPU", 7)
    for found in _played(Player(maker, "GPU", 7), faulty, 4, first=3):
        assert found.ticks == 1
        assert f"tick 4, tile {tile_at(7, 4)}: '{stage}' is the first" in found.difference
        assert "(GPU)" in found.difference and "--first 4 --ticks 1" in found.difference


def test_lockstep_refuses_other_seed_or_weights(maker):
    here = Player(maker, "here", 7)
    for found in _played(here, Player(maker, "there", 8), 1):
        assert "has another seed: " in found
    turned = replace(here, maker=type("Maker", (), {"chain": _turned(maker.chain, "texture")}))
    for found in _played(here, turned, 1):
        assert "has another network 'texture'" in found


@pytest.mark.parametrize(
    "line,message",
    [
        (b"GET / HTTP/1.1\r\n", "expected a line of JSON"),
        (b"", "the other player is gone"),
        (b'{"seed": 7}\n', "another integer rule: 1 here, None there"),
    ],
)
def test_lockstep_refuses_invalid_peers(maker, line, message):
    end, other = socket.socketpair()
    other.sendall(line)
    other.shutdown(socket.SHUT_WR)
    connection = Connection(end)
    with pytest.raises(cml.CmlError, match=message):
        play(Player(maker, "here", 7), connection, lambda tick: True)
    connection.close()
    other.close()


def test_float_and_integer_networks_are_not_mixed(tmp_path, capsys):
    with pytest.raises(cml.ModelError, match="is a network of floats, which --integer cannot"):
        load_chain(MODELS, integer=True)
    with pytest.raises(cml.ModelError, match="is an integer network: add --integer"):
        load_chain(MODELS / "integer")
    with pytest.raises(cml.InputError, match="--texture-upres is a network of floats"):
        load_chain(enlarge=Path("up.nnef"), integer=True)
    with pytest.raises(cml.InputError, match="found none"):
        load_chain(tmp_path, integer=True)
    with pytest.raises(Exception, match="wanted HOST:PORT or a port, got 'there'"):
        address("there")


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
