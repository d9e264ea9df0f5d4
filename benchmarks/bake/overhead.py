"""What a bake costs beside a plain loop that makes and writes the same tiles of the demo."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bake.cluster import processor_s
from cml_engine.distributed import Layer, Plan, Store, bake
from cml_engine.distributed.cluster import connected
from cml_engine.distributed.store import prepare
from demo_game.bake.planet import layers_of, manifest, models, rules
from demo_game.bake.region import Region
from demo_game.bake.work import PlanetWork
from demo_game.chain import Chain, load_chain
from demo_game.maker import untimed

_SEED = 7


@dataclass(frozen=True)
class Taken:
    """ms for a tile: from begin to end, and of a processor in all processes together."""

    elapsed: float
    processor: float


def overhead(folder: Path, tiles: int, counts: Sequence[int]) -> tuple[str, bool]:
    """ms per tile as a table; whether one worker takes no more than 5 % longer than the loop. The
    loop runs before and after: the quicker of the two counts."""
    before = _loop_apart(tiles)
    found = {n: _baked(folder / f"{n}.zarr", tiles, n) for n in counts}
    loop = min(before, _loop_apart(tiles), key=lambda taken: taken.elapsed)
    rows = {"a plain loop": loop}
    rows |= {f"{n} worker{'s' * (n > 1)}": taken for n, taken in found.items()}
    lines = ["| | ms for a tile | beside the loop | ms of a processor for a tile |",
             "|---|--:|--:|--:|"]  # fmt: skip
    for name, taken in rows.items():
        more = f"{100 * (taken.elapsed / loop.elapsed - 1):+.1f} %"
        lines.append(f"| {name} | {taken.elapsed:.1f} | {more} | {taken.processor:.1f} |")
    one = found.get(1, loop)
    return "\n".join(lines), one.elapsed <= 1.05 * loop.elapsed


def _baked(place: Path, tiles: int, workers: int) -> Taken:
    chain, layers, work = _tiles(tiles)
    plan = Plan(layers, manifest(_region(tiles), chain, _SEED))
    with connected(workers=workers) as (client, _):
        client.run(_ready, work)
        before = _processor(client)
        report = bake(work, str(place), plan, client=client)
        print(report, file=sys.stderr)
        return Taken(1e3 * report.seconds / tiles, 1e3 * (_processor(client) - before) / tiles)


def _ready(work: PlanetWork) -> None:
    """What a worker does once is no part of a tile."""
    from cml_engine.distributed.worker import _maker

    _maker(work.key, pickle.dumps(work))


def _processor(client: Any) -> float:
    """Seconds, of the client with its scheduler and of the workers."""
    return processor_s() + float(sum(client.run(processor_s).values()))


def _region(tiles: int) -> Region:
    return Region(0, 8, 0, tiles // 8, 0, 0)


def _tiles(tiles: int) -> tuple[Chain, list[Layer], PlanetWork]:
    chain = load_chain()
    work = PlanetWork(_SEED, None, "cpu", tuple(models(chain).items()), rules())
    return chain, layers_of(_region(tiles), chain), work


def _loop_apart(tiles: int) -> Taken:
    """In a process with as many threads of NumPy's as a worker has."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "benchmarks.bake", "loop", "--tiles", str(tiles)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return Taken(*map(float, done.stdout.split()))


def plain_loop(folder: Path, tiles: int) -> tuple[float, float, float]:
    """ms to make a tile, to write it into a store of the same kind, and of a processor for both:
    one tile after the other."""
    _, layers, work = _tiles(tiles)
    place = str(folder / "loop.zarr")
    prepare(place, layers, {})
    store, maker = Store(place, layers), work.open()
    units = [(layer, unit) for layer in layers for unit in layer.units()]
    spent, before = [0.0, 0.0], processor_s()
    for layer, unit in units:
        start = time.perf_counter()
        made = maker.make(layer, unit, untimed).arrays
        written = time.perf_counter()
        store.write(unit, made)
        spent[0] += written - start
        spent[1] += time.perf_counter() - written
    processor = processor_s() - before
    each = 1e3 / len(units)
    return each * spent[0], each * spent[1], each * processor
