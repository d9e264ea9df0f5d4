"""Compares networks with and without a graph pass: ``python -m benchmarks.kernels.passes``.

For each pass the same graph runs with it and without it, in interleaved rounds on the GPU; times
are those of the computation alone. Dispatches and the arena are exact; on a shared machine compare
only the times within one row. A pass that changes nothing in a graph is not timed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import cml_engine as cml
from cml_engine.compiler.optimize import NAMES
from cml_engine.ir.graph import Graph
from cml_engine.runtime.session import CompileOptions
from cml_engine.testing import time_interleaved
from tests.fixtures.graphs import BLOCKS

#: left out one at a time, then all together
PASSES = tuple(name for name in NAMES if name not in ("infer", "dead_code", "rules", "sweep"))
#: blocks by size and channels, by rows and columns, or by batch, rows, heads and their columns
SIZES = {
    "dense": (64, 32),
    "mobilenet": (56, 24),
    "unet": (64, 32),
    "se": (56, 64),
    "layer_norm": (1024, 256),
    "styled": (64, 64),
    "gate": (56, 64),
    "sum of products": (1024, 256),
    "gated slices": (64, 64),
    "stacked rows": (64, 1024),
    "attention": (1, 128, 8, 32),
}


def compare(graph: Graph, gpu: cml.Gpu, without: frozenset[str], rounds: int) -> str | None:
    """Times the graph with all passes and without the passes in ``without``; returns a row of text.

    The row has dispatches, arena and milliseconds of both, and their ratio. Returns None if the
    passes change nothing.
    """
    sessions = [cml.Session(graph, gpu, CompileOptions(w)) for w in (frozenset[str](), without)]
    plans = [session.plan for session in sessions if session.plan]
    steps = [[(step.op, step.fused) for step in plan.steps] for plan in plans]
    if steps[0] == steps[1]:
        return None
    times = time_interleaved(rounds, *(session.timer() for session in sessions))
    ms = [median(column) for column in zip(*times, strict=True)]
    summaries = [f"{len(p.steps)} dispatches, arena {p.memory.peak / 1024:.0f} KB" for p in plans]
    slowdown = median(without_ms / with_ms for with_ms, without_ms in times)
    return (
        f"with: {summaries[0]}, {ms[0]:.2f} ms; without: {summaries[1]}, {ms[1]:.2f} ms; "
        f"ratio {slowdown:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.kernels.passes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", type=Path, help="an NNEF model instead of the blocks")
    args = parser.parse_args()
    gpu = cml.Gpu()
    if args.model:
        graphs = {args.model.stem: cml.load(args.model)}
    else:
        nets = {name: BLOCKS[name](*size) for name, size in SIZES.items()}
        graphs = {name: net.graph(net.nodes[-1].outputs[0]) for name, net in nets.items()}
    for name, graph in graphs.items():
        for without in [*({p} for p in PASSES), set(PASSES)]:
            names = ", ".join(without) if len(without) == 1 else "all of these"
            line = compare(graph, gpu, frozenset(without), args.rounds)
            if line is not None:
                print(f"{name}: {names}: {line}")


if __name__ == "__main__":
    main()
