"""A simulated GPU for the scheduler: steps with true costs, noise, and delayed timings."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from cml_engine.compiler.plan import Slice, StepCost, Timing
from scheduler.executor import Executor, Handle
from scheduler.planning.cost_model import CostModel


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
    known = model or CostModel()
    steps = [
        SimStep(
            c.key, c.groups, known.predict_ms(c, c.groups) / c.groups / speed,
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


class SimGpu:
    """A simulated GPU, an :class:`scheduler.executor.Executor` whose tensors have no values."""

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
    ) -> None:
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
        common = _factor(self._random, self.noise.common)
        timings = []
        for index, group in enumerate(groups):
            ms = sum(self._true_ms(part) for part in group)
            timings.append(Timing(frame, index, ms * common))
        if timings and self.noise.hitch_share and self._random.random() < self.noise.hitch_share:
            hit = self._random.randrange(len(timings))
            timings[hit] = replace(timings[hit], ms=timings[hit].ms + self.noise.hitch_ms)
        self.frame_ms = sum(t.ms for t in timings)
        self._pending.append((frame, timings if timed else []))

    def _true_ms(self, part: Slice) -> float:
        network: Handle = part.network
        steps = network.steps if part.step >= 0 else self._loads[network]
        step: SimStep = steps[part.step]
        exact: float = self.launch_ms + part.count * step.ms_per_group / self.speed
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

    def submit(self, encoder: object) -> None: ...

    def check_encoder(self, encoder: object) -> None: ...

    def check(self) -> None: ...

    def preparing(self) -> str:
        return ""

    def take_losses(self) -> bool:
        return False

    def harm(self, run: Handle) -> str:
        return ""

    @property
    def frames_in_flight(self) -> int:
        return 0

    def accept(self, network: Handle, inputs: Mapping[str, object]) -> dict[str, object]:
        return dict(inputs)

    def release_input(self, value: Handle) -> None: ...

    def input_steps(self, network: Handle, inputs: Mapping[str, object]) -> list[SimStep]:
        """Returns the inputs that are steps; each stands for a texture and its load."""
        return [value for value in inputs.values() if isinstance(value, SimStep)]

    def reserve(self, network: Handle, inputs: Mapping[str, object]) -> str:
        return ""

    def begin_job(self, encoder: object, network: Handle, inputs: Mapping[str, object]) -> None:
        self._loads[network] = self.input_steps(network, inputs)

    def finish_job(self, encoder: object, network: Handle) -> Handle:
        return network

    def end_job(self, network: Handle) -> None: ...

    def resume_job(self, network: Handle) -> None: ...

    # --- outputs consist of their names only

    def tensor(self, result: Handle, name: str) -> Handle:
        return name

    def copy_to_texture(
        self, encoder: object, result: Handle, name: str, options: Mapping[str, Handle]
    ) -> SimStep:
        """Records a copy and returns its cost: the step that stands for ``options["texture"]``."""
        step: SimStep = options["texture"]
        self.copied.append((step, step.groups * step.ms_per_group))
        return step

    def take_copies(self) -> list[tuple[StepCost, float]]:
        taken, self.copied = self.copied, []
        return taken

    def request_read(self, encoder: object, result: Handle) -> None: ...

    def read(self, result: Handle, name: str) -> Handle:
        return name

    def is_reading(self, result: Handle) -> bool:
        return False

    def release(self, result: Handle) -> None: ...


def _factor(chance: random.Random, sigma: float) -> float:
    return math.exp(chance.gauss(0, sigma)) if sigma else 1.0
