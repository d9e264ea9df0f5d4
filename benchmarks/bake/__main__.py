"""What a bake costs besides its tiles, as tables for ``docs/bake.md``.

``overhead``: a plain loop beside 1, 2 and 4 workers, per tile. ``memory``: what every process
holds from 1 000 to 20 000 small tiles. ``schedule``: 1 000 workers and ten million tiles on paper,
by what a task and a tile take here. Exit code 1 where a bound is not kept (5 % of either)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bake.costs import measured
from benchmarks.bake.memory import memory
from benchmarks.bake.overhead import overhead
from benchmarks.bake.schedule import paper


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bake", description=__doc__)
    parser.add_argument("what", choices=("overhead", "memory", "schedule"))
    parser.add_argument("--tiles", type=int, default=0, help="of the demo, a multiple of 8 (128); "
                        "of the memory's end (20000)")  # fmt: skip
    parser.add_argument("--tasks", type=int, default=2000, help="of the schedule's costs")
    parser.add_argument("--rounds", type=int, default=5, help="of the loop and workers (5)")
    parser.add_argument("--workers", default="1,2,4")
    options = parser.parse_args(argv)
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "overhead":
            counts = [int(n) for n in options.workers.split(",")]
            said, good = overhead(folder, options.tiles or 128, counts, options.rounds)
        elif options.what == "memory":
            said, good = memory(folder, options.tiles or 20_000)
        else:
            said = paper(measured(folder, options.tasks, options.tiles or 64))
        print(said, flush=True)  # before the stores are deleted, which takes a while
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
