"""Checks single operators on the GPU, by their declarations; for this project and for games.

>>> print(check("cross"))                          # doctest: +SKIP
cross: 4 cases in 8 runs on the GPU, worst error 0.0 % of the tolerance

A kernel passes if its results agree with NumPy, if it writes nothing outside its outputs, and if
its results are bit-identical for any partition and order of its workgroups.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.compiler.integer.quant_params import Range, find_range_violation
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import half_of, matrices_in_half
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cpu.compare import compare
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import PARTITIONS, check_instance
from cml_engine.ir.graph import Array, Attrs, Fact, Graph, Node, fact_from
from cml_engine.ir.layout import C4, C4H, HALF
from cml_engine.ir.limits import Limits
from cml_engine.nnef.expansion.signatures import REQUIRED
from cml_engine.ops.declaration.checks import signature_of
from cml_engine.ops.declaration.choice import NO_VARIANTS, VariantTable
from cml_engine.ops.declaration.lowering import in_place_operand
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Case, CaseInput, IntegerFact, OpSpec, Random
from cml_engine.runtime.node_check import (
    integer_results,
    round_to_half,
    run_stored,
    stored_tolerance,
)
from cml_engine.runtime.rank import time_interleaved

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.program import GpuProgram

__all__ = [
    "CheckReport",
    "PlanOptions",
    "check",
    "time_interleaved",
]

#: fills the memory between tensors during a check; as a NaN it also reveals reads
SENTINEL = 0x7FC0_CAFE
_GUARD_BYTES = 512
#: the largest input value of an exact operator
_WORDS = 127


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of :func:`check`; ``worst`` is the worst error as a share of the tolerance.

    Examples
    --------
    >>> CheckReport(op="worley", cases=3, runs=9, worst=0.2, compared=True).worst < 1
    True
    """

    op: str
    cases: int
    runs: int
    worst: float
    compared: bool

    def __str__(self) -> str:
        done = f"{self.op}: {self.cases} cases in {self.runs} runs on the GPU, "
        if not self.compared:
            return f"{done}not compared with NumPy: it has no cpu function"
        return f"{done}worst error {100 * self.worst:.1f} % of the tolerance"


def check(spec: OpSpec | str, gpu: Gpu | None = None, *, partitions: int = 2) -> CheckReport:
    """Checks an operator over all of its ``cases`` and returns a report.

    The GPU's results are compared with NumPy's, with computed and with constant operands, in
    every memory layout that the kernel accepts. The kernel must write nothing outside its
    results, and these must be bit-identical for any partition of its workgroups. Raises
    ``AssertionError`` with the first case that fails and the reason.

    Without a ``gpu`` the default one is used.

    Examples
    --------
    >>> check("relu", runs_nothing) # doctest: +SKIP
    """
    from cml_engine.gpu.gpu import Gpu

    if not isinstance(spec, str):
        spec = check_instance(OpSpec, spec, "spec").name
    if gpu is not None:
        check_instance(Gpu, gpu, "gpu")
    PARTITIONS.check(partitions, "partitions")
    operator = lookup(spec)
    if not operator.cases:
        raise InputError(
            f"operator '{operator.name}' has no cases: add cases=[cml.ops.Case(…)] to it"
        )
    if operator.kernel is None:
        raise InputError(f"operator '{operator.name}' has no kernel to check")
    gpu = gpu or Gpu()
    worst, runs = 0.0, 0
    for one in kernel_checks(operator, gpu.limits):
        runs += one.is_first
        with _naming(one.label):
            worst = max(worst, one.prepare(gpu, partitions)())
    return CheckReport(operator.name, len(operator.cases), runs, worst, operator.cpu is not None)


