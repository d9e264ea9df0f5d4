"""Runs a network on the GPU and checks every operator against NumPy.

NumPy computes each operator from the operands that the GPU had, so an error is reported at the
operator that caused it and not at later ones. A NaN that a GPU may legitimately spread is not an
error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import find_range_violation, read_quant_params
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.half_products import allow_half_products
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions
from cml_engine.compiler.planning.draft import PlanOptions, Storage
from cml_engine.compiler.planning.layouts import rounded_weights
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.compare import (
    Comparison,
    advice,
    cancellation_error,
    compare,
    node_tolerance,
    propagated_error,
)
from cml_engine.cpu.cpu_program import CpuProgram, convert_to_fact, keep_results, run_node
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph, Node
from cml_engine.ir.layout import C4H, FIXED8, to_half
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu


#: the largest error of a convolution whose products are of 16 bits, over its largest result: by
#: Winograd's tiles 6e-3, by its windows 1e-3
_HALF_PRODUCTS = 8e-3


@dataclass(frozen=True, slots=True)
class StorageError:
    """The error of a tensor that is stored in 16 bits.

    ``largest`` is the largest difference and ``rms`` the root mean square of the differences,
    both relative to the largest value of the tensor. ``overflow`` is the largest value if it
    exceeds the range of 16 bits, else 0.
    """

    node: Node
    tensor: str
    largest: float
    rms: float
    overflow: float = 0.0


def storage_errors(
    graph: Graph, layouts: Mapping[str, str], inputs: Mapping[str, Array]
) -> Iterator[StorageError]:
    """Yields the error of 16-bit storage of every scalar result, in execution order.

    The network runs twice in NumPy, with and without rounding (module text). Stops at the first
    operator that has no CPU function.
    """
    exact: dict[str, Array] = {**graph.constants, **inputs}
    stored = dict(exact)
    readers = Counter(name for node in graph.nodes for name in node.reads)
    readers.update(graph.roots)
    for node in graph.nodes:
        if lookup(node.op).cpu is None:
            return
        exact_results = run_node(node, [exact[name] for name in node.reads])
        stored_results = run_stored(node, graph, layouts, stored)
        for name, value, stored_value in zip(
            node.outputs, exact_results, stored_results, strict=True
        ):
            exact[name] = convert_to_fact(node, graph.facts[name], value)
            stored[name] = stored_value
            if graph.facts[name].dtype == "scalar" and exact[name].size:
                yield storage_error(node, name, exact[name], stored_value)
        readers.subtract(node.reads)
        for name in node.reads:
            if not readers[name]:
                exact.pop(name, None)
                stored.pop(name, None)


def run_stored(
    node: Node, graph: Graph, layouts: Mapping[str, str], values: Mapping[str, Array]
) -> list[Array]:
    """Runs a node on operands as stored and returns its results rounded as they are stored.

    ``layouts`` says which tensors are stored in 16 bits. Weights in 16 bits are rounded before.
    """
    weights = rounded_weights(node, graph, layouts)
    arrays = [round_to_half(values[n]) if n in weights else values[n] for n in node.reads]
    results = []
    for name, value in zip(node.outputs, run_node(node, arrays), strict=True):
        array = convert_to_fact(node, graph.facts[name], value)
        results.append(round_to_half(array) if layouts.get(name) == C4H else array)
    return results


def round_to_half(array: Array) -> Array:
    """Returns the array rounded to 16 bits, as float32."""
    return to_half(array).astype(np.float32)


def storage_error(node: Node, name: str, exact: Array, stored: Array) -> StorageError:
    """Returns the error of a tensor in 16 bits, ``stored``, against the same tensor in 32 bits."""
    finite = np.isfinite(exact) & np.isfinite(stored)
    size = float(np.abs(exact, where=np.isfinite(exact), out=np.zeros_like(exact)).max())
    overflows = bool((np.isfinite(exact) & ~np.isfinite(stored)).any())
    error = np.where(finite, stored.astype(np.float64) - exact, 0.0) / (size or 1.0)
    return StorageError(
        node,
        name,
        float(np.abs(error).max()),
        float(np.sqrt(np.mean(np.square(error)))),
        size if overflows else 0.0,
    )


def stored_tolerance(
    node: Node, tolerance: Tolerance, layouts: Mapping[str, str], in_steps: bool
) -> Tolerance:
    """Returns ``tolerance``, widened for results that are stored in 16 bits.

    The results are compared with :func:`run_stored`. The tolerance does not change if they are
    stored in 32 bits or must be exact. ``in_steps`` is True if the node's weights are rounded to
    steps, as Winograd's are. A node whose products may be of 16 bits has the tolerance of these.
    """
    halves = node.attrs.get("halves")
    if not any(layouts.get(name) == C4H for name in node.outputs) and not in_steps and not halves:
        return tolerance
    if not (tolerance.rtol or tolerance.atol or tolerance.of_largest):
        return tolerance  # storing a value that is already rounded does not round it again
    return Tolerance(
        tolerance.rtol + 2**-10,
        tolerance.atol + 2**-24,
        f"{tolerance.why}; what lies near the middle may be stored as either neighbour",
        tolerance.of_largest + (4e-4 if in_steps else 0.0) + (_HALF_PRODUCTS if halves else 0.0),
    )


def integer_results(plan: Plan) -> frozenset[str]:
    """Returns the set of titles of the nodes whose weights are stored as fixed-point steps."""
    return frozenset(s.title for s in plan.steps if FIXED8 in s.defines.values())


# -- node check -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The check of one operator: its worst output's comparison, or why it was skipped.

    ``advice`` says what to declare if a game's operator only rounds otherwise than NumPy.
    """

    node: Node
    comparison: Comparison | None
    skipped: str = ""
    advice: str = ""

    @property
    def ok(self) -> bool:
        return self.comparison is None or self.comparison.ok


