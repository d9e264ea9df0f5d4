"""The trained agents as integer networks: ``python -m demo_game.training.integer``.

They compute in cells instead of metres, so that one network is right for all levels of the world:
heights come and go in cells, the altitude in metres is an input of its own, and the size of a cell
is its logarithm.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from demo_game.agents import tile_input
from demo_game.chain import POPULATED_LEVELS, load_chain
from demo_game.training.data import HELD_OUT
from demo_game.world.tile import MAX_LEVEL, TileId

Array = np.ndarray[Any, Any]
MODELS = Path(__file__).parents[1] / "models"
INTEGER = MODELS / "integer"
#: of how many tiles the ranges are, and how many more the errors are measured on
SEEN, HELD = 24, 24
#: what may be lost, in the outputs' units: a small part of the agents' own errors
LOST = {"upres": 0.05, "texture": 0.01, "population": 0.012}
#: the agents' own errors (recipe.json): what they lose adds to these by squares
OWN = {"upres": 0.095, "texture": 0.026, "population": 0.030}
OUTPUT = {"upres": "heights", "texture": "albedo", "population": "density"}


def in_cells(name: str) -> cml.Graph:
    """The agent of floats, with heights in cells."""
    text = (MODELS / f"{name}.nnef" / "graph.nnef").read_text()
    tensors = {}
    for line in re.findall(r"(\w+) = variable", text):
        label = re.search(rf"{line} = variable.*label = '([^']+)'", text)
        assert label is not None
        tensors[label[1]] = cml.load(MODELS / f"{name}.nnef").constants[line]
    for before, after in _CHANGES[name == "upres"]:
        text, count = re.subn(before, after, text, flags=re.MULTILINE)
        assert count, before
    return cml.load(cml.MemoryModel(text, tensors, name=name))


_UPRES = (
    (r"coarse, detail, cell\)", "coarse, detail, level)"),
    (r"    cell = external", "    level = external"),
    (r"^    t1 = .*\n", ""),
    (r"div\(differences_conv, t1\)", "div(differences_conv, 4.0)"),
    (r"^    t3 = .*\n", ""),
    (r"div\(coarse, t3\)", "div(coarse, 16.0)"),
    (r"^    t6 = .*\n", ""),
    (r"add\(t6, -5.0\)", "add(level, -5.0)"),
    (r"^    t20 = .*\n", ""),
    (r"add\(t20, bicubic_conv\)", "add(t18, bicubic_conv)"),
)
_SURFACE = (
    (r"\(heights, moisture, grain, cell\)", "(heights, altitudes, moisture, grain)"),
    (r"    cell = external", "    altitudes = external"),
    (r"(altitudes = external<scalar>\(shape = )\[1, 1, 1, 1\]", r"\1[1, 1, 96, 96]"),
    (r"^    t1 = .*\n", ""),
    (r"\bt1\b", "differences_conv"),
    (r"^    t3 = .*\n", ""),
    (r"\bt3\b", "t2"),
    (
        r"altitudes_conv = conv\(t2",
        "t0 = slice(altitudes, axes = [2, 3], begin = [14, 14], end = [82, 82]);\n"
        "    altitudes_conv = conv(t0",
    ),
)
_CHANGES = {True: _UPRES, False: _SURFACE}


def cells_of(name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the agent in cells takes, of what the agent in metres does."""
    cell = inputs["cell"]
    if name == "upres":
        return {"coarse": inputs["coarse"] / cell, "detail": inputs["detail"],
                "level": np.log2(cell)}  # fmt: skip
    return {"heights": inputs["heights"] / cell, "altitudes": inputs["heights"],
            "moisture": inputs["moisture"], "grain": inputs["grain"]}  # fmt: skip


def tiles_of(name: str, count: int, seed: int) -> list[dict[str, Array]]:
    """What the game gives the agent for tiles with land, of all levels and many worlds."""
    rng = np.random.default_rng(seed)
    chain = load_chain()
    sessions = {n: cml.Session(chain.graphs[n], "cpu") for n in ("terrain", "upres")}
    levels = POPULATED_LEVELS if name == "population" else MAX_LEVEL + 1
    found: list[dict[str, Array]] = []
    while len(found) < count:
        level = int(rng.integers(0, levels))
        x, z = (int(v) for v in rng.integers(-(2**14) >> level, 2**14 >> level, 2))
        world = int(rng.integers(0, HELD_OUT)) + seed * HELD_OUT
        made = sessions["terrain"].run({"tile": tile_input(TileId(level, x, z), world)})
        if made["coarse"].max() < -10 * made["cell"] and rng.random() < 0.9:
            continue
        made |= sessions["upres"].run({n: made[n] for n in ("coarse", "detail", "cell")})
        found.append(made)
    return found


def quantized(name: str) -> tuple[cml.Graph, Any]:
    """The integer agent, and its report."""
    floats = in_cells(name)
    samples = [cells_of(name, tile) for tile in tiles_of(name, SEEN, 0)]
    size = _rms([cml.Session(floats, "cpu").run(sample)[OUTPUT[name]] for sample in samples])
    return cml.quantize(floats, samples, max_error=LOST[name] / size)


def lost(name: str, made: cml.Graph) -> float:
    """What the integer agent loses on worlds that nobody has seen, in the output's units."""
    whole, floats = cml.Session(made, "cpu"), cml.Session(in_cells(name), "cpu")
    off = []
    for tile in tiles_of(name, HELD, 1):
        sample = cells_of(name, tile)
        off.append(whole.run(sample)[OUTPUT[name]] - floats.run(sample)[OUTPUT[name]])
    return _rms(off)


def _rms(values: list[Array]) -> float:
    return float(np.sqrt(np.mean([np.mean(np.square(v, dtype=np.float64)) for v in values])))


def main() -> None:
    """Make all of them, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LOST, help="one agent")
    parser.add_argument("--report", action="store_true", help="every rounding point")
    a = parser.parse_args()
    for name in [a.only] if a.only else LOST:
        made, report = quantized(name)
        cml.save(made, INTEGER / f"{name}.nnef", overwrite=True)
        if a.report:
            pass
        off, _wide = lost(name, made), sum(node.bits == 16 for node in report.nodes)
        float(np.hypot(off, OWN[name]) / OWN[name])
        sum(f.stat().st_size for f in (INTEGER / f"{name}.nnef").iterdir())


if __name__ == "__main__":
    main()
