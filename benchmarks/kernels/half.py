"""Compares networks in 32-bit and 16-bit floats: ``python -m benchmarks.kernels.half MODEL.nnef
...``.

Memory is exact. The error is that of ``cml validate --half`` on random inputs. Times are those
of the computation alone over interleaved rounds: the best of each, and the median of the rounds'
ratios.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cml_engine as cml
from benchmarks.interleaved import in_turns, ratio
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.choose_storage import layouts_for
from cml_engine.ir.graph import Graph
from cml_engine.runtime.half_storage import storage_errors
from cml_engine.runtime.session import CompileOptions, random_inputs
from cml_engine.tools.report.storage_report import StorageReport

_HEAD = (
    "| network | arena KiB | in 16 bits | weights KiB | in 16 bits | largest error | rms | "
    "best ms | in 16 bits | times as fast |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def compare(graph: Graph, gpu: cml.Gpu, rounds: int) -> str:
    """Returns a row of the table."""
    options = (CompileOptions(), CompileOptions(storage="half"))
    sessions = [cml.Session(graph, gpu, chosen) for chosen in options]
    timers = [session.timer() for session in sessions]
    times = in_turns(dict(enumerate(timers)), rounds)
    faster = ratio(times[0], times[1])
    full, half = (session.plan for session in sessions)
    assert full is not None and half is not None
    largest, rms = _errors(graph)
    return (
        f"| {graph.name} | {full.memory.peak / 1024:.0f} | {half.memory.peak / 1024:.0f} | "
        f"{full.weights_bytes / 1024:.0f} | {half.weights_bytes / 1024:.0f} | {largest:.1e} | "
        f"{rms:.1e} | {min(times[0]):.1f} | {min(times[1]):.1f} | {faster:.2f} |"
    )


def _errors(graph: Graph) -> tuple[float, float]:
    """Returns the largest and the RMS error of the outputs, relative to their largest value."""
    graph = optimize(graph)
    inputs = random_inputs({name: graph.facts[name] for name in graph.inputs})
    errors = storage_errors(graph, layouts_for(graph, "half"), inputs)
    outputs = StorageReport.of(graph, errors).outputs
    return max(row.largest for row in outputs), max(row.rms for row in outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="NNEF folders")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    gpu = cml.Gpu()
    print(f"{gpu.name}\n\n{_HEAD}")
    for path in args.models:
        print(compare(cml.load(path), gpu, args.rounds))


if __name__ == "__main__":
    main()
