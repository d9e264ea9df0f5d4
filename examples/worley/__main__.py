"""``python -m examples.worley`` checks the operator, then draws a slice of the noise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine.compiler.plugins import load_file
from cml_engine.io import arrays as array_files
from cml_engine.tools.testing import check

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "out"


def grid(size: int, cells: float) -> np.ndarray:
    """Returns the points of a slightly tilted plane through space: ``[1, 3, size, size]``."""
    y, x = np.meshgrid(*2 * [np.linspace(0, cells, size, dtype=np.float32)], indexing="ij")
    return np.stack([x, y, np.float32(0.25) * (x + y)])[None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT / "worley.png")
    options = parser.parse_args(argv)
    try:
        gpu = cml.Gpu()
        load_file(HERE / "worley.py")
        print(check("worley", gpu))
        session = cml.Session(cml.load(HERE / "worley.nnef"), gpu)
        noise = session.run({"points": grid(256, 12.0)})["noise"]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        array_files.write_outputs({"noise": options.out}, {"noise": np.repeat(noise, 3, 1)})
        print(f"{options.out}; {session.timer()():.2f} ms on {gpu.name}")
    except cml.CmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
