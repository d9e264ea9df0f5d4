"""Enlarges a photo with a network in ncnn's files, and ranks its operators."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import cml_engine as cml
from cml_engine import io
from examples.command import run_command
from examples.upscale import assets, pictures

OUT = Path(__file__).resolve().parents[2] / "out"


def show(before: Image.Image, after: Image.Image, out: Path) -> None:
    """Writes ``before``, and both pictures side by side, to the folder ``out``.

    Prints the paths of all pictures.
    """
    titles = ("before: bicubic", "after: network")
    before.save(out / "before.png")
    pictures.side_by_side(before, after, titles).save(out / "upscale.png")
    for name in ("before.png", "after.png", "upscale.png"):
        print(f"  {out / name}")


def upscale(options: argparse.Namespace) -> None:
    """Downloads, runs and ranks the network, and writes the pictures."""
    for line in assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO):
        print(line)
    size, out = (options.width, options.height), options.out
    out.mkdir(parents=True, exist_ok=True)
    small = pictures.small_photo(assets.PHOTO.path, size)
    small.save(out / "photo.png")
    graph = cml.load(assets.NETWORK_PARAM.path, shapes=(1, 3, size[1], size[0]))
    session = cml.Session(graph, options.backend)
    (source,), (target,) = graph.inputs, graph.outputs
    inputs = {source: io.read(out / "photo.png", source, graph.facts[source])}
    start = time.perf_counter()
    enlarged = session.run(inputs)
    seconds = time.perf_counter() - start
    io.write_outputs({target: out / "after.png"}, enlarged)
    before = pictures.enlarge(small)
    print(f"{size[0]}x{size[1]} -> {before.width}x{before.height} in {seconds:.2f} s")
    print(session.rank(inputs))
    with Image.open(out / "after.png") as after:
        show(before, after, out)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tasks.py upscale", description=__doc__)
    parser.add_argument("--width", type=int, default=160, help="of the small photo, in pixels")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    return run_command(lambda: upscale(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
