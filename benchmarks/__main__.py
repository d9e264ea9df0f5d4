"""The upres network on this engine and on others, in turns, as one table.

It is realesr-animevideov3-x4 with 32-bit floats: 18 convolutions, 5.1 GFLOP at 64x64.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import contenders, rounds, table
from examples.upscale import assets, pictures

OUT = Path(__file__).resolve().parents[1] / "out"


def prepare(side: int, folder: Path) -> contenders.Workload:
    """The network in every format, and the photo, for a square input of ``side`` pixels."""
    workload = contenders.Workload(folder)
    shutil.copy(assets.NETWORK_PARAM.path, workload.param)
    shutil.copy(assets.NETWORK_BIN.path, workload.weights)
    shape = (1, 3, side, side)
    photo = pictures.small_photo(assets.PHOTO.path, (side, side))
    np.save(workload.input, as_tensor(photo))
    convert(workload, shape)
    if rounds.installed("onnx"):
        from benchmarks.onnx_model import write_onnx

        write_onnx(workload.param, workload.weights, shape, workload.onnx)
    return workload


def as_tensor(photo: Image.Image) -> contenders.Array:
    """[1, 3, H, W] in [0, 1]."""
    pixels = np.asarray(photo, np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def convert(workload: contenders.Workload, shape: tuple[int, ...]) -> None:
    """The network as NNEF, by the command that users have."""
    size = ",".join(map(str, shape))
    words = ["convert", str(workload.param), str(workload.nnef), "--shape", size]
    subprocess.run([sys.executable, "-m", "cml_engine", *words], check=False)


def bench(side: int, options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Print one size's table; returns whether the numbers agree, and the record."""
    chosen = [c for c in contenders.CONTENDERS if not options.only or c.key in options.only]
    with tempfile.TemporaryDirectory(prefix="cml-bench-") as folder:
        workload = prepare(side, Path(folder))
        results = rounds.run_rounds(chosen, Path(folder), options.rounds)
        differences = table.differences(results, workload)
    print(f"\n### {side}x{side} -> {4 * side}x{4 * side}, {options.rounds} rounds\n")
    print(table.markdown(results, differences) + "\n")
    verdicts = table.verdicts(results, differences)
    for holds, text in verdicts:
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    agree = all(value <= table.TOLERANCE for value in differences.values())
    return agree, {"side": side, "results": table.record(results, differences)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tasks.py bench", description=__doc__)
    parser.add_argument("--large", action="store_true", help="128x128 after 64x64")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each engine")
    parser.add_argument("--json", type=Path, default=OUT / "bench.json")
    keys = [c.key for c in contenders.CONTENDERS]
    parser.add_argument("--only", nargs="*", choices=keys, default=(), help="these engines")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        credits = assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO)
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*credits, sep="\n")
    warning = table.busy()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    sides = (64, 128) if options.large else (64,)
    done = [bench(side, options) for side in sides]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": table.machine(),
        "warning": warning,
        "sizes": [record for _, record in done],
    }
    options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"\nall numbers: {options.json}")
    return 0 if all(agree for agree, _ in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
