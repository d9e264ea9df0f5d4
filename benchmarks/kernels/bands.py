"""Measures networks under an activation memory limit: ``python -m benchmarks.kernels.bands``.

Runs each network with no limit on its arena, with half of that arena and with a quarter. Prints the
number of bands that its operators are computed in, the share of operations computed twice, and the
computation time over interleaved rounds: the best, and the median of the rounds' ratios. Ends with
an error unless the outputs are bit-identical.
"""

from __future__ import annotations

import argparse

import numpy as np

import cml_engine as cml
from benchmarks.interleaved import in_turns, ratio
from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph
from cml_engine.runtime.session import CompileOptions, random_inputs

_HEAD = (
    "| network | limit | arena MiB | bands | computed twice | dispatches | best ms | "
    "times as long |\n|---|--:|--:|--:|--:|--:|--:|--:|"
)
_SHARES = {"none": 1.0, "1/2": 0.5, "1/4": 0.25}


def stack(side: int, channels: int, convs: int, factor: int) -> Graph:
    """Returns a chain of 3x3 convolutions of a square picture.

    With ``factor`` > 1 it is an upscaler: the last convolution makes the pixels, which are shuffled
    into place and added to the nearest-neighbour upsampled picture.
    """
    lines, x, depth = [f"x = external<scalar>(shape = [1, 3, {side}, {side}]);"], "x", 3
    for k in range(convs):
        last = k == convs - 1
        out = 3 * factor**2 if last else channels
        lines.append(f"f{k} = variable<scalar>(shape = [{out}, {depth}, 3, 3], label = 'f{k}');")
        lines.append(f"c{k} = conv({x}, f{k}, 0.0); r{k} = relu(c{k});")
        x, depth = f"c{k}" if last else f"r{k}", out
    large = factor * side
    lines += [
        f"a = reshape({x}, shape = [1, 3, {factor}, {factor}, {side}, {side}]);",
        "b = transpose(a, axes = [0, 1, 4, 2, 5, 3]);",
        f"pixels = reshape(b, shape = [1, 3, {large}, {large}]);",
        f"near = nearest_upsample(x, factor = [{factor}, {factor}]);",
        "y = add(pixels, near);",
    ]
    text = "version 1.0;\ngraph net(x) -> (y)\n{\n" + "\n".join(lines) + "\n}\n"
    return cml.load(cml.MemoryModel(text), random_weights=0)


def measure(name: str, graph: Graph, gpu: cml.Gpu, rounds: int) -> None:
    """Returns the table rows of one network."""
    whole = _plan(cml.Session(graph, gpu))
    sessions, refused = {}, {}
    for limit, share in _SHARES.items():
        options = CompileOptions(arena_limit=int(share * whole.memory.peak))
        try:
            sessions[limit] = cml.Session(graph, gpu, options)
        except InputError as error:
            refused[limit] = error.message.split("the network takes ")[1].split()[0]
    inputs = random_inputs(sessions["none"].inputs)
    outputs = [session.run(inputs)["y"] for session in sessions.values()]
    assert all(np.array_equal(outputs[0], other) for other in outputs)
    times = in_turns({n: session.timer(inputs) for n, session in sessions.items()}, rounds)
    for limit in _SHARES:
        if limit in refused:
            least = int(refused[limit]) / 2**20
            print(f"| {name} | {limit} | {least:.1f} is the least | | | | | |")
            continue
        plan = _plan(sessions[limit])
        counts = ", ".join(str(run.count) for run in plan.bands) or "-"
        again = 100 * (plan.cost.flops / whole.cost.flops - 1)
        longer = 1 / ratio(times["none"], times[limit])
        print(
            f"| {name} | {limit} | {plan.memory.peak / 2**20:.1f} | {counts} | {again:.1f} % | "
            f"{len(plan.steps)} | {min(times[limit]):.0f} | {longer:.2f} |"
        )


def _plan(session: cml.Session) -> Plan:
    assert session.plan is not None
    return session.plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    gpu = cml.Gpu()
    print(f"{gpu.name}\n\n{_HEAD}")
    measure("4x upscaler, 8 conv of 32, 256x256", stack(256, 32, 8, 4), gpu, args.rounds)
    measure("8 conv of 32, 512x512", stack(512, 32, 8, 1), gpu, args.rounds)


if __name__ == "__main__":
    main()
