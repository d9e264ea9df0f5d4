"""``write`` writes the generator as an NNEF folder; ``run`` computes a picture and times it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine.io import arrays as array_files
from examples.measure import at_once, in_slices
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Array, Config, random_parameters

OUT = Path(__file__).resolve().parents[2] / "out"
_RANK_ROWS = 20


def write(options: argparse.Namespace) -> None:
    """Writes the network with random parameters as a folder."""
    config = Config(options.resolution, channel_base=options.channel_base)
    graph = build(config, random_parameters(config, options.seed))
    cml.save(graph, options.model, overwrite=options.overwrite)
    values = sum(array.size for array in graph.constants.values())
    print(f"{options.model}: {len(graph.nodes)} operators, {values / 1e6:.1f} million weights")


def run(options: argparse.Namespace) -> None:
    """Computes a picture at once and in slices, and prints the time of each operator."""
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    array_files.check_place(options.picture)
    start = time.perf_counter()
    graph = cml.load(options.model)
    loaded = time.perf_counter()
    gpu = cml.Gpu()
    opened = time.perf_counter()
    session = cml.Session(graph, gpu)
    print(
        f"load {loaded - start:.2f} s; compile, upload {time.perf_counter() - opened:.2f} s; "
        f"{gpu.pipelines_built} pipelines on {gpu.name}"
    )
    z = latent(session, options.latent)
    image, seconds = at_once(session, {"z": z})
    picture = np.clip(image / 2 + 0.5, 0, 1)
    array_files.write_outputs({"image": options.picture}, {"image": picture})
    print(f"{options.picture}: {picture.shape[3]} x {picture.shape[2]} pixels")
    print(f"at once    {seconds:.2f} s, NumPy to NumPy")
    sliced = in_slices(gpu, session, {"z": z}, options.budget_ms)
    print(f"in slices  {sliced} of {options.budget_ms:g} ms")
    if not np.array_equal(sliced.result, image):
        raise cml.CmlError("the run in slices gave other bits than the run at once")
    print("           the same bits\n")
    report = session.rank({"z": z}, runs=options.runs)
    print(replace(report, rows=report.rows[:_RANK_ROWS]))


def latent(session: cml.Session, seed: int) -> Array:
    """Returns a normally distributed latent vector in the shape of the network's input ``z``."""
    shape = session.inputs["z"].shape
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.stylegan2", description=__doc__)
    commands = parser.add_subparsers(required=True)
    writing = commands.add_parser("write", help=write.__doc__)
    writing.add_argument("model", type=Path, help="folder to make")
    writing.add_argument("--resolution", type=int, default=1024, help="8, 16, … 1024")
    writing.add_argument("--seed", type=int, default=1, help="of the parameters")
    writing.add_argument("--channel-base", type=int, default=32768, help="less makes it smaller")
    writing.add_argument("--overwrite", action="store_true")
    writing.set_defaults(command=write)
    running = commands.add_parser("run", help=run.__doc__)
    running.add_argument("model", type=Path, help="what write has made")
    running.add_argument("--latent", type=int, default=1, help="seed of the latent vector")
    running.add_argument("--picture", type=Path, default=OUT / "stylegan2.png")
    running.add_argument("--budget-ms", type=float, default=8.0, help="of a frame")
    running.add_argument("--runs", type=int, default=3, help="of the rank table")
    running.set_defaults(command=run)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        options.command(options)
    except cml.CmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
