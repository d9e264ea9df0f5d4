"""Computes a map with the network and draws its picture."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine import io
from cml_engine.errors import IntegerRange
from examples.command import run_command
from examples.terrain_diffusion.network import (
    MODEL,
    SHAPES,
    canvas,
    squares,
    terrain,
)
from examples.terrain_diffusion.picture import shaded
from examples.upscale.assets import fetch

OUT = Path(__file__).resolve().parents[2] / "out"


def draw(options: argparse.Namespace) -> None:
    """Computes a map and writes its picture."""
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    io.check_place(options.picture)
    for line in fetch(MODEL):
        print(line)
    session = cml.Session(cml.load(MODEL.path, shapes=SHAPES), options.backend)
    shape = (options.size[0], options.size[1])
    start = time.perf_counter()
    heights = terrain(
        lambda inputs: session.run(inputs)["denoised"], shape, options.seed, options.difficulty
    )
    seconds = time.perf_counter() - start
    count = len(list(squares(*canvas(shape, 0).shape[2:])))
    print(f"{count} squares in {seconds:.2f} s; heights from 0 to {heights.max():.2f} m")
    io.write_outputs({"image": options.picture}, {"image": shaded(heights)})
    print(options.picture)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.terrain_diffusion", description=__doc__)
    parser.add_argument("--seed", type=IntegerRange(0, 1 << 31), default=1, help="of the noise")
    parser.add_argument(
        "--difficulty", type=IntegerRange(1, 100), default=100, help="1 is calm, 100 rough"
    )
    parser.add_argument(
        "--size",
        type=IntegerRange(2, 4096),
        nargs=2,
        default=[320, 320],
        metavar=("HEIGHT", "WIDTH"),
    )
    parser.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--picture", type=Path, default=OUT / "terrain.png")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run_command(lambda: draw(options))


if __name__ == "__main__":
    sys.exit(main())
