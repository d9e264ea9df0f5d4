"""Measures every option of a session's choices on an idle device, and reports the times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cml_engine.compiler import tuning_tables as tables
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.compiler.tuning_tables import Record
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import TIMES, check_flag, check_instance
from cml_engine.io.json_files import Json
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import Choice, VariantTable
from cml_engine.runtime.rank import time_interleaved, time_run
from cml_engine.runtime.session import Session
from cml_engine.tuning.trial import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from cml_engine.gpu.program.program import GpuProgram


@dataclass(frozen=True)
class TrialNode:
    """A choice of a plan, and a node that represents all ``count`` nodes with the same key.

    ``graph`` contains that node alone; ``layouts`` are the plan's layouts of its tensors.

    Examples
    --------
    >>> keys = [node.key for node in Bench(network).candidates]
    """

    choice: Choice
    count: int
    graph: Graph
    layouts: Mapping[str, str]

    @property
    def key(self) -> str:
        """The key under which tables store the choice; see :class:`Choice`."""
        return self.choice.key

    def plans(self, limits: Limits) -> dict[str, Plan]:
        """Returns the node's plan by option, the default first.

        Options whose kernels equal those of an earlier option are left out. The function is
        pure; it may be slow because it packs filters.
        """
        names = dict.fromkeys([self.choice.default, *self.choice.options])
        plans: dict[str, Plan] = {}
        known_work = set()
        for name in names:
            table = VariantTable.forcing(self.key, name)
            # with all tensors kept, no step overwrites the inputs, which the next run needs
            plan = lower(self.graph, limits, self.layouts, PlanOptions(keep=True, variants=table))
            work = tuple(
                (str(s.path), repr(s.defines), repr(s.params), s.groups) for s in plan.steps
            )
            if work not in known_work:
                known_work.add(work)
                plans[name] = plan
        return plans


class Bench:
    """The choices of a session's plan, ready to be measured: :attr:`candidates`.

    :func:`cml_engine.tuning.tune` measures all at once, :class:`cml_engine.Tuning`
    measures them in the frames of a game. With ``again``, choices that are already in the device's
    table are measured too.

    Examples
    --------
    >>> bench = Bench(network)
    >>> nodes = bench.plans
    """

    def __init__(self, session: Session, *, again: bool = True) -> None:
        check_instance(Session, session, "session")
        check_flag(again, "again")
        if session.gpu is None or session.plan is None:
            raise InputError(
                "there is nothing to tune on the CPU: kernels are chosen on a GPU only"
            )
        self.gpu = session.gpu
        self.model = session.graph.name
        self.device = self.gpu.name
        records = {} if again else tables.measured(self.device)
        self.candidates = [
            c for c in _candidates(session.graph, session.plan)
            if c.key not in records or records[c.key].default != c.choice.default
        ]  # fmt: skip

    def plans(self, candidate: TrialNode) -> dict[str, Plan]:
        """Returns the plans of :meth:`TrialNode.plans` by option; may be called from any thread."""
        return candidate.plans(self.gpu.limits)

    def trial(self, candidate: TrialNode, plans: Mapping[str, Plan], rounds: int) -> Trial:
        """Returns a new trial that compares the options of these plans in ``rounds`` rounds."""
        return Trial(candidate.choice.default, tuple(plans), rounds)

    def program(self, plan: Plan, *, deferred: bool = False) -> GpuProgram:
        """Returns a new program of the plan on the session's GPU."""
        from cml_engine.gpu.program.program import GpuProgram

        return GpuProgram(plan, self.gpu, deferred=deferred)

    def inputs(self, plan: Plan) -> dict[str, Array]:
        """Returns a random array for each input of the plan, by name."""
        from cml_engine.runtime.session import random_inputs

        return random_inputs({name: place.fact for name, place in plan.inputs.items()})

    def record(self, candidate: TrialNode, trial: Trial) -> Record | None:
        """Returns the table's entry for a finished trial; None if no option could be timed."""
        ms = trial.ms()
        if not ms:
            return None
        chosen = trial.winner
        source = f"{self.model}, {candidate.choice.node}"
        ratio = trial.ratio(chosen)
        return Record(candidate.key, trial.default, chosen, ms, ratio, trial.rounds, source)

    def save(self, records: list[Record]) -> Path:
        """Writes the records to the device's table of variants and returns the table's path."""
        return tables.save(self.device, records)


