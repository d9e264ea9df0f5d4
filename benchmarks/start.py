"""Measures the phases of a network's start before its first run, with a warm shader cache.

``python -m benchmarks.start MODEL`` or ``--operators 600``: a model, or a network of residual
blocks with the given number of operators and random weights. ``--onnx 600`` is a wider network in
an ONNX file of 600 nodes and 50 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

#: the limit for parsing and planning _LIMIT_OPERATORS operators before packing, in ms
_LIMIT_MS, _LIMIT_OPERATORS = 1000.0, 600
_CHANNELS, _SIDE = 32, 32
#: channels with which 600 operators have 50 MB
_WIDE = 90


def residual_network(operators: int, channels: int, path: Path) -> None:
    """Writes a residual network of ``operators`` operators with random weights.

    They are convolutions, normalizations, activations and sums. ``path`` is a folder for NNEF,
    or the name of an ONNX file.
    """
    import numpy as np

    import cml_engine as cml
    from cml_engine.formats import ImportBuilder

    make, random = ImportBuilder(), np.random.default_rng(0)
    x = skip = make.input("x", (1, channels, _SIDE, _SIDE))
    around = [(1, 1), (1, 1)]
    for i in range(operators):
        position = i % 7
        if position in (0, 3):
            shape = (channels, channels, 3, 3)
            values = random.standard_normal(shape) / (9 * channels) ** 0.5
            filter = make.variable(f"filter{i}", values)
            x = make.node("conv", [x, filter, make.literal(0.0)], f"conv{i}", padding=around)
        elif position in (1, 4):
            names = ("mean", "variance", "offset", "scale")
            parts = [make.variable(f"{n}{i}", random.random((1, channels))) for n in names]
            x = make.node("batch_normalization", [x, *parts], f"normal{i}", epsilon=1e-5)
        elif position == 5:
            x = make.node("add", [x, skip], f"sum{i}")
        else:
            x = make.node("relu", [x], f"relu{i}")
        skip = x if position == 6 else skip
    cml.save(make.graph("residual", [x]), path)


_PARSE = "parse: the text, or ONNX, and the weights"


def measure(model: Path, rounds: int) -> tuple[int, float]:
    """Starts the model ``rounds`` times and prints the milliseconds of each phase.

    Returns the number of operators and the median ms of parsing and planning before packing.
    """
    begin = time.perf_counter()
    import cml_engine as cml
    from cml_engine.compiler.optimize import optimize
    from cml_engine.ops.declaration.lowering import Lowering
    from cml_engine.ops.declaration.registry import load_families
    from cml_engine.runtime.session import CompileOptions, make_plan

    load_families()
    rows = {"import the engine and its operators": [_since(begin)]}
    gpu, took = _timed(cml.Gpu)
    rows["device, the driver's own start included"] = [took]
    pack, packs = Lowering.pack, list[float]()

    def timed_pack(*arguments: Any, **named: Any) -> Any:
        packed, took = _timed(lambda: pack(*arguments, **named))
        packs.append(took)
        return packed

    phases: dict[str, list[float]] = {}
    for _ in range(rounds):
        packs.clear()
        graph, parsed = _timed(partial(cml.load, model))
        small, optimized = _timed(partial(optimize, graph))
        with mock.patch.object(Lowering, "pack", timed_pack):
            plan, planned = _timed(partial(make_plan, small, gpu, CompileOptions()))
        pack_ms = sum(packs)
        for name, ms in (
            (_PARSE, parsed),
            ("passes over the graph", optimized),
            ("plan, without packing", planned - pack_ms),
            ("  weights packed", pack_ms),
            ("all of that before packing", parsed + optimized + planned - pack_ms),
            ("parse and plan", parsed + optimized + planned),
        ):
            phases.setdefault(name, []).append(ms)
    session, session_ms = _timed(lambda: cml.Session(graph, gpu))
    compile_ms = phases["parse and plan"][-1] - phases[_PARSE][-1]
    rows |= phases
    rows["session without its plan: upload, pipelines"] = [max(0.0, session_ms - compile_ms)]
    timer = session.timer()
    rows["first run"], rows["second run"] = [timer()], [timer()]
    print(f"{len(graph.nodes)} operators, {len(plan.steps)} dispatches, {gpu.pipelines_built} "
          f"pipelines, {plan.weights_bytes / 1e6:.1f} MB of weights; {gpu.name}")  # fmt: skip
    print(f"{'':44s} {'median ms':>10s} {'first':>8s} {'least':>8s}")
    for name, times in rows.items():
        print(f"{name:44s} {statistics.median(times):10.1f} {times[0]:8.1f} {min(times):8.1f}")
    return len(graph.nodes), statistics.median(phases["all of that before packing"])


def _timed(function: Callable[[], object]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = function()
    return result, _since(begin)


def _since(begin: float) -> float:
    return 1e3 * (time.perf_counter() - begin)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.start", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("model", type=Path, nargs="?")
    source.add_argument("--operators", type=int, metavar="COUNT")
    source.add_argument("--onnx", type=int, metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cml-start-") as folder:
        generated = Path(folder, "model.onnx" if options.onnx else "model.nnef")
        # another process writes it: importing the engine here would warm the start
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            if options.operators or options.onnx:
                count = options.operators or options.onnx
                channels = _WIDE if options.onnx else _CHANNELS
                process.submit(residual_network, count, channels, generated).result()
        operators, ms = measure(options.model or generated, options.rounds)
    if operators < _LIMIT_OPERATORS:
        return 0
    holds = ms / operators <= _LIMIT_MS / _LIMIT_OPERATORS
    print(f"{'holds' if holds else 'FAILS'}: {operators} operators {ms:.0f} ms before packing, "
          f"at most {_LIMIT_MS:.0f} for {_LIMIT_OPERATORS}")  # fmt: skip
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
