"""Measures for ``cml frames`` in one run whether the budget is kept.

Frames of four kinds are interleaved, so that other load on the machine affects all of them: ours,
a control dispatch of fixed size (the machine's own noise), a number of operators per frame, and the
whole network in one frame. After every submit the host waits for the GPU, like one that waits for
the display: a software GPU would otherwise share its cores with the host's own work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Any

from cml_engine.compiler.plan import Slice
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array
from cml_engine.panel import percentile
from cml_engine.runtime.session import Session
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.jobs.lifecycle import network_of
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.reports import FrameReport

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

#: jobs that are not counted: the first build caches, and the cost model knows nothing yet
_WARM_UP_JOBS = 3
#: frames until timings have arrived at the end
_DRAIN = 12
#: records the host's own commands of a frame with an encoder
Render = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles and the maximum of milliseconds per frame."""

    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        return cls(*(percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)))

    @property
    def tail(self) -> float:
        """P99 divided by P50."""
        return self.p99 / self.p50 if self.p50 else 0.0

    def __str__(self) -> str:
        return f"{self.p50:8.3f} {self.p95:8.3f} {self.p99:8.3f} {self.max:8.3f}"


@dataclass(frozen=True)
class FramesReport:
    """The measurements of :func:`measure_frames`, for people (``str``) and as JSON.

    Times are in milliseconds; shares are of full frames with sliced runs only.
    """

    model: str
    device: str
    clock: str
    budget_ms: float
    frame_ms: float
    frames: int
    frames_over_budget: int
    budget_used: float
    slices_ms: Percentiles
    control_ms: Percentiles
    layers_ms: Percentiles
    layers_per_frame: int
    unsliced_ms: Percentiles
    longest_operator_ms: float
    longest_operator: str
    jobs: int
    frames_per_job: float
    #: the median of the GPU time of a sliced run over that of the unsliced run right after it
    sliced_over_unsliced: float
    #: the GPU time of the fastest sliced run over that of the fastest unsliced run
    sliced_over_unsliced_best: float
    identical: bool
    predicted_error_median: float
    scheduler_cpu_ms_per_frame: float
    encode_cpu_ms_per_frame: float
    margin: float

    def json(self) -> str:
        """Returns the report as the text of a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        head = f"{'ms per frame':28s} {'P50':>8s} {'P95':>8s} {'P99':>8s} {'max':>8s}   P99/P50"
        rows = [
            ("ours", self.slices_ms),
            ("control, a fixed dispatch", self.control_ms),
            (f"{self.layers_per_frame} operators per frame", self.layers_ms),
            ("unsliced", self.unsliced_ms),
        ]
        lines = [
            f"{self.model} on {self.device}, budget {self.budget_ms:g} ms, clock: {self.clock}",
            head,
            *(f"{name:28s} {p}   {p.tail:7.2f}" for name, p in rows),
            f"longest operator {self.longest_operator_ms:.3f} ms ({self.longest_operator})",
            self._kept(),
            f"{self.jobs} runs of {self.frames_per_job:.1f} frames each, GPU time "
            f"{self.sliced_over_unsliced:.3f} of unsliced "
            f"({self.sliced_over_unsliced_best:.3f} at best), results "
            f"{'identical' if self.identical else 'DIFFERENT'}",
            f"predicted against measured: median error {100 * self.predicted_error_median:.1f} %",
            f"CPU per frame: {self.scheduler_cpu_ms_per_frame:.3f} ms deciding, "
            f"{self.encode_cpu_ms_per_frame:.3f} ms encoding",
        ]
        return "\n".join(lines)

    def _kept(self) -> str:
        """Returns a line about how the budget was kept and used."""
        if not self.frames:
            return (
                f"no frame of ours was full: a whole run fits in {self.budget_ms:g} ms. "
                "A smaller --budget-ms shows how a budget is kept"
            )
        return (
            f"{self.frames} full frames of ours, {self.frames_over_budget} over budget "
            f"({100 * self.frames_over_budget / self.frames:.2f} %), "
            f"{100 * self.budget_used:.1f} % of the budget used, margin {self.margin:.2f}"
        )


class _Interleaved:
    """Submits and times frames between the scheduler's frames, on a separate executor."""

    def __init__(self, session: Session, render: Render) -> None:
        self.gpu, self.render = gpu_of(session), render
        self.executor = self.gpu.executor()
        self._frame = 0
        self._sinks: dict[int, list[float]] = {}

    def run(self, slices: Sequence[Slice], sink: list[float]) -> None:
        """Submits a frame of these slices and waits for the GPU.

        The frame's milliseconds are appended to ``sink`` when they arrive, a few frames later.
        """
        encoder = self.gpu.device.create_command_encoder()
        self.render(encoder)
        if slices:
            self.executor.encode(encoder, self._frame, [slices])
            self._sinks[self._frame] = sink
        self.gpu.queue.submit([encoder.finish()])
        self.gpu.wait()
        for timing in self.executor.end_frame(self._frame):
            self._sinks.pop(timing.frame).append(timing.ms)
        self._frame += 1

    def drain(self) -> None:
        """Submits empty frames until all timings have arrived."""
        for _ in range(_DRAIN):
            self.run([], [])


