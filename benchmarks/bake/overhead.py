"""What a bake costs beside a plain loop that makes and writes the same tiles of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cml_engine.distributed import Layer, Plan, Report, Store, bake, usual_workers
from cml_engine.distributed.store import prepare
from demo_game.bake.planet import layers_of, manifest, models, rules
from demo_game.bake.region import Region
from demo_game.bake.work import PlanetWork
from demo_game.chain import Chain, load_chain
from demo_game.maker import untimed

_SEED = 7


def overhead(folder: Path, tiles: int, counts: Sequence[int]) -> tuple[str, bool]:
    """ms per tile as a table; whether one worker takes no more than 5 % longer than the loop. The
    loop runs before and after: the quicker of the two counts."""
    before = _loop_apart(tiles)
    chain, layers, work = _tiles(tiles)
    plan = Plan(layers, manifest(_region(tiles), chain, _SEED))
    reports = {n: bake(work, str(folder / f"{n}.zarr"), plan, workers=n) for n in counts}
    loop = min(before, _loop_apart(tiles))
    lines = ["| | ms for a tile | beside the loop | ms of work in each |", "|---|--:|--:|--:|",
             f"| a plain loop | {loop:.1f} | | |"]  # fmt: skip
    good = True
    for count, report in reports.items():
        each, busy = 1e3 * report.seconds / tiles, 1e3 * _busy_s(report) / tiles
        more = each * min(count, usual_workers()) / loop - 1
        good = good and (count > 1 or more <= 0.05)
        name = "1 worker" if count == 1 else f"{count} workers"
        lines.append(f"| {name} | {each:.1f} | {100 * more:+.1f} % | {busy:.1f} |")
    return "\n".join(lines), good


def _busy_s(report: Report) -> float:
    return sum(share.busy_s for share in report.workers.values())


def _region(tiles: int) -> Region:
    return Region(0, 8, 0, tiles // 8, 0, 0)


def _tiles(tiles: int) -> tuple[Chain, list[Layer], PlanetWork]:
    chain = load_chain()
    work = PlanetWork(_SEED, None, "cpu", tuple(models(chain).items()), rules())
    return chain, layers_of(_region(tiles), chain), work


def _loop_apart(tiles: int) -> float:
    """In a process with as many threads of NumPy's as a worker has."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "benchmarks.bake", "loop", "--tiles", str(tiles)]
    return float(subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout)


def plain_loop(folder: Path, tiles: int) -> tuple[float, float]:
    """ms to make a tile, and to write it, one after the other, into a store of the same kind."""
    _, layers, work = _tiles(tiles)
    place = str(folder / "loop.zarr")
    prepare(place, layers, {})
    store, maker = Store(place, layers), work.open()
    units = [(layer, unit) for layer in layers for unit in layer.units()]
    spent = [0.0, 0.0]
    for layer, unit in units:
        start = time.perf_counter()
        made = maker.make(layer, unit, untimed).arrays
        written = time.perf_counter()
        store.write(unit, made)
        spent[0] += written - start
        spent[1] += time.perf_counter() - written
    return 1e3 * spent[0] / len(units), 1e3 * spent[1] / len(units)
