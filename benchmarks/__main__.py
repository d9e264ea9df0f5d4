"""Networks on this engine and on others, in turns, as one table for each network.

``upres64`` and ``upres128`` are realesr-animevideov3-x4 (18 convolutions, 5.1 and 20.5 GFLOP);
``mobilenet`` and ``unet`` are made by the bench, at 128x128. All with 32-bit floats.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import apart, contenders, layers, rounds, table
from benchmarks.write_ncnn import write_ncnn
from examples.upscale import assets, pictures

OUT = Path(__file__).resolve().parents[1] / "out"


def upres(side: int) -> Callable[[contenders.Workload], None]:
    """The trained network at a square input of ``side`` pixels, and the photo."""

    def prepare(workload: contenders.Workload) -> None:
        shutil.copy(assets.NETWORK_PARAM.path, workload.param)
        shutil.copy(assets.NETWORK_BIN.path, workload.weights)
        shape = (1, 3, side, side)
        photo = pictures.small_photo(assets.PHOTO.path, (side, side))
        np.save(workload.input, as_tensor(photo))
        convert(workload, shape)
        if rounds.installed("onnx"):
            from benchmarks.onnx_model import write_onnx

            write_onnx(workload.param, workload.weights, shape, workload.onnx)

    return prepare


def made(network: layers.Network) -> Callable[[contenders.Workload], None]:
    """A network of the bench's own, and noise."""

    def prepare(workload: contenders.Workload) -> None:
        write_ncnn(network, workload.param, workload.weights)
        noise = np.random.default_rng(0).random(network.shape, np.float32)
        np.save(workload.input, noise)
        convert(workload, network.shape)
        if rounds.installed("onnx"):
            from benchmarks.write_onnx import write_onnx

            write_onnx(network, workload.onnx)

    return prepare


MODELS: dict[str, Callable[[], Callable[[contenders.Workload], None]]] = {
    "upres64": lambda: upres(64),
    "upres128": lambda: upres(128),
    "mobilenet": lambda: made(layers.mobilenet(128)),
    "unet": lambda: made(layers.unet(128)),
}


def as_tensor(photo: Image.Image) -> contenders.Array:
    """[1, 3, H, W] in [0, 1]."""
    pixels = np.asarray(photo, np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def convert(workload: contenders.Workload, shape: tuple[int, ...]) -> None:
    """The network as NNEF, by the command that users have."""
    size = ",".join(map(str, shape))
    words = ["convert", str(workload.param), str(workload.nnef), "--shape", size]
    subprocess.run([sys.executable, "-m", "cml_engine", *words], check=False)


def bench(model: str, options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Print one network's table; returns whether the numbers agree, and the record."""
    chosen = [c for c in contenders.CONTENDERS if not options.only or c.key in options.only]
    with tempfile.TemporaryDirectory(prefix="cml-bench-") as folder:
        workload = contenders.Workload(Path(folder))
        MODELS[model]()(workload)
        results = rounds.run_rounds(chosen, Path(folder), options.rounds)
        differences = table.differences(results, workload)
    print(f"\n### {model}, {options.rounds} rounds\n")
    print(table.markdown(results, differences) + "\n")
    verdicts = table.verdicts(model, results, differences)
    for holds, text in verdicts:
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    agree = all(value <= table.TOLERANCE for value in differences.values())
    record = {
        "model": model,
        "ratios": table.ratios(model, results),
        "results": table.record(results, differences),
    }
    return agree, record


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tasks.py bench", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "all"], default=["upres64"])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each engine")
    parser.add_argument("--json", type=Path, default=OUT / "bench.json")
    keys = [c.key for c in contenders.CONTENDERS]
    parser.add_argument("--only", nargs="*", choices=keys, default=(), help="these engines")
    parser.add_argument(
        "--install", choices=["webgpu"], help="make the environment of ONNX Runtime's WebGPU once"
    )
    parser.add_argument(
        "--against", type=Path, help="an earlier --json: fail where a ratio got worse by a quarter"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        credits = assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO)
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*credits, sep="\n")
    for contender in contenders.CONTENDERS:
        if contender.apart and contender.apart == options.install:
            apart.make(contender.apart, contender.package)
    warning = table.busy()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    models = list(MODELS) if "all" in options.models else options.models
    done = [bench(model, options) for model in models]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": table.machine(),
        "warning": warning,
        "models": [record for _, record in done],
    }
    options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"\nall numbers: {options.json}")
    worse = table.worse(report, json.loads(options.against.read_text())) if options.against else []
    for text in worse:
        print(f"WORSE: {text}")
    return 0 if all(agree for agree, _ in done) and not worse else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