def check_nodes(
    graph: Graph,
    gpu: Gpu,
    inputs: Mapping[str, Array],
    storage: Storage = "float",
    decide: Decisions = NO_DECISIONS,
    written: Graph | None = None,
) -> Iterator[NodeCheck]:
    """Runs the optimized graph once on the GPU, then yields the check of each node in order.

    The GPU uses the same kernels as a session. If ``storage`` is ``"half"``, NumPy's results are
    rounded as they are stored. ``written`` is the graph before the passes; decisions may use its
    tensor names.
    """
    options = PlanOptions(keep=True, variants=table_for(gpu.name))
    plan = plan_graph(graph, gpu.limits, storage, options, decide, written=written, allow_cpu=True)
    layouts = plan.layouts
    in_steps = integer_results(plan)
    read_tensor = _run_keeping(plan, gpu, inputs)
    values: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.nodes:
        results = [read_tensor(name) for name in node.outputs]
        values.update(zip(node.outputs, results, strict=True))
        if lookup(node.op).cpu is None:
            reason = "the operator has no CPU function to check against"
            yield NodeCheck(node, None, reason)
            continue
        tolerance = stored_tolerance(node, node_tolerance(node), layouts, node.title in in_steps)
        expected = run_stored(node, graph, layouts, values)
        check = _check(node, results, expected, tolerance)
        if not check.ok and (node.epilogues or lookup(node.op).traits.is_sum):
            arrays = [values[name] for name in node.reads]
            error_of = propagated_error if node.epilogues else cancellation_error
            check = _check(node, results, expected, tolerance, error_of(node, arrays))
        yield check


def _run_keeping(plan: Plan, gpu: Gpu, inputs: Mapping[str, Array]) -> Callable[[str], Array]:
    """Runs every step of a plan that keeps all tensors, and returns a function that reads one.

    No variable is updated, because the checks need the values of this run.
    """
    from cml_engine.gpu.program import inspect
    from cml_engine.gpu.program.program import GpuProgram

    program = GpuProgram(plan, gpu)
    inspect.run_ranges(program, inputs, [(step.index, 0, step.groups) for step in plan.steps])
    return lambda name: inspect.read_tensor(program, plan.tensors[name])


@dataclass(frozen=True, slots=True)
class MeasuredErrors:
    """The errors of a network's scalar outputs on the GPU, against the same network in 32 bits.

    ``stored`` are those of 16-bit storage, ``multiplied`` those of 16-bit arithmetic with it, which
    are empty for the reason ``why_not``.
    """

    stored: list[StorageError]
    multiplied: list[StorageError]
    why_not: str = ""


def measure_errors(graph: Graph, gpu: Gpu, inputs: Mapping[str, Array]) -> MeasuredErrors:
    """Measures the output errors that 16-bit storage and 16-bit products cause on the GPU.

    The reference is the same network in 32 bits. On a software driver too, the convolutions that
    multiply in 16 bits are those that the rules choose for hardware.
    """
    full = _outputs(graph, gpu, inputs, "float")
    stored = _output_errors(graph, full, _outputs(graph, gpu, inputs, "half"))
    if not gpu.limits.half_arithmetic:
        return MeasuredErrors(stored, [], f"{gpu.name} has no shader-f16")
    variants = NO_VARIANTS if gpu.limits.software else table_for(gpu.name)
    limits, options = replace(gpu.limits, software=False), PlanOptions(variants=variants)
    marked = allow_half_products(graph)
    plan = plan_graph(marked, limits, "half", options, arithmetic="half", allow_cpu=True)
    if not any(step.defines.get("HALVES") for step in plan.steps):
        return MeasuredErrors(stored, [], "the rules choose it for no convolution of this network")
    return MeasuredErrors(stored, _output_errors(graph, full, _run(plan, gpu, inputs)))


