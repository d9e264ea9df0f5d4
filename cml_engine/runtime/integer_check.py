"""Compares every tensor of an integer network on the GPU and in NumPy, bit by bit.

This is the command ``cml validate --integer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import read_quant_params
from cml_engine.compiler.integer.sum_bounds import find_range_violation
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.lower import lower
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph, Node

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

#: the factor by which random inputs exceed the range of the words
_BEYOND = 1.1


@dataclass(frozen=True, slots=True)
class BitCheck:
    """The result of :func:`check_bits`: the number of compared tensors and the first difference.

    ``first`` is a message about the first tensor that differs, or "".
    """

    model: str
    device: str
    tensors: int
    first: str = ""
    #: outputs that are computed in floats, which are not compared
    not_identical: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.first

    def __str__(self) -> str:
        head = f"{self.model}: {self.tensors} tensors, the GPU ({self.device}) and NumPy: "
        text = head + (self.first or "no bit differs")
        for name in self.not_identical:
            text += f"\n  output '{name}' is computed in floats, not identical on all machines: "
            text += "not compared"
        return text


def check_bits(graph: Graph, gpu: Gpu, inputs: Mapping[str, Array]) -> BitCheck:
    """Runs an integer network on the GPU and in NumPy and compares every tensor, bit by bit.

    The tensors before rounding are included. The outputs of a normal session, whose inputs are
    packed and whose memory is reused, are compared too. Stops at the first difference.
    """
    from cml_engine.gpu.program import inspect
    from cml_engine.gpu.program.program import GpuProgram

    optimized = optimize(graph)
    options = PlanOptions(variants=table_for(gpu.name))
    layouts = layouts_for(optimized, "float")
    plan = lower(optimized, gpu.limits, layouts, replace(options, keep=True))
    program = GpuProgram(plan, gpu)
    inspect.run_ranges(program, inputs, [(step.index, 0, step.groups) for step in plan.steps])
    values: dict[str, Array] = {}

    def watch(node: Node, results: Sequence[Array]) -> None:
        values.update(zip(node.outputs, map(np.array, results), strict=True))

    CpuProgram(optimized).run(inputs, watch)
    usual = GpuProgram(lower(optimized, gpu.limits, layouts, options), gpu).run(inputs)
    whole = lower_to_integers(graph)
    floats, compared = set(whole.floats), 0
    for node in optimized.nodes:
        if not floats.isdisjoint((*node.reads, *node.outputs)):
            floats.update(node.outputs)
            continue
        for name in node.outputs:
            compared += 1
            got = inspect.read_tensor(program, plan.tensors[name])
            differing = _differing(name, got, values[name], optimized)
            if not differing and name in whole.declared_ranges:
                differing = find_range_violation(name, got, whole.declared_ranges[name])
            if differing:
                place = f"{node.source}: " if node.source else ""
                return BitCheck(graph.name, gpu.name, compared, f"{place}{node.title} {differing}")
    for name in [n for n in graph.outputs if n not in floats]:
        if differing := _differing(name, usual[name], values[name], optimized):
            said = f"in a session's memory, and nowhere else, output '{name}' {differing}"
            return BitCheck(graph.name, gpu.name, compared, said)
    return BitCheck(graph.name, gpu.name, compared, "", whole.not_identical)


def _differing(name: str, got: Array, wanted: Array, graph: Graph) -> str:
    """Returns a description of the first difference of two tensors; "" if they are equal.

    Outputs are compared by their bits, other tensors by value because 0 has two encodings.
    """
    if name in graph.outputs:
        got, wanted = (np.ascontiguousarray(a).view(np.uint8) for a in (got, wanted))
    off = got != wanted
    if not off.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(off)[0])
    return (
        f"differs first: {int(off.sum())} of {off.size} values of '{name}', at {list(at)} the GPU "
        f"has {got[at]}, NumPy {wanted[at]}"
    )


def random_words(graph: Graph, seed: int) -> dict[str, Array]:
    """Returns random inputs by name; they exceed the range of the network's words by 10 %.

    An input without quantization gets random zeros and ones.
    """
    generator = np.random.default_rng(seed)
    lines, made = read_quant_params(graph), {}
    for name in graph.inputs:
        fact = graph.facts[name]
        if name in lines:
            ends, scale = lines[name].range, float(lines[name].scale)
            values = generator.uniform(ends.low * scale, ends.high * scale, fact.shape)
            made[name] = np.asarray(values * _BEYOND, np.float32)
        else:
            made[name] = np.asarray(generator.integers(0, 2, fact.shape), NUMPY_DTYPE[fact.dtype])
    return made


def saturated(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Returns the number of values outside the range of the input's words, by input.

    Inputs without any such value are left out.
    """
    found = {}
    for name, line in read_quant_params(graph).items():
        if name in inputs:
            steps = np.asarray(inputs[name], np.float64) / float(line.scale)
            outside = (steps < line.range.low - 0.5) | (steps >= line.range.high + 0.5)
            if count := int((outside | np.isnan(steps)).sum()):
                found[name] = count
    return found
