"""Simulates frames on another GPU or under another policy.

Everything runs on a virtual clock and a simulated device, so hours take seconds and every run is
the same.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from cml_engine.compiler.plan import Slice, StepCost, Timing
from cml_engine.panel import percentile
from cml_engine.scheduler.clock import VirtualClock
from cml_engine.scheduler.executor import Executor, Handle
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.controller import TailMargin
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.planning.plan import Planner, operators_per_frame, plan_frame
from cml_engine.scheduler.planning.policy import Policy, by_priority, least_laxity
from cml_engine.scheduler.reports import FrameReport


@dataclass(frozen=True, slots=True, init=False)
class SimStep(StepCost):
    """A step with the cost that the scheduler sees, and its true time ``ms_per_group``."""

    ms_per_group: float

    def __init__(
        self,
        key: str,
        groups: int,
        ms_per_group: float,
        op: str = "step",
        title: str = "step",
        flops: float = 1e6,
        nbytes: float = 1e4,
    ) -> None:
        StepCost.__init__(self, key, op, title, groups, flops, nbytes)
        object.__setattr__(self, "ms_per_group", ms_per_group)

    def ms(self, count: int) -> float:
        """Returns the true milliseconds of ``count`` workgroups in one dispatch."""
        return count * self.ms_per_group


@dataclass(frozen=True, slots=True, init=False)
class WaveStep(SimStep):
    """A step on a card whose SIMDs compute whole waves, as ``benchmarks.hardware`` models it.

    A card of ``simds`` SIMDs computes ``count`` workgroups of ``waves`` waves each. A wave keeps
    its SIMD busy for ``busy_ms`` and takes ``alone_ms`` if no other wave is there; ``resident``
    waves fit a SIMD. Memory moves the step's tensors in ``memory_ms``.
    """

    simds: int
    waves: int
    busy_ms: float
    alone_ms: float
    resident: int
    memory_ms: float

    def __init__(
        self, key: str, groups: int, *, simds: int, waves: int, busy_ms: float, alone_ms: float,
        resident: int, memory_ms: float, **more: Any,
    ) -> None:  # fmt: skip
        for name, value in (
            ("simds", simds), ("waves", waves), ("busy_ms", busy_ms), ("alone_ms", alone_ms),
            ("resident", resident), ("memory_ms", memory_ms), ("groups", groups),
        ):  # fmt: skip
            object.__setattr__(self, name, value)
        SimStep.__init__(self, key, groups, self.ms(groups) / max(groups, 1), **more)

    def ms(self, count: int) -> float:
        """Returns the milliseconds of the busiest SIMD, or of the memory if that takes longer."""
        deep = -(-count * self.waves // self.simds)
        rounds = -(-deep // min(self.resident, max(deep, 1)))
        share = count / max(self.groups, 1)
        return max(deep * self.busy_ms, rounds * self.alone_ms, share * self.memory_ms)


@dataclass(eq=False)
class SimNetwork:
    """A network of simulated steps; :func:`network_like` creates one from a real plan's costs."""

    name: str
    steps: Sequence[SimStep]
    ready: bool = True
    prepare_frames: int = 0
    exclusive_group: str | None = None
    #: the time of each step at load, for a device that cannot time its work in a frame
    load_times_ms: Sequence[float] = ()
    waiting_for: str = ""
    #: None: a simulated job has outputs of every name
    output_names: Collection[str] | None = None
    #: True if inputs that are left out keep their values, and the steps that a job then runs
    retains: bool = False
    reuse: dict[frozenset[str], tuple[int, ...] | None] = field(default_factory=dict)

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> tuple[int, ...] | None:
        return self.reuse.get(frozenset(given))

    def step_costs(self) -> Sequence[SimStep]:
        return self.steps

    def prepare(self, budget_ms: float) -> None:
        self.prepare_frames -= 1
        self.ready = self.prepare_frames <= 0

    def advance_successor(self, budget_ms: float) -> None: ...

    @property
    def total_ms(self) -> float:
        return sum(step.groups * step.ms_per_group for step in self.steps)


def network_like(
    name: str, costs: Sequence[StepCost], speed: float = 1.0, model: CostModel | None = None
) -> SimNetwork:
    """Returns a simulated network with the steps of a real plan (``plan.step_costs()``).

    Their times are predicted by ``model`` (a :class:`CostModel`; by default from FLOPs and bytes
    only), on a device ``speed`` times as fast.
    """
    cost_model = model or CostModel()
    steps = [
        SimStep(
            c.key, c.groups, cost_model.predict_ms(c, c.groups) / max(1, c.groups) / speed,
            c.op, c.title, c.flops, c.nbytes,
        )
        for c in costs
    ]  # fmt: skip
    return SimNetwork(name, steps)