def gpu_of(session: Session) -> Gpu:
    """Returns the GPU of a session; raises :class:`InputError` for a session on the CPU."""
    if session.gpu is None:
        raise InputError(f"'{session.graph.name}' runs on the CPU: frames need a session on a GPU")
    return session.gpu


def measure_frames(
    session: Session,
    inputs: Mapping[str, Array],
    *,
    budget_ms: float = 4.0,
    frame_ms: float = 1000 / 60,
    frames: int = 600,
    layers: int = 4,
    cost_model: CostModel | None = None,
    progress: Callable[[int], None] = lambda done: None,
    render: Render = lambda encoder: None,
) -> FramesReport:
    """Runs the session sliced for ``frames`` frames or more, and returns the measured times.

    Three other types of frames are interleaved, for comparison. ``render`` records the host's own
    commands of a frame, which come before the network's. The session must be on a GPU with
    timestamp queries.
    """
    if not network_of(session).step_costs():
        raise InputError(
            f"'{session.graph.name}' has nothing to run on the GPU: no frame to measure"
        )
    # the other types of frames have their own network: they must not touch the job's memory, where
    # results of a whole run would hide what slices leave out
    unsliced_session = Session(session.source_graph, gpu_of(session), session.options)
    reference = unsliced_session.run(inputs)
    interleaved = _Interleaved(unsliced_session, render)
    scheduler = FrameScheduler(
        gpu_of(session), frame_ms, budget_ms, cost_model=cost_model or CostModel()
    )
    scheduler.times_all = True
    loop = _Loop(session, scheduler, inputs, reference, render)
    for _ in range(_WARM_UP_JOBS):
        loop.run_job()
    control = _control(unsliced_session, scheduler, budget_ms)
    program = network_of(unsliced_session)
    steps = [Slice(program, i, 0, cost.groups) for i, cost in enumerate(program.step_costs())]
    in_parts = cycle([steps[start : start + layers] for start in range(0, len(steps), layers)])
    loop.begin_counting()
    times: dict[str, list[float]] = {"control": [], "layers": [], "unsliced": []}
    while len(loop.reports) < frames:
        # interleave whole jobs: with another network between its frames, the sliced job would find
        # cold caches in every frame, and the unsliced run only once
        counted_before = len(loop.reports)
        loop.run_job()
        for _ in range(len(loop.reports) - counted_before):
            interleaved.run(control, times["control"])
        interleaved.run(next(in_parts), times["layers"])
        interleaved.run(steps, times["unsliced"])
        progress(min(len(loop.reports), frames))
    loop.drain()
    interleaved.drain()
    return _report(session, scheduler, loop, times, layers)


class _Loop:
    """Runs the scheduler's frames, one job after the other; compares each with the unsliced run."""

    def __init__(
        self, session: Session, scheduler: FrameScheduler, inputs: Mapping[str, Array],
        reference: Mapping[str, Array], render: Render,
    ) -> None:  # fmt: skip
        self.session, self.scheduler, self.inputs = session, scheduler, inputs
        self.reference, self.render = reference, render
        self.identical = True
        self.jobs: list[Job] = []
        self.measured: list[FrameReport] = []
        #: the reports of the counted frames
        self.reports: list[FrameReport] = []

    def begin_counting(self) -> None:
        self.drain()
        self.jobs.clear()
        self.measured.clear()
        self.reports.clear()

    def run_job(self) -> None:
        """Runs frames until a new job has ended in one."""
        self.session.reset()
        job = self.scheduler.submit(self.session, self.inputs)
        while not job.ended:
            self.reports.append(self._encode())
        self.jobs.append(job)
        self._check(job)

    def drain(self) -> None:
        """Runs empty frames until all timings have arrived."""
        for _ in range(_DRAIN):
            self._encode()

    def _encode(self) -> FrameReport:
        gpu = gpu_of(self.session)
        encoder = gpu.device.create_command_encoder()
        self.render(encoder)
        report = self.scheduler.encode(encoder)
        gpu.queue.submit([encoder.finish()])
        gpu.wait()
        self.measured += self.scheduler.end_frame()
        return report

    def _check(self, job: Job) -> None:
        while job.read(next(iter(self.reference))) is None:
            self._encode()
        for name, expected in self.reference.items():
            output = job.read(name)
            self.identical &= output is not None and output.tobytes() == expected.tobytes()
        job.release()


