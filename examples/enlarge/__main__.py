"""Trains the example network and measures it: ``python -m examples.enlarge evaluate``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import cml_engine as cml
from examples.command import run_command
from examples.enlarge import pictures

#: what the command "cml example" copies: the network, and a picture for it
MODELS = pictures.ROOT / "examples" / "models"
#: renderings of the demo game; ignored by git
RENDERINGS = pictures.ROOT / "out" / "pictures"
#: held-out textures of each family
_TEXTURES = 4
_CHECKPOINT_STEPS = 1000
_STEPS = 12_000
Enlarge = Callable[[Image.Image], Image.Image]


def enlarger(model: Path, backend: str | cml.Gpu) -> Enlarge:
    """Returns a function that doubles a picture's size with the network in the file ``model``."""
    network = cml.Session(cml.load(model, shapes={"image": (1, 3, 64, 64)}), backend)
    sessions = {(64, 64): network}

    def enlarge(picture: Image.Image) -> Image.Image:
        planes = pictures.as_planes(picture)[None]
        if picture.size not in sessions:
            sessions[picture.size] = network.reshaped({"image": planes.shape})
        (enlarged,) = sessions[picture.size].run({"image": planes})["enlarged"]
        return Image.fromarray((enlarged.transpose(1, 2, 0) * 255 + 0.5).astype(np.uint8))

    return enlarge


def gains(held_out: Iterable[Image.Image], enlarge: Enlarge) -> tuple[list[float], list[float]]:
    """Halves each picture, doubles it again, and returns the PSNR against the original, in dB.

    The first list is of the cubic filter, the second of the network ``enlarge``; both in the
    order of the pictures.
    """
    cubic, network = [], []
    for picture in held_out:
        small = pictures.halved(picture)
        cubic.append(pictures.psnr(pictures.doubled(small), picture))
        network.append(pictures.psnr(enlarge(small), picture))
    return cubic, network


def evaluate(options: argparse.Namespace) -> None:
    """prints the network's PSNR beside that of the cubic filter, on pictures never trained on"""
    enlarge, rng = enlarger(options.model, options.backend), np.random.default_rng(2)
    sets = {
        f"textures: {family}": [pictures.texture(family, rng, True) for _ in range(_TEXTURES)]
        for family in pictures.FAMILIES
    }
    sets["demo game"] = list(pictures.renderings(RENDERINGS, held_out=True))
    sets["photos"] = list(pictures.photos())
    print("| held out | pictures | cubic filter | network | gain | least gain |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, held_out in sets.items():
        cubic, network = (np.array(values) for values in gains(held_out, enlarge))
        cells = f"{cubic.mean():.2f} | {network.mean():.2f} | {(network - cubic).mean():+.2f}"
        print(f"| {name} | {len(held_out)} | {cells} | {(network - cubic).min():+.2f} |")


def samples(options: argparse.Namespace) -> None:
    """writes textures of training at half their size, for cml quantize -i image=samples.npy"""
    rng = np.random.default_rng(1)
    textures = [pictures.texture(f, rng) for f in pictures.FAMILIES for _ in range(_TEXTURES)]
    np.save(options.file, np.stack([pictures.as_planes(pictures.halved(p)) for p in textures]))


def train(options: argparse.Namespace) -> None:
    """trains the network on one core and writes it as ONNX and NNEF"""
    try:
        import torch
    except ImportError:
        raise cml.InputError('training needs PyTorch: pip install -e ".[training]"') from None
    from examples.enlarge import network

    torch.set_num_threads(1)  # so results do not depend on the number of cores
    torch.manual_seed(0)
    pairs = network.Pairs(RENDERINGS, np.random.default_rng(0))
    began, losses = time.perf_counter(), []
    for step, (trained, loss) in enumerate(network.train(pairs, _STEPS), 1):
        losses.append(loss)
        if step % _CHECKPOINT_STEPS == 0 or step == _STEPS:
            network.export(trained, options.model)
            seconds = time.perf_counter() - began
            print(f"step {step}, {seconds:.0f} s, loss {np.mean(losses):.5f}", flush=True)
            losses.clear()
    graph = cml.load(options.model, shapes={"image": (1, 3, 64, 64)})
    cml.save(graph, options.model.with_suffix(".tgz"), overwrite=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m examples.enlarge", description=__doc__)
    commands = parser.add_subparsers(required=True)
    added = {f: commands.add_parser(f.__name__, help=f.__doc__) for f in (train, samples, evaluate)}
    for command, its in added.items():
        its.set_defaults(command=command)
    for command in (train, evaluate):
        added[command].add_argument("model", type=Path, nargs="?", default=MODELS / "enlarge.onnx")
    added[samples].add_argument("file", type=Path)
    added[evaluate].add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    options = parser.parse_args(arguments)
    return run_command(lambda: options.command(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
