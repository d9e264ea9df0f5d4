"""Computes a cross product in two ways: composed of twelve operators, and as one custom operator.

``python -m examples.cross_product`` prints operators, dispatches, times and the largest difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine import ops
from cml_engine.ops import load_file
from cml_engine.testing import check, time_interleaved
from examples.command import run_command

HERE = Path(__file__).resolve().parent
MODEL = HERE / "cross_product.nnef"


def networks() -> tuple[cml.Graph, cml.Graph]:
    """Returns the model with ``cross`` expanded, and with ``cross`` as one operator.

    Both come from one file. The operator ``cross`` is unregistered and registered on the way.
    """
    ops.unregister("cross")
    composed = cml.load(MODEL)
    load_file(HERE / "cross.py")
    return composed, cml.load(MODEL)


def compare(gpu: cml.Gpu, runs: int) -> None:
    """Prints the sizes, times and errors of the composed and of the custom operator, interleaved.

    Both compute the product of the same random vectors; NumPy's is the reference for the error.
    """
    generator = np.random.default_rng(0)
    inputs = {name: generator.standard_normal((1, 3, 32, 32), np.float32) for name in "ab"}
    expected = np.cross(inputs["a"], inputs["b"], axis=1)
    graphs = networks()
    sessions = [cml.Session(graph, gpu) for graph in graphs]
    times = np.median(time_interleaved(runs, *(s.timer(inputs) for s in sessions)), axis=0)
    print(gpu.name)
    print("cross product  operators  dispatches      GPU time  largest error")
    rows = zip(("composed", "custom"), graphs, sessions, times, strict=True)
    for variant, graph, session, ms in rows:
        error = np.abs(session.run(inputs)["c"] - expected).max()
        assert session.plan is not None
        print(f"{variant:13s} {len(graph.nodes):10d} {len(session.plan.steps):11d} "
              f"{ms:10.3f} ms {error:14.2e}")  # fmt: skip
    print(f"one kernel takes 1/{times[0] / times[1]:.1f} of the time of twelve")
    print(check("cross", gpu))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m examples.cross_product", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how often each way is timed")
    options = parser.parse_args(argv)
    return run_command(lambda: compare(cml.Gpu(), options.runs))


if __name__ == "__main__":
    sys.exit(main())
