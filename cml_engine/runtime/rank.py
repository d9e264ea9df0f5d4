"""Measures the share of each operator in a network's time, and the time without an operator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine.compiler.plan import Step
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError, Source
from cml_engine.errors.arguments import TIMES, check_callable
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost

if TYPE_CHECKING:
    from cml_engine.gpu.program.program import GpuProgram
    from cml_engine.gpu.timing.frame_timer import PassTimer

#: the number of slowest operators in the table; the JSON has all
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class OpTime:
    """A timed item: a GPU step or a CPU node.

    ``key`` identifies the operator's instance, so that an operator of three dispatches counts
    once. ``place`` is the operator's position: a line of NNEF text or a node of an ONNX file.
    ``kernel`` is the chosen kernel of an operator that has several.
    """

    op: str
    key: str
    cost: Cost
    place: str
    kernel: str = ""

    @classmethod
    def of_step(cls, step: Step) -> OpTime:
        return cls(step.full_op, step.title, step.cost, _place(step.source), step.variant)

    @classmethod
    def of_node(cls, node: Node, graph: Graph) -> OpTime:
        from cml_engine.compiler.planning.dispatches import node_cost

        cost = node_cost(lookup(node.op), node, graph)
        return cls(node.full_op, node.title, cost, _place(node.source))


@dataclass(frozen=True, slots=True)
class OperatorShare:
    """The share of one type of operator in a network's time.

    ``ms`` is the median over runs of the type's total time.
    """

    name: str
    percentage: float
    ms: float
    count: int
    average_ms: float
    gflops: float
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class RankNode:
    """The time of one operator of the network.

    ``title`` is its name in plans, ``place`` its position in messages, ``kernel`` its chosen kernel
    if it has several.
    """

    title: str
    place: str
    percentage: float
    ms: float
    kernel: str = ""


@dataclass(frozen=True)
class RankReport:
    """The times of a network's operators.

    ``total_ms`` is the median over runs of the summed times. ``rows`` lists the times by type of
    operator, ``nodes`` the times of single operators. Both are sorted from the slowest to the
    fastest.
    """

    model: str
    device: str
    clock: str
    runs: int
    total_ms: float
    spread_ms: tuple[float, float]
    operations: int
    rows: tuple[OperatorShare, ...]
    nodes: tuple[RankNode, ...] = ()

    @classmethod
    def of(
        cls, model: str, device: str, clock: str, timed: Sequence[OpTime], times: Any
    ) -> RankReport:
        """Returns a report of ``times`` in ms, ``[runs, len(timed)]``; ``timed`` may be empty."""
        times = np.asarray(times, np.float64).reshape(len(times), len(timed))
        sums = times.sum(axis=1)
        total = float(np.median(sums)) if len(timed) else 0.0
        spread = (float(sums.min()), float(sums.max())) if len(timed) else (0.0, 0.0)
        names = dict.fromkeys(t.op for t in timed)
        rows = [_row(name, timed, times, total) for name in names]
        rows.sort(key=lambda row: -row.ms)
        nodes = [_node(key, timed, times, total) for key in dict.fromkeys(t.key for t in timed)]
        nodes.sort(key=lambda node: -node.ms)
        count = sum(row.count for row in rows)
        parts = (tuple(rows), tuple(nodes))
        return cls(model, device, clock, len(times), total, spread, count, *parts)

    def __str__(self) -> str:
        where = "CPU" if self.device.startswith("CPU") else "GPU"
        lines = [
            f"Inference time {where}: {self.total_ms / 1e3:.6f} seconds ({self.total_ms:.3f} ms), "
            f"median of {self.runs} runs ({self.spread_ms[0]:.3f} to {self.spread_ms[1]:.3f} ms)",
            f"Device: {self.device}; clock: {self.clock}, every step timed by itself",
            f"Total operation count: {self.operations}",
            "Operation ranking:",
            f"{'name':24s} {'percentage':>10s} {'time':>12s} {'count':>6s} {'avg time':>12s} "
            f"{'GFLOP/s':>9s} {'GB/s':>7s}",
        ]
        for r in self.rows:
            lines.append(
                f"{r.name:24s} {r.percentage:8.2f} % {r.ms:9.3f} ms {r.count:6d} "
                f"{r.average_ms:9.3f} ms {r.gflops:9.2f} {r.gbytes_per_s:7.2f}"
            )
        if self.nodes:
            lines.append("Slowest operators:")
        for n in self.nodes[:_SHOWN]:
            kernel = f"  kernel {n.kernel}" if n.kernel else ""
            lines.append(f"{n.title:34s} {n.percentage:8.2f} % {n.ms:9.3f} ms  {n.place}{kernel}")
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the whole report as the text of a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def csv(self) -> str:
        """Returns the rows, one per type of operator, as CSV text with a header."""
        fields = ("name", "percentage", "ms", "count", "average_ms", "gflops", "gbytes_per_s")
        lines = [",".join(fields)]
        lines += [",".join(str(getattr(row, f)) for f in fields) for row in self.rows]
        return "\n".join(lines)


def _place(source: Source | None) -> str:
    return str(source) if source else ""


def _node(key: str, timed: Sequence[OpTime], times: Any, total: float) -> RankNode:
    mine = [i for i, t in enumerate(timed) if t.key == key]
    ms = float(np.median(times[:, mine].sum(axis=1)))
    kernels = ", ".join(dict.fromkeys(timed[i].kernel for i in mine if timed[i].kernel))
    return RankNode(key, timed[mine[0]].place, 100 * ms / total if total else 0.0, ms, kernels)


def _row(name: str, timed: Sequence[OpTime], times: Any, total: float) -> OperatorShare:
    mine = [i for i, t in enumerate(timed) if t.op == name]
    ms = float(np.median(times[:, mine].sum(axis=1)))
    count = len({timed[i].key for i in mine})
    cost = sum((timed[i].cost for i in mine), Cost(0, 0, 0))
    seconds = max(ms, 1e-9) / 1e3
    return OperatorShare(
        name=name,
        percentage=100 * ms / total if total else 0.0,
        ms=ms,
        count=count,
        average_ms=ms / count,
        gflops=cost.flops / seconds / 1e9,
        gbytes_per_s=cost.bytes / seconds / 1e9,
    )


def rank_cpu(
    graph: Graph, arrays: Mapping[str, Array], runs: int, given_names: Sequence[str] | None
) -> RankReport:
    """Measures the wall-clock time of every node in NumPy and returns the report.

    ``given_names`` are the inputs that each run provides; the others keep their values. None is
    all.
    """
    program = CpuProgram(graph, retain=given_names is not None)
    program.run(arrays)
    given_arrays = arrays if given_names is None else {name: arrays[name] for name in given_names}
    nodes: list[Node] = []
    program.run(given_arrays, lambda node, _: nodes.append(node))
    operators = [OpTime.of_node(node, graph) for node in nodes]
    times = np.array([_time_nodes(program, given_arrays) for _ in range(runs)])
    return RankReport.of(graph.name, "CPU (NumPy)", "wall clock", operators, times)


def rank_gpu(
    program: GpuProgram, arrays: Mapping[str, Array], runs: int, given_names: Sequence[str] | None
) -> RankReport:
    """Measures the time of every step on the GPU and returns the report.

    ``given_names`` are the inputs that each run provides; the others keep their values. None is
    all.
    """
    plan = program.plan
    steps = None if given_names is None or plan.reuse is None else plan.reuse.steps(given_names)
    return gpu_report(program, time_gpu(program, arrays, runs, steps), steps)


def time_gpu(
    program: GpuProgram, arrays: Mapping[str, Array], runs: int, steps: Sequence[int] | None
) -> Array:
    """Returns the milliseconds of some steps (None is all), ``[runs, steps]``, after a warm-up."""
    from cml_engine.gpu.program import inspect

    inspect.time_steps(program, arrays, 1)
    return inspect.time_steps(program, arrays, runs, steps)


def time_run(program: GpuProgram, timer: PassTimer, repeats: int = 1) -> float:
    """Returns the milliseconds of one whole run of a program, measured over ``repeats`` runs.

    Uploads of inputs and readbacks of outputs are not included.
    """
    from cml_engine.gpu.program import inspect

    if program.on_cpu:
        steps = range(len(program.plan.steps))
        times = [sum(inspect.time_once(program, timer, steps)) for _ in range(repeats)]
        return sum(times) / repeats

    def encode(compute: object, _: int) -> None:
        for _ in range(repeats):
            for step in program.plan.steps:
                program.encode_all(compute, step.index)

    return timer.time([0], encode)[0] / repeats


def gpu_report(program: GpuProgram, times: Array, steps: Sequence[int] | None = None) -> RankReport:
    """Returns the report of ``times`` that :func:`time_gpu` measured for the same steps."""
    plan, gpu = program.plan, program.gpu
    operators = [OpTime.of_step(s) for s in plan.steps if steps is None or s.index in steps]
    clock = "timestamps" if gpu.has_timestamps else "wall clock"
    return RankReport.of(plan.name, gpu.name, clock, operators, times)


def _time_nodes(program: CpuProgram, arrays: Mapping[str, Array]) -> list[float]:
    times: list[float] = []
    last = time.perf_counter()

    def watch(node: Node, results: object) -> None:
        nonlocal last
        now = time.perf_counter()
        times.append(1e3 * (now - last))
        last = time.perf_counter()

    program.run(arrays, watch)
    return times


# -- ablation -------------------------------------------------------------------------------------
# Measures an operator's end-to-end cost by replacing it with a stub that computes nothing.
#
# The rank-operations report times every step separately. Here whole runs are timed, which includes
# the operator's effect on its neighbours (caches, overlap).


@dataclass(frozen=True)
class AblationReport:
    """The times in ms of a network with and without an operator, as medians over runs.

    ``gain_ms`` is the median of the differences of consecutive runs.
    """

    model: str
    operator: str
    count: int
    device: str
    clock: str
    runs: int
    with_ms: float
    without_ms: float
    gain_ms: float
    with_spread_ms: tuple[float, float]
    without_spread_ms: tuple[float, float]

    @classmethod
    def of(
        cls, graph: Graph, operator: str, device: str, clock: str, times: Sequence[Sequence[float]]
    ) -> AblationReport:
        """Returns a report of ``times`` in ms, ``[runs, (with, without)]``, with their medians."""
        pairs = np.asarray(times, np.float64)
        medians = np.median(pairs, axis=0)
        low, high = pairs.min(axis=0), pairs.max(axis=0)
        return cls(
            model=graph.name,
            operator=operator,
            count=sum(node.ops.count(operator) for node in graph.nodes),
            device=device,
            clock=clock,
            runs=len(pairs),
            with_ms=float(medians[0]),
            without_ms=float(medians[1]),
            gain_ms=float(np.median(pairs[:, 0] - pairs[:, 1])),
            with_spread_ms=(float(low[0]), float(high[0])),
            without_spread_ms=(float(low[1]), float(high[1])),
        )

    @property
    def share(self) -> float:
        """The operator's share of the network's time: ``gain_ms`` in percent of ``with_ms``."""
        return 100 * self.gain_ms / self.with_ms if self.with_ms else 0.0

    def __str__(self) -> str:
        def line(label: str, ms: float, spread: tuple[float, float]) -> str:
            return f"  {label:24s} {ms:9.3f} ms   ({spread[0]:.3f} to {spread[1]:.3f} ms)"

        return "\n".join(
            [
                f"{self.model}: {self.operator} ({self.count} of them) replaced by a stub that "
                "computes nothing",
                f"Device: {self.device}; clock: {self.clock}, whole runs, {self.runs} of each in "
                "turns, medians",
                line(f"with {self.operator}", self.with_ms, self.with_spread_ms),
                line(f"without {self.operator}", self.without_ms, self.without_spread_ms),
                f"  {'the most to be gained':24s} {self.gain_ms:9.3f} ms   ({self.share:.1f} %)",
            ]
        )

    def json(self) -> str:
        """Returns the report as the text of a JSON object."""
        return json.dumps({**asdict(self), "share": self.share}, indent=2)

    def csv(self) -> str:
        """Returns the report as CSV text: a header and one row."""
        fields = ("operator", "count", "with_ms", "without_ms", "gain_ms", "share")
        return ",".join(fields) + "\n" + ",".join(str(getattr(self, f)) for f in fields)


def check_operator(graph: Graph, operator: str) -> None:
    """Raises :class:`InputError` if the operator is not in the graph or runs nothing on the GPU."""
    if operator not in (names := sorted(graph.ops)):
        raise InputError(
            f"no operator '{operator}' in model '{graph.name}'; it has {', '.join(names)}"
        )
    if lookup(operator).alias:
        raise InputError(f"'{operator}' runs nothing on the GPU: there is nothing to replace")


def time_interleaved(runs: int, *timers: Callable[[], Any]) -> list[list[float]]:
    """Calls timers in alternating order and returns their milliseconds, ``[runs, timers]``.

    A timer is a function that measures one run and returns its milliseconds. Each is called once
    before as a warm-up.

    Examples
    --------
    >>> def run_once() -> float:
    ...     return 0.5  # milliseconds
    >>> time_interleaved(2, run_once, run_once)
    [[0.5, 0.5], [0.5, 0.5]]
    """
    TIMES.check(runs, "runs")
    for timer in timers:
        check_callable(timer, "a timer")()
    found = []
    for run in range(runs):
        order = range(len(timers)) if run % 2 == 0 else reversed(range(len(timers)))
        times = {i: float(timers[i]()) for i in order}
        found.append([times[i] for i in range(len(timers))])
    return found
