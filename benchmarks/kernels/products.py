"""GFLOPS of conv, deconv and matmul by shape and kernel: ``python -m benchmarks.kernels.products``.

All cases run in interleaved rounds with two controls: products on registers and a copy. On a shared
machine only the ratios to the controls are meaningful. The table shows the minimum over the rounds
beside the median.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace

from benchmarks.interleaved import elapsed, in_turns
from benchmarks.kernels.controls import Control
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.layout import C4
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.cpu import conv_cpu
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.registry import load_families, lookup
from cml_engine.ops.declaration.spec import Case
from cml_engine.testing import case_graph

#: the timed run, and its FLOPs (bytes for a copy)
Work = tuple[Callable[[], object], float]

#: (name, operator, case); each is measured with every kernel variant worth timing
_AROUND = [(1, 1), (1, 1)]
_PLAIN = {"transposeA": False, "transposeB": False}
_TURNED = {"transposeA": False, "transposeB": True}
SHAPES: tuple[tuple[str, str, Case], ...] = (
    ("3x3 64>64 64²", "conv", conv_case((1, 64, 64, 64), (64, 64, 3, 3))),
    ("3x3 3>64 64²", "conv", conv_case((1, 3, 64, 64), (64, 3, 3, 3))),
    ("3x3 64>3 64²", "conv", conv_case((1, 64, 64, 64), (3, 64, 3, 3))),
    ("3x3 128>128 16²", "conv", conv_case((1, 128, 16, 16), (128, 128, 3, 3))),
    ("3x3 64>64 s2 64²", "conv", conv_case((1, 64, 64, 64), (64, 64, 3, 3), stride=[2, 2])),
    ("1x1 128>128 64²", "conv", conv_case((1, 128, 64, 64), (128, 128, 1, 1))),
    ("3x3 128 depthwise 64²", "conv", conv_case((1, 128, 64, 64), (128, 1, 3, 3), groups=0)),
    ("3x3 64>64 g3 64²", "conv", conv_case((1, 63, 64, 64), (63, 21, 3, 3), groups=3)),
    ("deconv 4x4 s2 64>32 32²", "deconv",
     deconv_case((1, 64, 32, 32), (64, 32, 4, 4), stride=[2, 2], padding=_AROUND)),
    ("400 1>402 s160, a second", "conv",
     conv_case((1, 1, 16240), (402, 1, 400), stride=[160], padding=[(0, 0)])),
    ("251 1>80, 4000 samples", "conv", conv_case((1, 1, 4000), (80, 1, 251))),
    ("64x128 by 128x512", "matmul", Case(((64, 128), (128, 512)), _PLAIN)),
    ("4 times 64x32 by (64x32)^T", "matmul", Case(((4, 64, 32), (4, 64, 32)), _TURNED)),
    ("3 times 197x197 by 197x64", "matmul", Case(((3, 197, 197), (3, 197, 64)), _PLAIN)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.kernels.products", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    load_families()
    gpu = Gpu()
    works: dict[str, Work] = {}
    fma, copy = Control(gpu, fma=True), Control(gpu, fma=False)
    works["control: products on registers"] = (fma.run, fma.flops)
    works["control: copy (GB/s)"] = (copy.run, copy.nbytes)
    for name, op, case in SHAPES:
        works |= {f"{name} {kernel}": work for kernel, work in _by_kernel(gpu, op, case).items()}
    works["NumPy 3x3 64>64 64²"] = _numpy(SHAPES[0][2])
    print(gpu.name)
    timers = {name: elapsed(run) for name, (run, _) in works.items()}
    _print(in_turns(timers, rounds), works)


def _by_kernel(gpu: Gpu, op: str, case: Case) -> dict[str, Work]:
    """Returns a function that runs the case, and its FLOPs, by kernel variant and tile.

    A matrix product multiplies two computed tensors; pictures are in blocks of four channels.
    """
    is_batch = isinstance(case.inputs[0], tuple) and len(case.inputs[0]) == 3
    graph, inputs = case_graph(op, case, constants=not is_batch or op != "matmul")
    blocked = [n for n in ("x0", "y0") if graph.facts[n].rank == 4 and graph.facts[n].shape[1] >= 4]
    layouts = dict.fromkeys(blocked, C4)
    (choice,) = lower(graph, gpu.limits, layouts).choices
    works = {}
    for option in choice.options:
        options = PlanOptions(variants=VariantTable.forcing(choice.key, option))
        works[option] = _work(gpu, lower(graph, gpu.limits, layouts, options), graph, inputs)
    return works


def _work(gpu: Gpu, plan: Plan, graph: Graph, inputs: dict[str, Array]) -> Work:
    program = GpuProgram(plan, gpu)
    program.write_inputs(inputs)
    first_words = replace(plan.outputs["y0"].binding, nbytes=16)  # waits, and copies almost no data

    def run() -> None:
        encoder = gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for step in plan.steps:
            program.encode_all(compute, step.index)
        compute.end()
        gpu.queue.submit([encoder.finish()])
        inspect.read_bytes(program, first_words)

    return run, _flops(graph)


def _flops(graph: Graph) -> float:
    """Returns the FLOPs of a graph's first node."""
    node = graph.nodes[0]
    facts = [graph.facts[n] for n in node.inputs], [graph.facts[n] for n in node.outputs]
    return lookup(node.op).cost(node.attrs, *facts).flops


def _numpy(case: Case) -> Work:
    graph, inputs = case_graph("conv", case, constants=True)
    node = graph.nodes[0]
    x, (filter, bias) = inputs["x0"], (graph.constants[n] for n in node.inputs[1:])
    return lambda: conv_cpu(node.attrs, x, filter, bias), _flops(graph)


def _print(ms: dict[str, list[float]], works: dict[str, Work]) -> None:
    best = {name: works[name][1] / min(times) / 1e6 for name, times in ms.items()}
    fma = next(iter(best.values()))
    print(f"{'':50}{'least ms':>10}{'median':>10}{'GFLOPS':>10}{'of registers':>14}")
    for name, times in ms.items():
        times_text = f"{min(times):10.2f}{statistics.median(times):10.2f}"
        print(f"{name:50}{times_text}{best[name]:10.1f}{best[name] / fma:14.0%}")


if __name__ == "__main__":
    main()
