"""Enlarges a photo with the command line: ``cml convert``, ``run``, ``rank``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import cml_engine as cml
from examples.upscale import assets, pictures

OUT = Path(__file__).resolve().parents[2] / "out"


class StepFailed(Exception):
    """Raised if a ``cml`` command ends with an exit code other than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def cml_command(*arguments: str | Path) -> None:
    """Prints and runs a ``cml`` command line; raises :class:`StepFailed` if it fails."""
    words = list(map(str, arguments))
    print("\n$ cml", *words, flush=True)
    code = subprocess.call([sys.executable, "-m", "cml_engine", *words])
    if code != 0:
        raise StepFailed(code)


def convert(size: tuple[int, int], folder: Path) -> Path:
    """Converts the network to an NNEF folder below ``folder`` and returns its path.

    The network's input has ``size`` (width, height).
    """
    width, height = size
    model = folder / f"upres_{width}x{height}.nnef"
    shape = f"1,3,{height},{width}"
    cml_command("convert", assets.NETWORK_PARAM.path, model, "--shape", shape, "--overwrite")
    return model


def enlarge(model: Path, photo: Path, result: Path, backend: str) -> float:
    """Runs the command ``cml run``, which writes the enlarged ``photo`` to ``result``.

    Returns the seconds that the command takes.
    """
    graph = cml.load(model)
    (source,), (target,) = graph.inputs, graph.outputs
    start = time.perf_counter()
    options = ["-i", f"{source}={photo}", "-o", f"{target}={result}", "--backend", backend]
    cml_command("run", model, *options)
    return time.perf_counter() - start


def show(before: Image.Image, after: Image.Image, out: Path, excerpt: Path | None) -> None:
    """Writes ``before``, and both pictures side by side, to the folder ``out``.

    Writes a part of both to the file ``excerpt``, if given. Prints the paths of all pictures.
    """
    titles = ("before: bicubic", "after: network")
    before.save(out / "before.png")
    pictures.side_by_side(before, after, titles).save(out / "upscale.png")
    for name in ("before.png", "after.png", "upscale.png"):
        print(f"  {out / name}")
    if excerpt:
        left, right = (picture.crop(pictures.EXCERPT) for picture in (before, after))
        pictures.side_by_side(left, right, titles).save(excerpt, optimize=True)
        print(f"  {excerpt}")


def upscale(options: argparse.Namespace) -> None:
    """Downloads, converts, runs and ranks the network, and writes the pictures."""
    for line in assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO):
        print(line)
    size, out = (options.width, options.height), options.out
    out.mkdir(parents=True, exist_ok=True)
    small = pictures.small_photo(assets.PHOTO.path, size)
    small.save(out / "photo.png")
    model = convert(size, out)
    seconds = enlarge(model, out / "photo.png", out / "after.png", options.backend)
    cml_command("rank", model, "--backend", options.backend)
    before = pictures.enlarge(small)
    print(f"\n{size[0]}x{size[1]} -> {before.width}x{before.height}, cml run took {seconds:.1f} s")
    with Image.open(out / "after.png") as after:
        show(before, after, out, options.excerpt)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tasks.py upscale", description=__doc__)
    parser.add_argument("--width", type=int, default=160, help="of the small photo, in pixels")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    parser.add_argument("--excerpt", type=Path, help="the README's picture goes to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        upscale(options)
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except StepFailed as failed:
        return failed.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
