"""The trained agents as integer networks: ``python -m demo_game.training.integer``.

Each network is the trained part of an agent. The fixed calculations at its beginning and end
(differences, altitudes, the cubic between coarse samples) are done in integers by the operators
around it (``demo_game/operators/exact.py``). So one network is right for all levels and heights of
the world. Its inputs and outputs are integers times powers of two, which both sides represent
exactly."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.demo_game.agents import tile_input
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.chain import INTEGER, MODELS, POPULATED_LEVELS
from cml_engine.demo_game.training.data import HELD_OUT, rms
from cml_engine.demo_game.training.export import build, replace_model
from cml_engine.demo_game.training.networks import TRAINED
from cml_engine.demo_game.world.exact_noise import HEIGHT_BITS
from cml_engine.demo_game.world.tile import MAX_LEVEL, TileId

#: numbers of tiles: random ones for the ranges, steep ones for the ranges (the steepest of
#: ``_AMONG`` times as many), and ones that the errors are measured on
SEEN, STEEP, HELD = 24, 24, 24
_AMONG = 10
#: the largest errors that quantization may add, in the outputs' units: a part of the agents' errors
LOST = {"upres": 0.05, "texture": 0.01, "population": 0.012}
#: the float agents' errors (recipe.json); quantization errors add to them in quadrature
OWN = {"upres": 0.095, "texture": 0.026, "population": 0.030}
OUTPUT = {name: network.output for name, network in TRAINED.items()}
#: scales of the inputs' and outputs' integers, which the operators around the networks share
ENDS = {
    "upres": {"around": 2**-6, "above": 2**-7, "size": 1.0, "detail": 2**-8, "residual": 2**-12},
    "texture": {"slopes": 2**-7, "features": 2**-7, "albedo": 2**-8},
    "population": {"slopes": 2**-7, "features": 2**-7, "density": 2**-8},
}


def trained_part(name: str) -> cml.Graph:
    """Returns the trained part of the float agent of that name as a network of its own."""
    weights = cml.load(MODELS / f"{name}.nnef").constants
    return build(name, TRAINED[name], weights)


def inputs_of(name: str, tile: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the inputs of the agent's network by name, selected from a tile's tensors."""
    return {end: tile[end] for end in ENDS[name] if end != OUTPUT[name]}


def tiles_of(name: str, count: int, seed: int, among: int = 1) -> list[dict[str, Array]]:
    """Returns the tensors of ``count`` tiles with land, of all levels and many worlds.

    The tiles are the steepest among ``count * among`` random ones.
    """
    rng, upres = np.random.default_rng(seed), cml.Session(trained_part("upres"), "cpu")
    terrain, ground = (open_session(INTEGER / f"{n}.nnef") for n in ("terrain", "ground"))
    levels = POPULATED_LEVELS if name == "population" else MAX_LEVEL + 1
    candidates: list[dict[str, Array]] = []
    while len(candidates) < count * among:
        level = int(rng.integers(0, levels))
        x, z = (int(v) for v in rng.integers(-(2**14) >> level, 2**14 >> level, 2))
        world = int(rng.integers(0, HELD_OUT)) + seed * HELD_OUT
        tile = TileId(level, x, z)
        tensors = {"tile": tile_input(tile, world)}
        tensors |= terrain.run(tensors)
        deepest = -10 * tile.cell_m * (1 << HEIGHT_BITS)
        if tensors["coarse"].max() >= deepest or rng.random() >= 0.9:
            candidates.append(tensors)
    candidates.sort(key=lambda tensors: -float(np.abs(tensors["around"]).max()) * (among > 1))
    del candidates[count:]
    for tensors in candidates if name != "upres" else ():
        tensors |= upres.run(inputs_of("upres", tensors))
        tensors |= ground.run({key: tensors[key] for key in ("coarse", "residual", "tile")})
    return candidates


@cache
def open_session(model: Path) -> cml.Session:
    """Returns the session of a model on the CPU."""
    return cml.Session(cml.load(model), "cpu")


def quantize_agent(name: str) -> tuple[cml.Graph, Any]:
    """Quantizes the trained part of an agent.

    Returns the integer network and the quantizer's report.
    """
    floats = trained_part(name)
    tiles = [*tiles_of(name, SEEN, 0), *tiles_of(name, STEEP, 2, _AMONG)]
    samples = [inputs_of(name, tile) for tile in tiles]
    size = rms([cml.Session(floats, "cpu").run(sample)[OUTPUT[name]] for sample in samples])
    sixteen: str | list[str] = "auto"
    if name == "upres":  # 8 bits would give steps of a tenth of a metre in the finest land
        sums = [node.outputs[0] for node in floats.nodes if node.op in ("conv", "add")]
        sixteen = sums[-2:]
    return cml.quantize(
        floats, samples, sixteen=sixteen, max_error=LOST[name] / size, scales=ENDS[name]
    )


def measure_loss(name: str, integer_graph: cml.Graph) -> float:
    """Returns the integer agent's RMSE against the float agent on unseen worlds.

    It is in the output's units.
    """
    integer_session = cml.Session(integer_graph, "cpu")
    return rms(
        [
            integer_session.run(inputs_of(name, tile))[OUTPUT[name]] - run_float_agent(name, tile)
            for tile in tiles_of(name, HELD, 1)
        ]
    )


def run_float_agent(name: str, tile: Mapping[str, Array]) -> Array:
    """Returns the output of the whole float agent for the land of an integer world's tile.

    For upres it is the residual in cells, as the integer network computes it.
    """
    land = open_session(MODELS / "terrain.nnef").run({"tile": tile["tile"]})
    agent = open_session(MODELS / f"{name}.nnef")
    if name != "upres":
        inputs = {key: land[key] for key in ("moisture", "grain", "cell")}
        return np.asarray(agent.run({**inputs, "heights": tile["heights"]})[OUTPUT[name]])
    coarse = tile["coarse"] / np.float32(1 << HEIGHT_BITS)
    heights = agent.run({"coarse": coarse, "detail": land["detail"], "cell": land["cell"]})[
        "heights"
    ]
    flat = {"coarse": tile["coarse"], "residual": np.zeros_like(heights), "tile": tile["tile"]}
    smooth = open_session(INTEGER / "ground.nnef").run(flat)["heights"]
    return np.asarray((heights - smooth) / land["cell"])


def main() -> None:
    """Makes the integer network of every agent, or of ``--only``, and prints its error."""
    parser = argparse.ArgumentParser("python -m demo_game.training.integer", description=__doc__)
    parser.add_argument("--only", choices=LOST, help="one agent")
    only = parser.parse_args().only
    for name in [only] if only else LOST:
        integer_graph, report = quantize_agent(name)
        replace_model(INTEGER / f"{name}.nnef", integer_graph)
        loss, n_16_bit = (
            measure_loss(name, integer_graph),
            sum(node.bits == 16 for node in report.nodes),
        )
        total = float(np.hypot(loss, OWN[name]) / OWN[name])
        size = sum(f.stat().st_size for f in (INTEGER / f"{name}.nnef").iterdir())
        print(
            f"{name}: {n_16_bit} of {len(report.nodes)} points of 16 bits, own {OWN[name]:.3f}, "
            f"lost {loss:.4f}, together {total:.3f}, {size / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    main()