@dataclass(frozen=True, slots=True)
class Noise:
    """Lognormal noise of simulated times.

    ``common`` is shared by all slices of a frame (clocks, other programs); ``single`` is drawn
    for each slice. Both are standard deviations of the logarithm; 0 is an exact device. In
    addition, ``hitch_share`` of the frames take ``hitch_ms`` longer, independent of their work.
    """

    common: float = 0.0
    single: float = 0.0
    hitch_ms: float = 0.0
    hitch_share: float = 0.0

    @classmethod
    def of_tail(cls, p99_over_p50: float, common_share: float = 0.5) -> Noise:
        """Returns noise for which the P99 of the times is ``p99_over_p50`` times their median.

        ``common_share`` of the variance is common to a frame.
        """
        sigma = math.log(p99_over_p50) / 2.3263
        return cls(sigma * math.sqrt(common_share), sigma * math.sqrt(1 - common_share))


#: a device without any noise
EXACT = Noise()


class SimRun:
    """A run on a simulated GPU, and its outputs, which consist of their names only."""

    harm, has_arrived = "", True

    def tensor(self, name: str) -> Handle:
        return name

    read = tensor

    def release(self) -> None: ...


class SimGpu:
    """A simulated GPU, an ``Executor`` whose tensors have no values."""

    name = "simulated"
    timing_is_expensive = False

    def __init__(
        self,
        noise: Noise = EXACT,
        *,
        speed: float = 1.0,
        launch_ms: float = 0.0,
        latency: int = 2,
        seed: int = 0,
        granule: int = 1,
        max_groups: int = 12,
        clock_source: str = "timestamps",
        pass_ms: float = 0.0,
        clock: Callable[[int], float] = lambda frame: 1.0,
    ) -> None:
        self.pass_ms, self.clock = pass_ms, clock
        self.copied: list[tuple[StepCost, float]] = []
        self.noise, self.speed, self.launch_ms, self.latency = noise, speed, launch_ms, latency
        self.granule, self.max_groups = granule, max_groups
        self.clock_source = clock_source
        self.frame_ms = 0.0
        self._random = random.Random(seed)
        self._pending: deque[tuple[int, list[Timing]]] = deque()
        self._loads: WeakKeyDictionary[SimNetwork, list[SimStep]] = WeakKeyDictionary()

    def executor(self) -> Executor:
        """Returns this object itself, which is its own executor."""
        return self

    def encode(
        self, encoder: object, frame: int, groups: Sequence[Sequence[Slice]], *, timed: bool = True
    ) -> None:
        """Simulates the slices of a frame and sets :attr:`frame_ms` to their total time.

        The timings arrive some frames later.
        """
        common = _factor(self._random, self.noise.common) / self.clock(frame)
        timings = []
        for index, group in enumerate(groups):
            ms = self.pass_ms + sum(self._true_ms(part) for part in group)
            timings.append(Timing(frame, index, ms * common))
        if timings and self.noise.hitch_share and self._random.random() < self.noise.hitch_share:
            hit = self._random.randrange(len(timings))
            timings[hit] = replace(timings[hit], ms=timings[hit].ms + self.noise.hitch_ms)
        self.frame_ms = sum(t.ms for t in timings)
        self._pending.append((frame, timings if timed else []))

    def _true_ms(self, part: Slice) -> float:
        network: Handle = part.network
        loads, number = self._loads.get(network, ()), part.step
        is_load = number < len(loads)
        step: SimStep = loads[number] if is_load else network.steps[number - len(loads)]
        exact: float = self.launch_ms + step.ms(part.count) / self.speed
        return exact * _factor(self._random, self.noise.single)

    def end_frame(self, frame: int) -> list[Timing]:
        timings: list[Timing] = []
        while self._pending and frame - self._pending[0][0] >= self.latency:
            timings += self._pending.popleft()[1]
        return timings if self.clock_source == "timestamps" else []

    def abandon_frame(self, frame: int) -> None:
        self._pending = deque(p for p in self._pending if p[0] != frame)

    def new_encoder(self) -> Handle:
        return None

    def _do_nothing(self, *args: object, **named: object) -> None:
        """Does nothing: a stand-in for calls that a simulated device does not need."""

    submit = check_encoder = check = release_input = end_job = resume_job = _do_nothing
    begin_cpu_step = _do_nothing

    def end_cpu_step(self, network: Handle, step: int, budget_ms: float) -> bool:
        return True

    request_read = _do_nothing

    def preparing(self) -> str:
        return ""

    def take_losses(self) -> bool:
        return False

    def is_behind(self, most_frames: int) -> bool:
        return False

    def accept(
        self, network: Handle, inputs: Mapping[str, object]
    ) -> tuple[dict[str, object], list[SimStep]]:
        return dict(inputs), _loads_of(inputs)

    def reserve(self, network: Handle, inputs: Mapping[str, object]) -> str:
        return ""

    def begin_job(self, encoder: object, network: Handle, inputs: Mapping[str, object]) -> SimRun:
        self._loads[network] = _loads_of(inputs)
        return SimRun()

    def finish_job(self, encoder: object, network: Handle) -> SimRun | None:
        return SimRun()

    def copy_to_texture(
        self, encoder: object, result: Handle, name: str, options: Mapping[str, Handle]
    ) -> SimStep:
        """Records a copy and returns its cost: the step that stands for ``options["texture"]``."""
        step: SimStep = options["texture"]
        self.copied.append((step, step.groups * step.ms_per_group))
        return step

    def take_copies(self) -> list[tuple[StepCost, float]]:
        copies, self.copied = self.copied, []
        return copies


