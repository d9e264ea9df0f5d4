"""Compares integer networks with float networks in speed and memory.

``python -m benchmarks.integer`` runs all interleaved in one process. Times are medians; a ratio is
the median over the rounds.

- layers: a convolution of 8-bit words by ``dot4``, beside the fastest of our own float tiles;
- networks: the integer network on the GPU beside the float network (with Winograd), and on the CPU
  beside ONNX Runtime with 8-bit weights and maps (QDQ) and in floats, and ncnn with int8
  convolutions and in floats;
- memory: weights and arena of the demo's agents beside those of floats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from benchmarks.contenders import CONTENDERS, Unavailable, Workload
from benchmarks.interleaved import Turn, elapsed, in_turns, ratio
from benchmarks.models import AGENTS, MODELS
from benchmarks.ncnn.int8 import Int8Network
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.choose_storage import layouts_for
from cml_engine.compiler.planning.lower import PlanOptions, lower
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.runtime.integer_check import random_words
from cml_engine.tools.report.integer_info import IntegerMemory
from examples.upscale import assets

Array = np.ndarray[Any, Any]

#: channels in and out, side of the map, kernel, stride
LAYERS = ((64, 64, 64, 3, 1), (40, 40, 32, 3, 1), (64, 64, 64, 1, 1))
#: the float tiles that a layer is compared with, and the tiles of bytes
_FLOAT = ("tile 16x4", "row tile 16x4", "row tile 8x8")
_DOT4 = ("dot4 tile 16x4", "dot4 tile 16x8", "dot4 row tile 16x4")
#: seconds until a pool's threads have stopped spinning
_SLEEP = 0.1
#: seconds of runs until caches and threads are warm
_WARM = 0.03
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--part", choices=("layers", "networks", "memory"), action="append")
    asked = parser.parse_args()
    parts = asked.part or ["layers", "networks", "memory"]
    gpu = cml.Gpu()
    print(f"{gpu.name}, {os.cpu_count()} cores, {asked.rounds} rounds")
    if "layers" in parts:
        for layer in LAYERS:
            _layer(layer, gpu, asked.rounds)
    if "networks" in parts:
        assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO)
        for model in ("agent-upres", "upres64"):
            _network(model, gpu, asked.rounds)
    if "memory" in parts:
        for name in ("upres", "texture", "population"):
            agent = cml.load(AGENTS / "integer" / f"{name}.nnef")
            print(f"{name}: {IntegerMemory.of(agent)}")


# -- layers ---------------------------------------------------------------------------------------


def _layer(layer: tuple[int, ...], gpu: cml.Gpu, rounds: int) -> None:
    graph, inputs = _layer_graph(*layer)
    whole = cml.quantize(graph, [inputs(i) for i in range(8)], sixteen=[])[0]
    works = dict(_variants(graph, gpu, _FLOAT, inputs(0), "float"))
    works |= _variants(whole, gpu, (*_DOT4, *_FLOAT), inputs(0), "words")
    times = in_turns(works, rounds)

    def best(*begins: str) -> str:
        names = [n for n in times if n.startswith(begins)]
        return min(names, key=lambda n: statistics.median(times[n]))

    c, o, n, k, s = layer
    print(f"\nconv {k}x{k} {c}>{o} at {n}x{n}, stride {s}")
    for name, ms in sorted(times.items(), key=lambda pair: statistics.median(pair[1])):
        print(f"  {name:36s} {statistics.median(ms):8.2f} ms")
    floats = best("float")
    for name in (best("words dot4"), best("words tile", "words row")):
        print(f"  {floats} takes {ratio(times[floats], times[name]):.2f} times {name}")
    tile = best("float tile")
    print(f"  {tile} takes {ratio(times[tile], times[best('words dot4')]):.2f} times the dot4")


def _layer_graph(c: int, o: int, n: int, k: int, s: int) -> tuple[Graph, Any]:
    def inputs(seed: int) -> dict[str, Array]:
        made = np.random.default_rng(seed).standard_normal((1, c, n, n))
        return {"x": made.astype(np.float32)}

    with tempfile.TemporaryDirectory(prefix="cml-layer-") as folder:
        text = _TEXT.format(c=c, o=o, n=n, k=k, s=s, p=k // 2)
        Path(folder, "graph.nnef").write_text(text, encoding="utf-8")
        return cml.load(folder, random_weights=1), inputs


def _variants(
    graph: Graph, gpu: cml.Gpu, kernels: tuple[str, ...], inputs: dict[str, Array], what: str
) -> Iterator[tuple[str, Turn]]:
    """Yields the name of each kernel that supports the layer and a function that times it.

    The layer is the graph's node called ``layer``; names begin with ``what``. The function runs the
    layer once and returns milliseconds.
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
            yield f"{what} {kernel}", _timed(GpuProgram(plan, gpu), inputs, steps)


