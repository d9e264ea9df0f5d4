"""The function ``tune``, which measures every option of a session's choices on an idle device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from cml_engine.compiler import tuning_tables as tables
from cml_engine.compiler.plan import Plan
from cml_engine.errors import CmlError
from cml_engine.errors.arguments import TIMES
from cml_engine.runtime.ablation import time_interleaved
from cml_engine.runtime.tuning.bench import Bench, TrialNode
from cml_engine.runtime.tuning.report import MeasuredChoice, TuneReport
from cml_engine.runtime.tuning.trial import Trial

if TYPE_CHECKING:
    from cml_engine.gpu.program.program import GpuProgram
    from cml_engine.runtime.session import Session

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

    Blocks; in a running game use ``scheduler.Tuning``. Raises :class:`InputError` if the session
    has no GPU.

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
        def encode(compute: Any, _: int) -> None:
            for _ in range(repeats):
                for step in program.plan.steps:
                    program.encode_all(compute, step.index)

        with program.exclusive():
            program.load()
            return self._timer.time([0], encode)[0] / repeats

    def _program(self, option: str) -> GpuProgram:
        if option not in self._programs:
            for other in set(self._programs) - {self._default}:
                del self._programs[other]
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
    usual = Session(session.source_graph, session.gpu or "gpu", by_rules)
    return time_interleaved(rounds, usual.timer(), tuned.timer())
