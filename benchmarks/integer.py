"""Compares integer networks with float networks in speed and memory.

``python -m benchmarks.integer`` runs all interleaved in one process: a convolution of 8-bit words
by ``dot4`` beside the fastest of our own float tiles, then whole networks on the GPU and the CPU.
Times are medians; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

import cml_engine as cml
from benchmarks import command
from benchmarks.models import AGENTS, load_network
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Array, Graph
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.runtime.node_check import random_words
from cml_engine.testing import time_interleaved
from cml_engine.tools.report.integer_info import IntegerMemory

K = TypeVar("K", bound=Hashable)
#: a function that runs a work once and returns milliseconds
Turn = Callable[[], float]
#: channels in and out, side of the map, kernel, stride
LAYERS = ((64, 64, 64, 3, 1), (40, 40, 32, 3, 1), (64, 64, 64, 1, 1))
#: the float tiles that a layer is compared with, and the tiles of bytes
_FLOAT = ("tile 16x4", "row tile 16x4", "row tile 8x8")
_DOT4 = ("dot4 tile 16x4", "dot4 tile 16x8")
_TEXT = """version 1.0;
graph layer(x) -> (y)
{{
    x = external<scalar>(shape = [1, {c}, {n}, {n}]);
    a = variable<scalar>(shape = [{c}, {c}, 1, 1], label = 'a');
    f = variable<scalar>(shape = [{o}, {c}, {k}, {k}], label = 'f');
    b = variable<scalar>(shape = [1, {o}], label = 'b');
    d = variable<scalar>(shape = [4, {o}, 1, 1], label = 'd');
    before = conv(x, a, 0.0);
    words = relu(before);
    sums = conv(words, f, b, dilation = [1, 1], stride = [{s}, {s}],
                padding = [({p}, {p}), ({p}, {p})]);
    layer = relu(sums);
    y = conv(layer, d, 0.0);
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.integer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    gpu = command.open_gpu()
    print(f"{gpu.name}, {os.cpu_count()} cores, {rounds} rounds")
    for layer in LAYERS:
        _layer(layer, gpu, rounds)
    command.fetch_assets()
    for model in ("agent-upres", "upres64"):
        _network(model, gpu, rounds)


def _layer(layer: tuple[int, ...], gpu: cml.Gpu, rounds: int) -> None:
    graph, inputs = _layer_graph(*layer)
    integer_graph = cml.quantize(graph, [inputs(i) for i in range(8)], sixteen=[])[0]
    works = dict(_variants(graph, gpu, _FLOAT, inputs(0), "float"))
    works |= _variants(integer_graph, gpu, (*_DOT4, *_FLOAT), inputs(0), "words")
    times = in_turns(works, rounds)

    def best(*begins: str) -> str:
        names = [size for size in times if size.startswith(begins)]
        return min(names, key=lambda size: statistics.median(times[size]))

    in_channels, out_channels, size, kernel, stride = layer
    print(
        f"\nconv {kernel}x{kernel} {in_channels}>{out_channels} at {size}x{size}, stride {stride}"
    )
    for name, ms in sorted(times.items(), key=lambda pair: statistics.median(pair[1])):
        print(f"  {name:36s} {statistics.median(ms):8.2f} ms")
    floats = best("float")
    for name in (best("words dot4"), best("words tile", "words row")):
        print(f"  {floats} takes {ratio(times[floats], times[name]):.2f} times {name}")
    tile = best("float tile")
    print(f"  {tile} takes {ratio(times[tile], times[best('words dot4')]):.2f} times the dot4")


def _layer_graph(
    c: int, o: int, n: int, k: int, s: int
) -> tuple[Graph, Callable[[int], dict[str, Array]]]:
    def inputs(seed: int) -> dict[str, Array]:
        values = np.random.default_rng(seed).standard_normal((1, c, n, n))
        return {"x": values.astype(np.float32)}

    text = _TEXT.format(c=c, o=o, n=n, k=k, s=s, p=k // 2)
    return cml.load(cml.nnef.MemoryModel(text, {}), random_weights=1), inputs


def _variants(
    graph: Graph, gpu: cml.Gpu, kernels: tuple[str, ...], inputs: dict[str, Array], prefix: str
) -> Iterator[tuple[str, Turn]]:
    """Yields the name of each kernel that supports the layer and a function that times it.

    The layer is the graph's node called ``layer``; names begin with ``prefix``. The function runs
    the layer once and returns milliseconds.
    """
    optimized = optimize(graph)
    layouts = layouts_for(optimized)
    choices = lower(optimized, gpu.limits, layouts).choices
    choice = next(c for c in choices if c.node.endswith(" 'layer'"))
    for kernel in kernels:
        option = next((o for o in choice.options if o.startswith(f"{kernel} ")), None)
        if option is not None:
            table = VariantTable.forcing(choice.key, option)
            plan = lower(optimized, gpu.limits, layouts, PlanOptions(variants=table))
            steps = [step.index for step in plan.steps if step.title == choice.node]
            yield f"{prefix} {kernel}", _timed(GpuProgram(plan, gpu), inputs, steps)


def _timed(program: GpuProgram, inputs: dict[str, Array], steps: list[int] | None = None) -> Turn:
    return lambda: float(inspect.time_steps(program, inputs, 1, steps).sum())


def _network(model: str, gpu: cml.Gpu, rounds: int) -> None:
    graph, inputs = load_network(model)
    integer_graph, integer_inputs = _quantized(model, graph, inputs)
    works = {}
    for numbers, variant, variant_inputs in (
        ("floats", graph, inputs),
        ("integers", integer_graph, integer_inputs),
    ):
        plan = lower(optimize(variant), gpu.limits, layouts_for(optimize(variant)))
        works[f"GPU, {numbers}"] = _timed(GpuProgram(plan, gpu), variant_inputs)
        works[f"CPU, {numbers}"] = elapsed(partial(cml.Session(variant, "cpu").run, variant_inputs))
    times = in_turns(works, rounds)
    print(f"\n{model}")
    for name, ms in times.items():
        print(f"  {name:36s} {statistics.median(ms):8.2f} ms")
    for backend in ("GPU", "CPU"):
        longer = ratio(times[f"{backend}, integers"], times[f"{backend}, floats"])
        print(f"  on the {backend} integers take {longer:.2f} times as long as floats")
    print(f"  {IntegerMemory.of(integer_graph)}")


def _quantized(
    model: str, graph: Graph, inputs: dict[str, Array]
) -> tuple[Graph, dict[str, Array]]:
    """Returns the integer network and its inputs.

    For an agent of the demo it is the demo's integer network with random inputs, otherwise
    ``graph`` quantized to 8 bits, and ``inputs``.
    """
    if model.startswith("agent-"):
        agent = cml.load(AGENTS / "integer" / f"{model.removeprefix('agent-')}.nnef")
        return agent, random_words(agent, 11)
    noise = np.random.default_rng(0)
    samples = [
        {name: np.asarray(values * noise.uniform(0.5, 1, values.shape), np.float32)
         for name, values in inputs.items()}
        for _ in range(8)
    ]  # fmt: skip
    return cml.quantize(graph, samples, sixteen=[])[0], inputs


def in_turns(works: Mapping[K, Turn], rounds: int) -> dict[K, list[float]]:
    """Runs every work once per round; returns each work's milliseconds in every round.

    A warm-up round before the others is not counted.
    """
    times = time_interleaved(rounds, *works.values())
    return {name: [row[i] for row in times] for i, name in enumerate(works)}


def elapsed(run: Callable[[], object]) -> Turn:
    """Returns a function that calls ``run`` and returns the elapsed wall-clock milliseconds."""

    def turn() -> float:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    return turn


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the time of ``a`` relative to ``b``: the median of the ratios of each round."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    main()