def _timed(program: GpuProgram, inputs: dict[str, Array], steps: list[int] | None = None) -> Turn:
    return lambda: float(inspect.time_steps(program, inputs, 1, steps).sum())


# -- networks -------------------------------------------------------------------------------------


def _network(model: str, gpu: cml.Gpu, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cml-model-") as folder:
        workload = Workload(Path(folder))
        MODELS[model](workload)
        graph, inputs = cml.load(workload.nnef), workload.load_inputs()
        samples = [_other(inputs, seed) for seed in range(8)]
        whole, words = _whole(model, graph, samples, inputs)
        works = {
            "GPU, floats": _gpu(graph, gpu, inputs),
            "GPU, integers": _gpu(whole, gpu, words),
            "CPU, floats": _cpu(graph, inputs),
            "CPU, integers": _cpu(whole, words),
            **_onnxruntime(workload, samples, inputs),
            **_ncnn(workload, samples, inputs),
        }
        times = in_turns({name: _settled(turn) for name, turn in works.items()}, rounds)
    print(f"\n{model}")
    for name, ms in times.items():
        print(f"  {name:36s} {statistics.median(ms):8.2f} ms")
    longer = ratio(times["GPU, integers"], times["GPU, floats"])
    print(f"  on the GPU integers take {longer:.2f} times as long as floats")
    print(f"  {IntegerMemory.of(whole)}")


def _whole(
    model: str, graph: Graph, samples: list[dict[str, Array]], inputs: dict[str, Array]
) -> tuple[Graph, dict[str, Array]]:
    """Returns the integer network and its inputs.

    For an agent of the demo it is the demo's integer network with random inputs, otherwise
    ``graph`` quantized to 8 bits with ``samples``, and ``inputs``.
    """
    if model.startswith("agent-"):
        agent = cml.load(AGENTS / "integer" / f"{model.removeprefix('agent-')}.nnef")
        return agent, random_words(agent, 11)
    return cml.quantize(graph, samples, sixteen=[])[0], inputs


def _other(inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    noise = np.random.default_rng(seed)
    return {n: (a * noise.uniform(0.5, 1, a.shape)).astype(np.float32) for n, a in inputs.items()}


def _gpu(graph: Graph, gpu: cml.Gpu, inputs: dict[str, Array]) -> Turn:
    optimized = optimize(graph)
    plan = lower(optimized, gpu.limits, layouts_for(optimized))
    return _timed(GpuProgram(plan, gpu), inputs)


def _cpu(graph: Graph, inputs: dict[str, Array]) -> Turn:
    session = cml.Session(graph, "cpu")
    return elapsed(lambda: session.run(inputs))


def _settled(turn: Turn) -> Turn:
    """Returns a function that sleeps, warms up, then runs ``turn`` and returns its milliseconds.

    During the sleep the previous engine's thread pool stops spinning; the warm-up wakes its own.
    """

    def settled() -> float:
        time.sleep(_SLEEP)
        start = time.perf_counter()
        while time.perf_counter() < start + _WARM:
            turn()
        return turn()

    return settled


def _onnxruntime(
    workload: Workload, samples: list[dict[str, Array]], inputs: dict[str, Array]
) -> dict[str, Turn]:
    """Returns functions by name that run ONNX Runtime once, in floats or in U8S8, and return ms.

    ONNX Runtime's own quantizer is used. Prints the reason and returns an empty dictionary if a
    package is missing.
    """
    try:
        import onnxruntime
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    except ImportError as error:
        print(f"ONNX Runtime: not installed ({error})")
        return {}

    class Reader:
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    target = workload.folder / "u8s8.onnx"
    quantize_static(
        str(workload.onnx), str(target), Reader(), quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip
    works: dict[str, Turn] = {}
    for name, file in (("floats", workload.onnx), ("U8S8", target)):
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        works[f"ONNX Runtime, CPU, {name}"] = elapsed(partial(session.run, None, inputs))
    return works


def _ncnn(
    workload: Workload, samples: list[dict[str, Array]], inputs: dict[str, Array]
) -> dict[str, Turn]:
    """Returns functions by name that run ncnn once, in floats or with int8, and return ms.

    The int8 convolutions are checked first and their error is printed. If ncnn is missing or
    fails, the reason is printed and the remaining functions are left out.
    """
    (contender,) = (c for c in CONTENDERS if c.key == "ncnn-cpu")
    works: dict[str, Turn] = {}
    try:
        network = Int8Network(workload, samples)
        print(f"ncnn's int8 differs from its floats by {network.error(inputs):.2%}")
        for name, files in (("floats", workload), ("int8", network.words)):
            loaded = contender.load(files)
            run = partial(loaded.run, inputs)
            works[f"{contender.title}, {loaded.device}, {name}"] = elapsed(run)
    except (ImportError, Unavailable) as error:
        print(f"ncnn: {error}")
    return works


if __name__ == "__main__":
    main()