def _loads_of(inputs: Mapping[str, object]) -> list[SimStep]:
    """Returns the inputs that are steps; each stands for a texture and its load."""
    return [value for value in inputs.values() if isinstance(value, SimStep)]


def _factor(chance: random.Random, sigma: float) -> float:
    return math.exp(chance.gauss(0, sigma)) if sigma else 1.0


@dataclass
class Arrival:
    """A job of a scenario, submitted at the start, and every ``period_ms`` if that is set."""

    network: SimNetwork
    period_ms: float | None = None
    deadline_ms: float | None = None
    priority: float = 1.0
    #: a waiting job of the same slot is superseded, see :meth:`FrameScheduler.submit`
    slot: str | None = None


@dataclass
class SimulatedRun:
    """The result of a simulation: times and reports by frame, and the jobs' final states."""

    name: str
    budget_ms: float
    inference_ms: list[float] = field(default_factory=list)
    frame_times_ms: list[float] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    reports: list[FrameReport] = field(default_factory=list)

    @property
    def busy(self) -> list[float]:
        """The inference milliseconds of the frames that ran anything, in order."""
        return [ms for ms in self.inference_ms if ms > 0]

    @property
    def over_share(self) -> float:
        """The share of the busy frames that exceeded the budget."""
        busy = self.busy
        limit = self.budget_ms * (1 + 1e-9)
        return sum(ms > limit for ms in busy) / len(busy) if busy else 0.0

    @property
    def budget_used(self) -> float:
        """The share of the budget that the busy frames used, on average."""
        busy = self.busy
        return sum(busy) / (self.budget_ms * len(busy)) if busy else 0.0

    @property
    def done(self) -> int:
        return sum(job.state == "done" for job in self.jobs)

    @property
    def deadlines_met(self) -> tuple[int, int]:
        """The number of met deadlines, and the number of all ended jobs with a deadline."""
        dated_jobs = [j for j in self.jobs if j.deadline_at_ms is not None and j.ended]
        n_met = sum((j.ended_ms or 0) <= (j.deadline_at_ms or 0) for j in dated_jobs)
        return n_met, len(dated_jobs)

    def percentile(self, share: float) -> float:
        """Returns a percentile (``share`` is 0 to 1) of the inference ms of busy frames."""
        return percentile(self.busy, share)

    def row(self) -> str:
        n_met, n_dated = self.deadlines_met
        return (
            f"{self.name:24s} {self.percentile(0.5):8.2f} {self.percentile(0.95):8.2f} "
            f"{self.percentile(0.99):8.2f} {self.percentile(1.0):8.2f} "
            f"{100 * self.over_share:7.2f} % {100 * self.budget_used:6.1f} % "
            f"{self.done:6d} {n_met:5d}/{n_dated}"
        )


HEADER = (
    f"{'policy':24s} {'P50 ms':>8s} {'P95 ms':>8s} {'P99 ms':>8s} {'max ms':>8s} {'over':>9s} "
    f"{'used':>8s} {'done':>6s} {'deadlines':>9s}"
)