def _output_errors(
    graph: Graph, exact: Mapping[str, Array], found: Mapping[str, Array]
) -> list[StorageError]:
    return [
        storage_error(node, name, exact[name], found[name])
        for node in graph.nodes
        for name in node.outputs
        if name in graph.outputs and exact[name].dtype.kind == "f" and exact[name].size
    ]


def _outputs(
    graph: Graph, gpu: Gpu, inputs: Mapping[str, Array], storage: Storage
) -> dict[str, Array]:
    options = PlanOptions(variants=table_for(gpu.name))
    return _run(plan_graph(graph, gpu.limits, storage, options, allow_cpu=True), gpu, inputs)


def _run(plan: Plan, gpu: Gpu, inputs: Mapping[str, Array]) -> dict[str, Array]:
    from cml_engine.gpu.program.program import GpuProgram

    return GpuProgram(plan, gpu).run(inputs)


def _check(
    node: Node,
    results: list[Array],
    expected: list[Array],
    tolerance: Tolerance,
    extra_error: Array | float = 0.0,
) -> NodeCheck:
    compared = [
        compare(g, w, tolerance, extra_error) for g, w in zip(results, expected, strict=True)
    ]
    worst = max(compared, key=lambda c: (not c.ok, c.worst))
    return NodeCheck(node, worst, advice=advice(node, tolerance, worst))


# -- integer check --------------------------------------------------------------------------------
# Compares every tensor of an integer network on the GPU and in NumPy, bit by bit.
#
# This is the command ``cml validate --integer``.

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
    optimized = optimize(graph)
    options = PlanOptions(keep=True, variants=table_for(gpu.name))
    plan = plan_graph(optimized, gpu.limits, options=options, allow_cpu=True)
    read_tensor = _run_keeping(plan, gpu, inputs)
    values: dict[str, Array] = {}
    CpuProgram(optimized).run(inputs, keep_results(values))
    session_outputs = _outputs(optimized, gpu, inputs, "float")
    lowered = lower_to_integers(graph)
    floats, compared = set(lowered.floats), 0
    for node in optimized.nodes:
        if not floats.isdisjoint(node.tensors):
            floats.update(node.outputs)
            continue
        for name in node.outputs:
            compared += 1
            result = read_tensor(name)
            differing = _differing(name, result, values[name], optimized)
            if not differing and name in lowered.declared_ranges:
                differing = find_range_violation(name, result, lowered.declared_ranges[name])
            if differing:
                location = f"{node.source}: " if node.source else ""
                return BitCheck(
                    graph.name, gpu.name, compared, f"{location}{node.title} {differing}"
                )
    for name in [n for n in graph.outputs if n not in floats]:
        if differing := _differing(name, session_outputs[name], values[name], optimized):
            message = f"in a session's memory, and nowhere else, output '{name}' {differing}"
            return BitCheck(graph.name, gpu.name, compared, message)
    return BitCheck(graph.name, gpu.name, compared, "", lowered.not_identical)


def _differing(name: str, result: Array, expected: Array, graph: Graph) -> str:
    """Returns a description of the first difference of two tensors; "" if they are equal.

    Outputs are compared by their bits, other tensors by value because 0 has two encodings.
    """
    if name in graph.outputs:
        result, expected = (np.ascontiguousarray(a).view(np.uint8) for a in (result, expected))
    differs = result != expected
    if not differs.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    return (
        f"differs first: {int(differs.sum())} of {differs.size} values of '{name}', at "
        f"{list(index)} the GPU has {result[index]}, NumPy {expected[index]}"
    )


def random_words(graph: Graph, seed: int) -> dict[str, Array]:
    """Returns random inputs by name; they exceed the range of the network's words by 10 %.

    An input without quantization gets random zeros and ones.
    """
    generator = np.random.default_rng(seed)
    quantizations, arrays = read_quant_params(graph), {}
    for name in graph.inputs:
        fact = graph.facts[name]
        if name in quantizations:
            ends, scale = quantizations[name].range, float(quantizations[name].scale)
            values = generator.uniform(ends.low * scale, ends.high * scale, fact.shape)
            arrays[name] = np.asarray(values * _BEYOND, np.float32)
        else:
            arrays[name] = np.asarray(generator.integers(0, 2, fact.shape), NUMPY_DTYPE[fact.dtype])
    return arrays


def saturated(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Returns the number of values outside the range of the input's words, by input.

    Inputs without any such value are left out.
    """
    counts = {}
    for name, line in read_quant_params(graph).items():
        if name in inputs:
            steps = np.asarray(inputs[name], np.float64) / float(line.scale)
            outside = (steps < line.range.low - 0.5) | (steps >= line.range.high + 0.5)
            if count := int((outside | np.isnan(steps)).sum()):
                counts[name] = count
    return counts
