"""``draw`` computes a map and its picture, ``frames`` runs the network in slices of frames.

``compare`` checks that the backends agree with ONNX Runtime.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine.io import arrays as array_files
from examples.measure import at_once, in_slices
from examples.terrain_diffusion.network import (
    MODEL,
    SHAPES,
    Array,
    Denoise,
    canvas,
    inputs_of,
    squares,
    terrain,
)
from examples.terrain_diffusion.picture import shaded
from examples.upscale.assets import AssetError, fetch

OUT = Path(__file__).resolve().parents[2] / "out"
#: the largest difference between backends, relative to the largest value
_MOST_APART = 1e-4


def draw(options: argparse.Namespace) -> None:
    """Computes a map and writes its picture."""
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    array_files.check_place(options.picture)
    denoise = _denoise(_session(options.backend))
    shape = (options.size[0], options.size[1])
    start = time.perf_counter()
    heights = terrain(denoise, shape, options.seed, options.difficulty)
    seconds = time.perf_counter() - start
    count = len(list(squares(*canvas(shape, 0).shape[2:])))
    print(f"{count} squares in {seconds:.2f} s; heights from 0 to {heights.max():.2f} m")
    array_files.write_outputs({"image": options.picture}, {"image": shaded(heights)})
    print(options.picture)


def frames(options: argparse.Namespace) -> None:
    """Computes one square at once and in slices, and checks that both are bit-identical."""
    session = _session("gpu")
    assert session.gpu is not None
    inputs = _square(options)
    image, seconds = at_once(session, inputs)
    print(f"at once    {1e3 * seconds:.0f} ms, NumPy to NumPy")
    sliced = in_slices(session.gpu, session, inputs, options.budget_ms)
    print(f"in slices  {sliced} of {options.budget_ms:g} ms")
    if not np.array_equal(sliced.result, image):
        raise cml.CmlError("the run in slices gave other bits than the run at once")
    print("           the same bits")


def compare(options: argparse.Namespace) -> None:
    """Computes one square on each backend and with ONNX Runtime; prints differences and times."""
    inputs = _square(options)
    wanted = _timed("ONNX Runtime", _onnxruntime(), inputs)
    for backend in ("cpu", "gpu"):
        found = _timed(backend, _denoise(_session(backend)), inputs)
        apart = float(np.abs(found.result - wanted.result).max() / np.abs(wanted.result).max())
        print(f"  {apart:.1e} apart from ONNX Runtime, of the largest value")
        if not apart <= _MOST_APART:
            raise cml.CmlError(f"{backend} is {apart:.1e} apart, wanted at most {_MOST_APART:g}")


@dataclass(frozen=True)
class _Timed:
    result: Array
    seconds: float


def _timed(name: str, denoise: Denoise, inputs: dict[str, Array]) -> _Timed:
    """Runs ``denoise`` twice; prints the second run's time and returns its result and seconds.

    The first run includes set-up.
    """
    denoise(inputs)
    start = time.perf_counter()
    result = denoise(inputs)
    found = _Timed(result, time.perf_counter() - start)
    print(f"{name}: {1e3 * found.seconds:.0f} ms")
    return found


def _square(options: argparse.Namespace) -> dict[str, Array]:
    noise = canvas((SHAPES["noisy"][2], SHAPES["noisy"][3]), options.seed)
    return inputs_of(noise, options.difficulty)


def _session(backend: str) -> cml.Session:
    """Returns a session of the network on a backend; prints the seconds to load and compile."""
    start = time.perf_counter()
    graph = cml.load(MODEL.path, shapes=SHAPES)
    loaded = time.perf_counter()
    on: cml.Gpu | str = cml.Gpu() if backend == "gpu" else backend
    opened = time.perf_counter()
    session = cml.Session(graph, on)
    where = f"{session.gpu.pipelines_built} pipelines on {session.gpu.name}" if session.gpu else ""
    print(
        f"{backend}: load {loaded - start:.2f} s ({len(graph.nodes)} operators), "
        f"compile, upload {time.perf_counter() - opened:.2f} s  {where}".rstrip()
    )
    return session


def _denoise(session: cml.Session) -> Denoise:
    return lambda inputs: session.run(inputs)["denoised"]


def _onnxruntime() -> Denoise:
    try:
        import onnxruntime
    except ImportError:
        raise cml.CmlError("compare wants ONNX Runtime: pip install onnxruntime") from None
    session = onnxruntime.InferenceSession(MODEL.path, providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run(["denoised"], inputs)[0])


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"wanted {low} to {high}, got {value}")
        return value

    parsed.__name__ = "integer"
    return parsed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.terrain_diffusion", description=__doc__)
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=_whole(0, 1 << 31), default=1, help="of the noise")
    common.add_argument(
        "--difficulty", type=_whole(1, 100), default=100, help="1 is calm, 100 rough"
    )
    drawing = commands.add_parser("draw", help=draw.__doc__, parents=[common])
    drawing.add_argument(
        "--size", type=_whole(2, 4096), nargs=2, default=[320, 320], metavar=("HEIGHT", "WIDTH")
    )
    drawing.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    drawing.add_argument("--picture", type=Path, default=OUT / "terrain.png")
    drawing.set_defaults(command=draw)
    slicing = commands.add_parser("frames", help=frames.__doc__, parents=[common])
    slicing.add_argument("--budget-ms", type=float, default=8.0, help="of a frame")
    slicing.set_defaults(command=frames)
    comparing = commands.add_parser("compare", help=compare.__doc__, parents=[common])
    comparing.set_defaults(command=compare)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        for line in fetch(MODEL):
            print(line)
        options.command(options)
    except (AssetError, cml.CmlError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