def simulate(
    requests: Sequence[Arrival],
    frames: int,
    *,
    name: str = "milliseconds",
    budget_ms: float = 4.0,
    frame_ms: float = 1000 / 60,
    render_ms: Callable[[int], float] = lambda frame: 8.0,
    noise: Noise = EXACT,
    policy: Policy = least_laxity,
    planner: Planner = plan_frame,
    cost_model: CostModel | None = None,
    margin: TailMargin | None = None,
    seed: int = 0,
    speed: float = 1.0,
    gpu: SimGpu | None = None,
) -> SimulatedRun:
    """Runs the scheduler on a simulated device for ``frames`` frames and returns times and jobs.

    ``requests`` are the jobs to submit. The device is ``gpu``, by default one with this ``noise``
    and ``speed``; ``margin`` replaces the scheduler's. A frame takes ``frame_ms``, or longer if
    rendering (``render_ms`` of its number) and inference need more.
    """
    clock = VirtualClock()
    gpu = gpu or SimGpu(noise, seed=seed, speed=speed)
    scheduler = FrameScheduler(
        gpu, frame_ms, budget_ms, policy=policy, clock=clock, cost_model=cost_model
    )
    scheduler.planner = planner
    scheduler.controller.margin = margin or scheduler.controller.margin
    outcome = SimulatedRun(name, budget_ms)
    due_ms = [0.0] * len(requests)
    for frame in range(frames):
        outcome.jobs += _submit_due(requests, due_ms, clock.now_ms(), scheduler)
        report = scheduler.encode(None)
        outcome.inference_ms.append(gpu.frame_ms)
        outcome.reports.append(report)
        outcome.frame_times_ms.append(max(frame_ms, render_ms(frame) + gpu.frame_ms))
        clock.advance(outcome.frame_times_ms[-1])
        scheduler.end_frame()
    return outcome


def _submit_due(
    requests: Sequence[Arrival], due_ms: list[float], now: float, scheduler: FrameScheduler
) -> Iterator[Job]:
    for index, request in enumerate(requests):
        while due_ms[index] <= now:
            yield scheduler.submit(
                request.network,
                {},
                priority=request.priority,
                deadline_ms=request.deadline_ms,
                name=request.network.name,
                slot=request.slot,
            )
            due_ms[index] += request.period_ms if request.period_ms else math.inf


def compare_policies(
    requests: Callable[[], Sequence[Arrival]], frames: int, **options: Any
) -> list[SimulatedRun]:
    """Simulates a scenario under this scheduler and three other rules; returns a run for each.

    The others run one operator per frame, four operators per frame, and a whole network per frame.
    ``options`` are those of :func:`simulate`.
    """
    alternatives: list[tuple[str, int | None]] = [
        ("1 operator per frame", 1),
        ("4 operators per frame", 4),
        ("unsliced", None),
    ]
    ours = simulate(requests(), frames, name="milliseconds (ours)", **options)
    return [ours] + [
        simulate(
            requests(), frames, name=name, planner=operators_per_frame(number),
            policy=by_priority, **options,
        )
        for name, number in alternatives
    ]  # fmt: skip


def table(outcomes: Sequence[SimulatedRun]) -> str:
    """Returns a text table with a header and a line for each simulated run."""
    return "\n".join([HEADER, *(outcome.row() for outcome in outcomes)])


def plot_outcomes(outcomes: Sequence[SimulatedRun], frame_ms: float, path: Path) -> None:
    """Writes a picture to ``path`` with one plot of frame times for each simulated run.

    A plot shows the time of every frame, the frame time and the budget. Raises ``ImportError`` if
    matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from cml_engine.io import write_atomically

    figure, axes = pyplot.subplots(
        len(outcomes), 1, sharex=True, figsize=(10, 2 * len(outcomes)), squeeze=False
    )
    for axis, outcome in zip(axes[:, 0], outcomes, strict=True):
        times = outcome.frame_times_ms
        over = [i for i, ms in enumerate(times) if ms > frame_ms * (1 + 1e-9)]
        axis.plot(times, linewidth=0.7, color="tab:blue", label="frame")
        axis.plot(outcome.inference_ms, linewidth=0.7, color="tab:green", label="networks")
        axis.axhline(frame_ms, linewidth=0.8, color="black", linestyle="--")
        axis.axhline(outcome.budget_ms, linewidth=0.8, color="tab:green", linestyle=":")
        axis.plot(over, [times[i] for i in over], ".", markersize=2, color="tab:red", label="late")
        axis.set_title(f"{outcome.name}: {len(over)} of {len(times)} frames late", fontsize=9)
        axis.set_ylabel("ms")
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(loc="upper right", fontsize=8, ncols=3)
    axes[-1, 0].set_xlabel("frame")
    figure.tight_layout()
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=110))
    pyplot.close(figure)
