"""``write`` writes the generator as an NNEF folder; ``run`` computes a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine import io
from examples.command import run_command
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters

OUT = Path(__file__).resolve().parents[2] / "out"


def write(options: argparse.Namespace) -> None:
    """Writes the network with random parameters as a folder."""
    config = Config(options.resolution, channel_base=options.channel_base)
    graph = build(config, random_parameters(config, options.seed))
    cml.save(graph, options.model, overwrite=options.overwrite)
    values = sum(array.size for array in graph.constants.values())
    print(f"{options.model}: {len(graph.nodes)} operators, {values / 1e6:.1f} million weights")


def run(options: argparse.Namespace) -> None:
    """Computes a picture from a random latent vector."""
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    io.check_place(options.picture)
    session = cml.Session(cml.load(options.model))
    z = np.random.default_rng(1).standard_normal(session.inputs["z"].shape, np.float32)
    picture = np.clip(session.run({"z": z})["image"] / 2 + 0.5, 0, 1)
    io.write_outputs({"image": options.picture}, {"image": picture})
    print(f"{options.picture}: {picture.shape[3]} x {picture.shape[2]} pixels")


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
    running.add_argument("--picture", type=Path, default=OUT / "stylegan2.png")
    running.set_defaults(command=run)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run_command(lambda: options.command(options))


if __name__ == "__main__":
    sys.exit(main())
