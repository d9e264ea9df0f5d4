"""Runs ``python -m demo_game.bake --region X0:X1,Z0:Z1 --levels A:B -o planet.zarr``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cml_engine.demo_game.exit_codes import exit_code_of
from cml_engine.distributed import (
    Report,
    StorePlan,
    bake,
    default_workers,
    need_extra,
    show_progress,
)
from cml_engine.errors import FloatRange, IntegerRange
from cml_engine.io import write_atomically

SEEDS = IntegerRange(0, 2**31 - 1)
BLOCKS = IntegerRange(1, 64)
WORKERS = IntegerRange(1, 100_000)
PRICE = FloatRange(0.0001, 1_000_000)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    command_line = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Make a part of the demo's world before the game, on the cores of this machine "
        "or on a cluster. The same command goes on where it was interrupted.",
    )
    add = command_line.add_argument
    add("--region", required=True, metavar="X0:X1,Z0:Z1", help="tiles of the finest "
        "level, X1 and Z1 not included")  # fmt: skip
    add("--levels", required=True, metavar="A:B", help="finest and coarsest level, "
        "both included; each level's tiles are twice as wide")  # fmt: skip
    add("-o", "--output", required=True, metavar="PLANET.zarr")
    add("--block", type=BLOCKS, default=1, metavar="N", help="N x N tiles are one "
        "task and one chunk: for more than some dozens of workers")  # fmt: skip
    add("--seed", type=SEEDS, default=7, help="which world (default 7)")
    add("--integer", action="store_true", help="the world that is the same on every "
        "machine")  # fmt: skip
    add("--models", type=Path, help="a folder with upres.nnef, texture.nnef or "
        "population.nnef to take instead of ours")  # fmt: skip
    add("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    add("--scheduler", metavar="ADDRESS", help="a cluster's: tcp://HOST:8786")
    add("--workers", type=WORKERS, metavar="N", help="processes of this machine")
    add("--no-verify", action="store_true", help="do not look at the checksums of "
        "what is there")  # fmt: skip
    add("--picture", type=Path, metavar="FILE.png", help="the region from above "
        "(default: beside the store)")  # fmt: skip
    add("--price", type=PRICE, help="of one worker for an hour, for the report")
    add("--report", type=Path, metavar="FILE.json")
    add("--trace", type=Path, metavar="FILE.json", help="when each worker made what, "
        "for ui.perfetto.dev")  # fmt: skip
    return command_line


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(_join_region_option(sys.argv[1:] if argv is None else argv))
    return exit_code_of(lambda: run(options))


def _join_region_option(arguments: Sequence[str]) -> list[str]:
    """Returns the command line's words with ``--region`` and its value joined by ``=``.

    Otherwise argparse would read ``-4:4`` as an option.
    """
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--region":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def run(options: argparse.Namespace) -> int:
    """Bakes the region, prints the report and writes a map of the region; returns 0.

    Raises :class:`cml.InputError` after the map if tiles were set aside.
    """
    need_extra()
    from cml_engine.demo_game.bake.picture import write_picture
    from cml_engine.demo_game.bake.planet import Planet, layers_of, manifest, models, rules
    from cml_engine.demo_game.bake.region import region_of
    from cml_engine.demo_game.bake.work import PlanetWork, cooked_networks
    from cml_engine.demo_game.chain import load_chain

    region = region_of(options.region, options.levels)
    models_folder = options.models.absolute() if options.models else None
    chain = load_chain(models_folder, integer=options.integer)
    layers = layers_of(region, chain, options.block)
    plan = StorePlan(layers, manifest(region, chain, options.seed, options.block))
    model_digests = tuple(models(chain).items())
    work = PlanetWork(
        options.seed,
        models_folder,
        options.backend,
        model_digests,
        rules(),
        options.integer,
        {} if options.integer else cooked_networks(chain, options.backend),
    )
    workers = options.workers
    if workers is None and options.scheduler is None:
        workers = default_workers(options.backend)
    with show_progress("tiles") as progress:
        report = bake(
            work,
            options.output,
            plan,
            scheduler=options.scheduler,
            workers=workers,
            verify=not options.no_verify,
            title=f"a part of the demo's world, seed {options.seed}",
            price=options.price,
            progress=progress,
            dashboard=True,
            trace=options.trace,
        )
    print(report)
    write_report(options.report, report)
    planet = Planet(Path(options.output))
    planet.open(chain, options.seed)
    path = options.picture or Path(options.output).with_suffix(".png")
    start = time.perf_counter()
    width, height = write_picture(planet, path)
    spent = time.perf_counter() - start
    print(f"picture: {path}, {width}x{height}, {spent:.1f} s", file=sys.stderr)
    report.check()
    return 0


def write_report(path: Path | None, report: Report) -> None:
    """Writes the report as JSON if a path was given."""
    if path is not None:
        write_atomically(path, json.dumps(report.to_json(), indent=2))


if __name__ == "__main__":
    sys.exit(main())