def _candidates(graph: Graph, plan: Plan) -> list[TrialNode]:
    """Returns one trial node per distinct choice of the plan, in the plan's order.

    Choices with a single option, and choices that the caller decided, are left out.
    """
    nodes = {node.title: node for node in graph.nodes}
    users: dict[str, dict[str, Choice]] = {}
    for choice in plan.choices:
        if len(choice.options) > 1 and not choice.requested:
            users.setdefault(choice.key, {})[choice.node] = choice
    candidates = []
    for by_node in users.values():
        first = next(iter(by_node.values()))
        node = nodes[first.node]
        layouts = {name: plan.layouts[name] for name in _names(node) if name in plan.layouts}
        candidates.append(TrialNode(first, len(by_node), _isolate_node(graph, node), layouts))
    return candidates


def _names(node: Node) -> dict[str, None]:
    return dict.fromkeys(node.tensors)


def _isolate_node(graph: Graph, node: Node) -> Graph:
    """Returns a graph of that node only; its operands are inputs or constants."""
    constants: dict[str, Any] = {n: graph.constants[n] for n in node.reads if graph.is_constant(n)}
    return Graph(
        name=f"{graph.name} {node.title}",
        inputs=tuple(n for n in dict.fromkeys(node.reads) if n not in constants),
        outputs=node.outputs,
        nodes=(node,),
        facts={name: graph.facts[name] for name in _names(node)},
        constants=constants,
    )


# -- report ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredChoice:
    """A choice with its trial and the resulting table entry, None if no option could be timed."""

    candidate: TrialNode
    trial: Trial
    record: Record | None

    def lines(self) -> list[str]:
        """Returns text lines: the key, options from fastest to slowest, excluded options."""
        candidate, trial = self.candidate, self.trial
        nodes = f"{candidate.count} node{'s' if candidate.count != 1 else ''}"
        rows = [f"{candidate.key}  ({nodes}, {candidate.choice.node})"]
        for name, ms in sorted(trial.ms().items(), key=lambda item: trial.ratio(item[0])):
            ratio = "" if name == trial.default else f"{trial.ratio(name):6.2f}"
            notes = ["default"] * (name == trial.default) + ["kept"] * (name == trial.winner)
            rows.append(f"  {name:28s} {ms:9.3f} ms {ratio:6s}  {', '.join(notes)}".rstrip())
        return rows + [f"  {name:28s} left out: {why}" for name, why in trial.dropped.items()]


@dataclass(frozen=True)
class TuneReport:
    """The result of :func:`cml_engine.tuning.tune`.

    ``before_after`` has the ms of whole runs by the engine's rules and by the table, ``[runs,
    2]``. It is empty if both select the same kernels.

    Examples
    --------
    >>> report = tune(network, rounds=2, dry_run=True)  # doctest: +SKIP
    """

    model: str
    device: str
    clock: str
    rounds: int
    measured: Sequence[MeasuredChoice]
    before_after: Sequence[Sequence[float]]
    file: Path | None

    @property
    def won(self) -> list[MeasuredChoice]:
        """The choices whose default was beaten by another option."""
        return [m for m in self.measured if m.record is not None and m.record.won]

    @property
    def ratio(self) -> float:
        """The network's time with the tuned kernels, divided by its time with the default ones.

        This is the median over pairs of consecutive runs; 1 if both select the same kernels.
        """
        return median(b / a for a, b in self.before_after) if self.before_after else 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.device}: {len(self.measured)} choices, {self.rounds} rounds "
            f"for each option in turns with the default, clock: {self.clock}",
            "times are the default's median, and that times an option's median ratio to it",
        ]
        lines += [line for m in self.measured for line in m.lines()]
        lines.append(
            f"{len(self.won)} of {len(self.measured)} choices are faster by another option"
        )
        lines.append(self._network())
        lines.append(f"table: {self.file}" if self.file else "nothing was written (dry run)")
        return "\n".join(lines)

    def _network(self) -> str:
        if not self.before_after:
            return "the network: nothing changes"
        by_rules, tuned = (min(run[i] for run in self.before_after) for i in (0, 1))
        faster = sum(b < a for a, b in self.before_after)
        return (
            f"the network: {by_rules:.3f} ms by the engine's rules, {tuned:.3f} ms tuned; "
            f"median ratio {self.ratio:.3f}, tuned faster in {faster} of {len(self.before_after)} "
            "runs in turns"
        )

    def json(self) -> str:
        """Returns the report as the text of a JSON object."""
        report: dict[str, Json] = {
            "model": self.model,
            "device": self.device,
            "clock": self.clock,
            "choices": {
                m.candidate.key: {"nodes": m.candidate.count, **m.record.to_json()}
                for m in self.measured
                if m.record is not None
            },
            "network_ms": self.before_after,
            "network_ratio": self.ratio,
            "file": None if self.file is None else str(self.file),
        }
        return json.dumps(report, indent=2)


