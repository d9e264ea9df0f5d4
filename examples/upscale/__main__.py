"""Enlarge a photo with the command line that every user has: ``cml convert``, ``run``, ``rank``."""

from __future__ import annotations

import argparse
import shutil
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
    """A ``cml`` command that ended with another exit code than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def cml_command(*arguments: str | Path) -> None:
    """Run ``cml`` with the arguments, showing the line as one would type it."""
    words = list(map(str, arguments))
    print("\n$ cml", *words, flush=True)
    code = subprocess.call([sys.executable, "-m", "cml_engine", *words])
    if code != 0:
        raise StepFailed(code)


def convert(size: tuple[int, int], folder: Path) -> Path:
    """The network as an NNEF folder, for an input of ``size`` (width, height)."""
    width, height = size
    model = folder / f"upres_{width}x{height}.nnef"
    shutil.rmtree(model, ignore_errors=True)
    shape = f"1,3,{height},{width}"
    cml_command("convert", assets.NETWORK_PARAM.path, model, "--shape", shape)
    return model


def enlarge(model: Path, photo: Path, result: Path, backend: str) -> float:
    """The network's picture of ``photo`` lies in ``result``; returns the seconds it took."""
    graph = cml.load(model)
    (source,), (target,) = graph.inputs, graph.outputs
    start = time.perf_counter()
    options = ["-i", f"{source}={photo}", "-o", f"{target}={result}", "--backend", backend]
    cml_command("run", model, *options)
    return time.perf_counter() - start


def upscale(size: tuple[int, int], out: Path, backend: str) -> None:
    """Fetch, convert, run, rank, and write the three pictures into ``out``."""
    for line in assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO):
        print(line)
    out.mkdir(parents=True, exist_ok=True)
    photo = out / "photo.png"
    small = pictures.small_photo(assets.PHOTO.path, size)
    small.save(photo)
    model = convert(size, out)
    seconds = enlarge(model, photo, out / "after.png", backend)
    cml_command("rank", model, "--backend", backend)
    before = pictures.enlarge(small)
    before.save(out / "before.png")
    titles = ("before: bicubic", "after: network")
    with Image.open(out / "after.png") as after:
        pictures.side_by_side(before, after, titles).save(out / "upscale.png")
    print(f"\n{size[0]}x{size[1]} -> {before.width}x{before.height} in {seconds:.1f} s")
    for name in ("before.png", "after.png", "upscale.png"):
        print(f"  {out / name}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tasks.py upscale", description=__doc__)
    parser.add_argument("--width", type=int, default=160, help="of the small photo, in pixels")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        upscale((options.width, options.height), options.out, options.backend)
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except StepFailed as failed:
        return failed.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