@dataclass(frozen=True)
class KernelCheck:
    """A check of one kernel of an operator: a case, its operands, the layouts and the memory.

    ``option`` is the kernel's name among several, or ``""``. ``is_first`` is True for the first
    memory in which a kernel runs.
    """

    operator: OpSpec
    case: Case
    graph: Graph
    inputs: Mapping[str, Array]
    layouts: Mapping[str, str]
    option: str
    table: VariantTable
    keep: bool
    is_first: bool

    @property
    def label(self) -> str:
        """The operator, the case and the setup, for messages."""
        kernel = f", kernel '{self.option}'" if self.option else ""
        setup = f"constants {sorted(self.graph.constants)}, layouts {dict(self.layouts)}{kernel}"
        return f"{self.operator.name}, case {self.case.id} ({setup})"

    def describe(self, limits: Limits) -> str:
        """Returns the label and the names of the kernels' HLSL files."""
        options = PlanOptions(variants=self.table)
        steps = lower(self.graph, limits, dict(self.layouts), options).steps
        files = dict.fromkeys(Path(step.path).name for step in steps)
        return f"{self.label}, by {' and '.join(files)}"

    def prepare(self, gpu: Gpu, partitions: int = 2) -> Callable[[], float]:
        """Builds the kernels and computes NumPy's results; returns the function that checks.

        That function returns the worst error as a share of the tolerance, and raises
        ``AssertionError`` with the reason if a check fails. This method may be called in any
        thread.
        """
        run = prepare_check(
            self.graph, self.inputs, gpu, layouts=self.layouts, partitions=partitions,
            variants=self.table, keep=self.keep,
        )  # fmt: skip

        def check() -> float:
            error = run()
            if self.operator.exact and self.is_first:
                _check_whole(self.operator, self.graph, self.inputs)
            return error

        return check


def kernel_checks(operator: OpSpec, limits: Limits) -> Iterator[KernelCheck]:
    """Yields the checks of every case of an operator, by each kernel that a device may choose."""
    for case, graph, inputs, layouts in variants(operator):
        for option, table in _kernels_of(graph, limits, layouts):
            for i, (variant, stored, keep) in enumerate(_memories_of(graph, layouts)):
                yield KernelCheck(
                    operator, case, variant, inputs, stored, option, table, keep, i == 0
                )


@contextmanager
def _naming(subject: str) -> Iterator[None]:
    """Puts ``subject`` in front of the message of an ``AssertionError`` of the ``with`` block."""
    try:
        yield
    except AssertionError as reason:
        raise AssertionError(f"{subject}: {reason}") from reason


def _kernels_of(
    graph: Graph, limits: Limits, layouts: Mapping[str, str]
) -> Iterator[tuple[str, VariantTable]]:
    """Yields a name and a table for each kernel that may compute a one-node graph."""
    choices = lower(graph, limits, dict(layouts)).choices
    if not choices:
        yield "", NO_VARIANTS
    for choice in choices:
        for option in choice.options:
            yield option, VariantTable.forcing(choice.key, option)


def _memories_of(
    graph: Graph, layouts: Mapping[str, str]
) -> Iterator[tuple[Graph, Mapping[str, str], bool]]:
    """Yields a one-node graph, its layouts, and whether all tensors are kept.

    If the node may take the memory of an operand, a second graph makes it do so: there the operand
    is a copy of the input, which nothing else reads.
    """
    yield graph, layouts, True
    (node,) = graph.nodes
    operand = in_place_operand(node)
    if operand is None or operand in graph.constants:
        return
    copy = f"{operand}.copied"
    nodes = (
        Node("copy", (operand,), (copy,)),
        replace(node, inputs=tuple(copy if n == operand else n for n in node.inputs)),
    )
    facts = {**graph.facts, copy: graph.facts[operand]}
    placed = {**layouts, copy: layouts[operand]} if operand in layouts else dict(layouts)
    yield graph.with_(nodes=nodes, facts=facts), placed, False


