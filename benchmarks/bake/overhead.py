"""What a bake costs beside a plain loop that makes and writes the same tiles of the demo.

The plain loop is one process without Dask: it makes a tile, writes it, and makes the next. It
leaves the same store as a bake: the same arrays in the same chunks, with their checksums and
records, by the same writer; and it keeps its memory as a worker does. Neither's time has its start
in it: processes, sessions and the store are there, and a first run has warmed them up. No store is
deleted before the end: for half a minute after that ext4 takes much longer to make files.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bake.cluster import processor_s
from cml_engine.distributed import Layer, Store, StorePlan, bake
from cml_engine.distributed.cluster import connected
from cml_engine.distributed.storing.creating import prepare
from cml_engine.distributed.worker import _keep_memory, _maker
from demo_game.bake.planet import layers_of, manifest, models, rules
from demo_game.bake.region import Region
from demo_game.bake.work import PlanetMaker, PlanetWork
from demo_game.chain import Chain, load_chain
from demo_game.maker import untimed

#: how much longer one worker may take than the loop
MOST = 0.05
_SEED = 7
_WARM_TILES = 16


@dataclass(frozen=True)
class Taken:
    """ms for a tile: from begin to end, and of a processor in all processes together."""

    elapsed: float
    processor: float


@dataclass(frozen=True)
class Pair:
    """The loop, and workers right after it."""

    loop: Taken
    baked: Taken

    @property
    def more(self) -> float:
        """Of the loop's time, that the workers take longer."""
        return self.baked.elapsed / self.loop.elapsed - 1


def overhead(folder: Path, tiles: int, counts: Sequence[int], rounds: int) -> tuple[str, bool]:
    """ms per tile as a table, the median of some rounds; whether one worker takes no more than
    :data:`MOST` longer than the loop."""
    with _loop_process() as loop:
        found = {n: _pairs(folder, tiles, n, rounds, loop) for n in counts}
    lines = ["| | ms for a tile | beside the loop | ms of a processor for a tile |",
             "|---|--:|--:|--:|"]  # fmt: skip
    loops = [pair.loop for pairs in found.values() for pair in pairs]
    lines.append(f"| a plain loop | {_ms(loops)} | | {_processor_ms(loops)} |")
    for n, pairs in found.items():
        baked = [pair.baked for pair in pairs]
        more = sorted(100 * pair.more for pair in pairs)
        lines.append(f"| {n} worker{'s' * (n > 1)} | {_ms(baked)} | {median(more):+.1f} % "
                     f"({more[0]:+.1f} to {more[-1]:+.1f}) | {_processor_ms(baked)} |")  # fmt: skip
    one = [pair.more for pair in found.get(1, [])]
    return "\n".join(lines), not one or median(one) <= MOST


def _ms(taken: Sequence[Taken]) -> str:
    ms = sorted(each.elapsed for each in taken)
    return f"{median(ms):.1f} ({ms[0]:.1f} to {ms[-1]:.1f})"


def _processor_ms(taken: Sequence[Taken]) -> str:
    return f"{median(each.processor for each in taken):.1f}"


def _pairs(
    folder: Path, tiles: int, workers: int, rounds: int, loop: ProcessPoolExecutor
) -> list[Pair]:
    """Loop, workers, loop, workers, and so on."""
    found = []
    with connected(workers=workers) as (client, _):
        client.run(_ready, _tiles(_WARM_TILES)[2])
        _baked(folder / f"{workers} warm.zarr", _WARM_TILES, client)
        for number in range(rounds):
            places = [folder / f"{workers} {number} {name}.zarr" for name in ("loop", "baked")]
            making, writing, processor = loop.submit(plain_loop, places[0], tiles).result()
            baked = _baked(places[1], tiles, client)
            found.append(Pair(Taken(making + writing, processor), baked))
            print(f"{workers}: loop {making:.2f} + {writing:.2f}, {baked}", file=sys.stderr)
    return found


def _baked(place: Path, tiles: int, client: Any) -> Taken:
    chain, layers, work = _tiles(tiles)
    plan = StorePlan(layers, manifest(_region(tiles), chain, _SEED))
    before = _processor(client)
    report = bake(work, str(place), plan, client=client)
    spent = _processor(client) - before
    return Taken(1e3 * report.seconds / tiles, 1e3 * spent / tiles)


def _ready(work: PlanetWork) -> None:
    """What a worker does once is no part of a tile."""
    _maker(work.key, pickle.dumps(work))


def _processor(client: Any) -> float:
    """Seconds, of the client with its scheduler and of the workers."""
    return processor_s() + float(sum(client.run(processor_s).values()))


def _region(tiles: int) -> Region:
    return Region(0, 8, 0, tiles // 8, 0, 0)


@cache
def _tiles(tiles: int) -> tuple[Chain, list[Layer], PlanetWork]:
    chain = load_chain()
    work = PlanetWork(_SEED, None, "cpu", tuple(models(chain).items()), rules())
    return chain, layers_of(_region(tiles), chain), work


@contextmanager
def _loop_process() -> Iterator[ProcessPoolExecutor]:
    """A process with as many threads of NumPy's as a worker has."""
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_keep_memory) as process:
        yield process


@cache
def _loops_maker() -> PlanetMaker:
    return _tiles(_WARM_TILES)[2].open()


def plain_loop(place: Path, tiles: int) -> tuple[float, float, float]:
    """ms to make a tile, to write it, and of a processor for both."""
    _, layers, _ = _tiles(tiles)
    maker = _loops_maker()
    prepare(str(place), layers, {})
    store = Store(str(place), layers)
    units = [(layer, unit) for layer in layers for unit in layer.units()]
    for layer, unit in units[:_WARM_TILES]:
        maker.make(layer, unit, untimed)
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