# -- tune -----------------------------------------------------------------------------------------

#: a measurement repeats a node until it takes about this many ms, up to the most repeats
_LEAST_MS = 1.0
_MOST_REPEATS = 32


def tune(
    session: Session, *, rounds: int = 30, dry_run: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> TuneReport:  # fmt: skip
    """Times every option of the session's plan against the default and writes the device's table.

    Each option is timed ``rounds`` times. Then the whole network is timed by the engine's rules
    and by the table, in alternation. Returns a report of all times. With ``dry_run`` the table
    is not written. New sessions use the table; this one does not change.

    Blocks; in a running game use :class:`cml_engine.Tuning`. Raises :class:`InputError` if the
    session has no GPU.

    Examples
    --------
    >>> report = tune(network, rounds=2, dry_run=True)  # doctest: +SKIP
    """
    from cml_engine.gpu.timing.frame_timer import PassTimer

    TIMES.check(rounds, "rounds")
    bench = Bench(session)
    if not dry_run:
        tables.check_place(bench.device)
    measured = []
    for done, candidate in enumerate(bench.candidates):
        trial = _decide(bench, candidate, rounds)
        measured.append(MeasuredChoice(candidate, trial, bench.record(candidate, trial)))
        progress(done + 1)
    records = [m.record for m in measured if m.record is not None]
    table = {**tables.known(bench.device), **{record.key: record for record in records}}
    before_after = _whole_network(session, table, rounds)
    file = None if dry_run else bench.save(records)
    source = PassTimer(bench.gpu).source
    return TuneReport(bench.model, bench.device, source, rounds, measured, before_after, file)


def _decide(bench: Bench, candidate: TrialNode, rounds: int) -> Trial:
    plans = bench.plans(candidate)
    trial = bench.trial(candidate, plans, rounds)
    watch = _Stopwatch(bench, plans, trial.default)
    while pair := trial.next():
        times: dict[str, float] = {}
        for option in pair:
            try:
                times[option] = watch.ms(option)
            except CmlError as error:  # the driver refuses the kernel or is out of memory
                trial.drop(option, error.message)
                break
        else:
            trial.record(times)
    return trial


class _Stopwatch:
    """Times the options of one candidate on the device.

    It keeps the programs of the default and of one other option.
    """

    def __init__(self, bench: Bench, plans: Mapping[str, Plan], default: str) -> None:
        from cml_engine.gpu.timing.frame_timer import PassTimer

        self._bench, self._plans, self._default = bench, plans, default
        self._timer = PassTimer(bench.gpu)
        self._programs: dict[str, GpuProgram] = {}
        self._repeats = 0

    def ms(self, option: str) -> float:
        """Runs the node with that option several times and returns the milliseconds of one run."""
        program = self._program(option)
        if not self._repeats:
            self._run(program, 1)
            self._repeats = min(_MOST_REPEATS, ceil(_LEAST_MS / max(self._run(program, 1), 1e-3)))
        return self._run(program, self._repeats)

    def _run(self, program: GpuProgram, repeats: int) -> float:
        with program.residency.exclusive():
            program.load()
            return time_run(program, self._timer, repeats)

    def _program(self, option: str) -> GpuProgram:
        if option not in self._programs:
            for unused in set(self._programs) - {self._default}:
                del self._programs[unused]
            program = self._bench.program(self._plans[option])
            program.write_inputs(self._bench.inputs(program.plan))
            self._programs[option] = program
        return self._programs[option]


def _whole_network(
    session: Session, records: Mapping[str, tables.Record], rounds: int
) -> list[list[float]]:
    """Returns the ms of alternating whole runs, ``[rounds, (by rules, by table)]``.

    Returns an empty list if both select the same kernels.
    """
    from cml_engine.runtime.session import Session

    by_rules = replace(session.options, tuned=False)
    plan = replace(by_rules.plan, variants=tables.variants_of(records))
    tuned = Session(session.source_graph, session.gpu or "gpu", replace(by_rules, plan=plan))
    if tuned.plan is None or not any(choice.tuned for choice in tuned.plan.choices):
        return []
    untuned = Session(session.source_graph, session.gpu or "gpu", by_rules)
    return time_interleaved(rounds, untuned.timer(), tuned.timer())