def _check_whole(spec: OpSpec, graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Asserts that an exact operator returns whole numbers within its declared bounds."""
    (node,) = graph.nodes
    values = {**graph.constants, **inputs}
    read = [values[n] for n in node.inputs if graph.facts[n].dtype == "scalar"]
    low, high = (int(f([f(a) for a in read if a.size] or [0])) for f in (np.min, np.max))
    if spec.bounds is not None:
        facts = [
            IntegerFact(
                graph.facts[n].dtype,
                graph.facts[n].shape,
                int(values[n].min(initial=0)),
                int(values[n].max(initial=0)),
            )
            for n in node.inputs
        ]
        low, high = spec.bounds(node.attrs, *facts)
    for name, results in reference(graph, inputs).items():
        wrong = find_range_violation(name, results, Range(low, high))
        if name in node.outputs and wrong:
            raise AssertionError(wrong)


def variants(spec: OpSpec) -> Iterator[tuple[Case, Graph, dict[str, Array], dict[str, str]]]:
    """Yields each test of an operator: case, one-node graph, input values and layouts.

    Each case is tested with computed and with constant operands, and in every layout that the
    kernel accepts.
    """
    for case in spec.cases:
        for constants in (False, True) if len(case.inputs) > 1 else (False,):
            graph, inputs = case_graph(spec.name, case, constants=constants)
            for layouts in ({}, *blocked_layouts(graph)):
                yield case, graph, inputs, layouts


def case_graph(
    op: str, case: Case, *, constants: bool = False, seed: int = 0
) -> tuple[Graph, dict[str, Array]]:
    """Returns a one-node graph for a case of operator ``op``, and its random input values by name.

    With ``constants`` all inputs but the first are constants, like a model's weights.
    """
    exact = lookup(op).exact
    arrays = [_array(value, seed + i, exact) for i, value in enumerate(case.inputs)]
    names = tuple(f"x{i}" for i in range(len(arrays)))
    values = dict(zip(names, arrays, strict=True))
    constant_names = names[1:] if constants else ()
    facts = {name: fact_from(array) for name, array in values.items()}
    attrs = full_attrs(op, case.attrs)
    outputs = _output_names(op, attrs, [facts[n] for n in names])
    graph = Graph(
        name=op,
        inputs=tuple(n for n in names if n not in constant_names),
        outputs=outputs,
        nodes=(Node(op, names, outputs, attrs),),
        facts=facts,
        constants={n: values[n] for n in constant_names},
    )
    return infer_facts(graph), {n: values[n] for n in graph.inputs}


def full_attrs(op: str, attrs: Mapping[str, object]) -> Attrs:
    """Returns the attributes ``attrs`` and the signature's defaults for the others."""
    signature = signature_of(lookup(op))
    params = signature.attrs if signature else ()
    defaults = {p.name: p.default for p in params if p.default is not REQUIRED}
    return Attrs({**defaults, **attrs})


def prepare_check(
    graph: Graph,
    inputs: Mapping[str, Array],
    gpu: Gpu,
    *,
    layouts: Mapping[str, str] | None = None,
    partitions: int = 2,
    variants: VariantTable = NO_VARIANTS,
    keep: bool = True,
) -> Callable[[], float]:
    """Builds everything for a check of a graph of any nodes; returns the function that checks.

    That function compares each node with its own tolerance. It returns the worst error as a share
    of the tolerance, and raises ``AssertionError`` if a check fails. Operators without a CPU
    function, and all operators after them, are not compared. Without ``keep`` memory is reused,
    and only the outputs are compared. This function may be called in any thread, and its result
    where the GPU is used.
    """
    from cml_engine.gpu.program.program import GpuProgram

    layouts = dict(layouts or {})
    options = PlanOptions(keep=keep, guard=_GUARD_BYTES, variants=variants)
    program = GpuProgram(lower(graph, gpu.limits, layouts, options), gpu)
    expected = reference(graph, inputs, layouts)

    def check() -> float:
        steps = program.plan.steps
        ranges = [(step.index, 0, step.groups) for step in steps]
        first_arena = _run(program, inputs, ranges)
        worst = _compare(graph, program, layouts, expected)
        _check_guards(program, first_arena)
        if keep:
            _check_inputs(program, expected)
        for seed in range(partitions):
            arena = _run(program, inputs, random_partition(ranges, seed))
            if not np.array_equal(arena, first_arena):
                raise AssertionError(
                    f"partition {seed} of the workgroups gives other bits than the whole run"
                )
        return worst

    return check


def _compare(
    graph: Graph, program: GpuProgram, layouts: Mapping[str, str], expected: Mapping[str, Array]
) -> float:
    """Returns the worst error of the last run's tensors as a share of the tolerance."""
    from cml_engine.cpu.compare import advice, node_tolerance
    from cml_engine.gpu.program import inspect

    plan, worst = program.plan, 0.0
    in_steps = integer_results(plan)
    actual = {name: inspect.read_tensor(program, place) for name, place in plan.tensors.items()}
    for node in graph.nodes:
        tolerance = stored_tolerance(node, node_tolerance(node), layouts, node.title in in_steps)
        for name in (n for n in node.outputs if n in expected and n in actual):
            verdict = compare(actual[name], expected[name], tolerance)
            if not verdict.ok:
                parts = (
                    f"{name}: {verdict.problem}",
                    _describe_unwritten(actual[name]),
                    advice(node, tolerance, verdict),
                )
                raise AssertionError("; ".join(filter(None, parts)))
            worst = max(worst, verdict.worst)
    return worst


def _describe_unwritten(array: Array) -> str:
    """Returns how many values still are the sentinel, or were computed from it; "" for none."""
    if array.dtype.itemsize != 4:
        return ""
    count = np.count_nonzero(np.ascontiguousarray(array).view(np.uint32) == SENTINEL)
    if not count:
        return ""
    return f"{count} of {array.size} values were not written, or computed from unwritten memory"


def reference(
    graph: Graph, inputs: Mapping[str, Array], layouts: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Array]:
    """Returns every tensor of the graph by name, computed with NumPy, constants included.

    A tensor whose layout stores 16 bits is rounded. Tensors that depend on an operator without a
    CPU function are missing.
    """
    stored_inputs = {n: round_to_half(a) if layouts.get(n) == C4H else a for n, a in inputs.items()}
    values: dict[str, Array] = {**graph.constants, **stored_inputs}
    for node in graph.nodes:
        is_known = all(name in values for name in node.reads)
        if not is_known or lookup(node.op).cpu is None:
            continue
        results = run_stored(node, graph, layouts, values)
        for name, value in zip(node.outputs, results, strict=True):
            fact = graph.facts[name]
            if np.shape(value) != fact.shape:
                raise AssertionError(
                    f"{node.title}: NumPy gave {np.shape(value)}, infer said {fact}"
                )
            values[name] = value
    return values


def random_partition(
    steps: Sequence[tuple[int, int, int]], seed: int
) -> list[tuple[int, int, int]]:
    """Returns the steps' workgroups as ranges ``(step, first, count)``, cut at random places.

    Steps stay in order; the ranges of one step are in random order. ``steps`` has one range per
    step.
    """
    generator = random.Random(seed)
    parts: list[tuple[int, int, int]] = []
    for step, _, groups in steps:
        cuts = sorted({0, groups, *(generator.randrange(groups + 1) for _ in range(3))})
        ranges = [(step, a, b - a) for a, b in zip(cuts, cuts[1:], strict=False)]
        generator.shuffle(ranges)
        parts += ranges
    return parts


def blocked_layouts(graph: Graph) -> Iterable[dict[str, str]]:
    """Yields the combinations of layouts, other than plain, that a one-node graph must support.

    A combination has the layouts by tensor name.
    """
    node = graph.nodes[0]
    if weights := matrices_in_half(graph):
        yield dict.fromkeys(weights, HALF)
    half = half_of(node, graph.facts)
    for layouts in _in_blocks(graph):
        yield layouts
        if half in ("each", "alike"):
            yield dict.fromkeys(layouts, C4H)
        if half in ("each", "reads") and len(layouts) > 1:
            yield layouts | {name: C4H for name in layouts if name in node.reads}


def _in_blocks(graph: Graph) -> Iterator[dict[str, str]]:
    node = graph.nodes[0]
    kernel = lookup(node.op).kernel
    result = graph.facts[node.outputs[0]]
    if kernel is None or kernel.layouts == "plain" or result.rank < 3 or result.dtype != "scalar":
        return
    first = node.inputs[0]
    ends = [n for n in (first, node.outputs[0]) if n not in graph.constants]
    if kernel.layouts == "any":
        yield dict.fromkeys(ends, C4)
        for name in ends:
            yield {name: C4}
    elif kernel.layouts in ("blocks", "joins"):
        maps = [n for n in node.tensors if graph.facts[n].rank >= 3]
        fills_blocks = all(graph.facts[n].shape[1] % 4 == 0 for n in maps)
        fits = fills_blocks or kernel.layouts == "joins"
        if fits and graph.constants.keys().isdisjoint(maps):
            yield dict.fromkeys(maps, C4)
    elif result.shape[1] % 4 == 0 or kernel.layouts == "copies":
        maps = [n for n in node.tensors if graph.facts[n].rank == result.rank]
        same_channels = [n for n in maps if graph.facts[n].shape[1] == result.shape[1]]
        if graph.constants.keys().isdisjoint(same_channels) and all(
            graph.facts[n].dtype == "scalar" for n in same_channels
        ):
            yield dict.fromkeys(same_channels, C4)


def _run(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> Array:
    """Runs the program in these workgroup ranges, in an arena filled with a sentinel value.

    Returns the whole arena afterwards, including memory that no step writes.
    """
    from cml_engine.gpu.program import inspect

    inspect.fill_arena(program, SENTINEL)
    inspect.run_ranges(program, inputs, ranges)
    return np.array(inspect.read_arena(program))


def _check_guards(program: GpuProgram, arena: Array) -> None:
    """Asserts that the arena still holds the sentinel outside tensors and scratch memory."""
    is_free = np.ones(arena.size, bool)
    plan = program.plan
    used = [b for step in plan.steps for b in step.bindings if b.space == "arena"]
    used += [p.binding for p in (*plan.inputs.values(), *plan.tensors.values())]
    for binding in used:
        if binding.space == "arena":
            is_free[binding.offset // 4 : binding.end // 4] = False
    is_written = is_free & (arena != SENTINEL)
    if is_written.any():
        raise AssertionError(f"a kernel wrote outside its tensors, at word {is_written.argmax()}")


def _check_inputs(program: GpuProgram, values: Mapping[str, Array]) -> None:
    """Asserts that the kernels did not change the inputs on the GPU, which are writable there."""
    from cml_engine.gpu.program import inspect

    for name, place in program.plan.inputs.items():
        after = inspect.read_tensor(program, place)
        if not np.array_equal(after, values[name], equal_nan=after.dtype.kind == "f"):
            raise AssertionError(f"a kernel wrote to its input '{name}'")


def _array(value: CaseInput, seed: int, exact: bool = False) -> Array:
    if isinstance(value, np.ndarray | np.generic | float | int | bool):
        array = np.asarray(value)
        dtype = {"f": np.float32, "i": np.int32, "u": np.int32, "b": np.bool_}[array.dtype.kind]
        return array.astype(dtype)
    spec = value if isinstance(value, Random) else Random(tuple(value))
    generator = np.random.default_rng(seed)
    if spec.dtype == "logical":
        return generator.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.dtype == "integer":
        low, high = int(spec.low), max(int(spec.high), int(spec.low) + 1)
        return generator.integers(low, high, spec.shape).astype(np.int32)
    values = generator.uniform(spec.low, spec.high, spec.shape)
    return (np.rint(values * _WORDS) if exact else values).astype(np.float32)


def _output_names(op: str, attrs: Attrs, facts: list[Fact]) -> tuple[str, ...]:
    spec: OpSpec = lookup(op)
    try:
        inferred = spec.infer(attrs, *facts)
    except CmlError as error:
        raise AssertionError(f"{op}: the shape rule refuses the case: {error}") from error
    count = 1 if isinstance(inferred, Fact) else len(list(inferred))
    return tuple(f"y{i}" for i in range(count))