def _control(session: Session, scheduler: FrameScheduler, budget_ms: float) -> list[Slice]:
    """Returns slices of the longest operator that together take about as long as a frame's plan.

    They are one slice, repeated if the operator is short.
    """
    costs = network_of(session).step_costs()
    model = scheduler.cost_model
    index = max(range(len(costs)), key=lambda i: model.predict_ms(costs[i], costs[i].groups))
    aim = scheduler.controller.margin.aim_ms(budget_ms)
    count = model.groups_within(costs[index], costs[index].groups, aim) or 1
    granule = scheduler.executor.granule
    count = max(1, count - count % granule if count > granule else count)
    one = Slice(network_of(session), index, 0, count)
    # an operator shorter than a slice is repeated
    repeats = max(1, round(aim / max(1e-6, model.predict_ms(costs[index], count))))
    return [one] * min(repeats, 64)


def _report(
    session: Session,
    scheduler: FrameScheduler,
    loop: _Loop,
    times: Mapping[str, list[float]],
    layers: int,
) -> FramesReport:
    budget = scheduler.next_budget_ms
    # a frame in which a job ended is not full, so it does not show how well a budget is filled
    full = [r for r in loop.measured if r.slices and not r.finished and r.measured_ms is not None]
    took_ms = [r.measured_ms or 0.0 for r in full]
    model = scheduler.cost_model
    costs = network_of(session).step_costs()
    longest = max(costs, key=lambda c: model.predict_ms(c, c.groups))
    sliced_ms = dict.fromkeys((job.number for job in loop.jobs), 0.0)
    for r in loop.measured:
        if r.slices and r.slices[0].job in sliced_ms:
            sliced_ms[r.slices[0].job] += r.measured_ms or 0.0
    sliced = [ms for ms in sliced_ms.values() if ms > 0]
    unsliced = [ms for ms in times["unsliced"] if ms > 0]
    pairs = list(zip(sliced, unsliced, strict=False))
    errors = [abs(r.predicted_ms / r.measured_ms - 1) for r in full if r.measured_ms]
    return FramesReport(
        model=session.graph.name,
        device=gpu_of(session).name,
        clock=scheduler.executor.clock_source,
        budget_ms=budget,
        frame_ms=scheduler.frame_ms,
        frames=len(full),
        frames_over_budget=sum(ms > budget for ms in took_ms),
        budget_used=sum(took_ms) / (budget * len(took_ms)) if took_ms else 0.0,
        slices_ms=Percentiles.of(took_ms),
        control_ms=Percentiles.of(times["control"]),
        layers_ms=Percentiles.of(times["layers"]),
        layers_per_frame=layers,
        unsliced_ms=Percentiles.of(times["unsliced"]),
        longest_operator_ms=model.predict_ms(longest, longest.groups),
        longest_operator=longest.title,
        jobs=len(sliced_ms),
        frames_per_job=sum(1 for r in loop.measured if r.slices) / max(1, len(sliced_ms)),
        sliced_over_unsliced=median(a / b for a, b in pairs) if pairs else 0.0,
        sliced_over_unsliced_best=min(sliced) / min(unsliced) if pairs else 0.0,
        identical=loop.identical,
        predicted_error_median=median(errors) if errors else 0.0,
        scheduler_cpu_ms_per_frame=median(r.cpu_ms - r.encode_ms for r in loop.reports),
        encode_cpu_ms_per_frame=median(r.encode_ms for r in loop.reports),
        margin=budget / scheduler.controller.margin.aim_ms(budget) if budget else 1.0,
    )
