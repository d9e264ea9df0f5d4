"""The implementation of ``cml frames``, ``cml trace`` and ``cml info --budget-ms``.

The command line lies in ``cml_engine``, which does not know frames; it imports this module when
one of these commands runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cml_engine.compiler.plan import StepCost
from cml_engine.cooked import DeviceGuess
from cml_engine.ir.graph import Array
from cml_engine.runtime.session import Session
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.reports import FrameReport
from cml_engine.scheduler.tools.measure import FramesReport, gpu_of, measure_frames
from cml_engine.scheduler.tools.simulate import (
    Arrival,
    Noise,
    SimNetwork,
    SimStep,
    SimulatedRun,
    compare_policies,
    network_like,
    simulate,
)
from cml_engine.scheduler.tools.trace import write_trace

#: the spread assumed of a device that was never measured: P99 over P50 of a frame's GPU time
ASSUMED_TAIL = 1.3
_MAX_SIMULATED_FRAMES = 200_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted number of frames, seconds and frame times of a run under a budget."""

    budget_ms: float
    frame_ms: float
    frames: int
    seconds: float
    p99_ms: float
    over_share: float
    measured_steps: int
    steps: int
    #: the source of the numbers of the other steps
    guess: str

    def __str__(self) -> str:
        basis = f"{self.measured_steps} of {self.steps} steps were measured here before"
        if self.measured_steps < self.steps:
            basis += f"; the others are estimated from FLOPs and bytes, by rates {self.guess}"
        return (
            f"frames     {self.frames} frames at {self.budget_ms:g} ms, {self.seconds:.2f} s at "
            f"{1e3 / self.frame_ms:.0f} fps; P99 of a frame {self.p99_ms:.2f} ms, "
            f"{100 * self.over_share:.1f} % over budget ({basis})"
        )


def forecast(
    name: str, costs: Sequence[StepCost], budget_ms: float, frame_ms: float, model: CostModel
) -> Forecast:
    """Simulates one run of a network with these steps and returns the predicted frames and times.

    It uses the model's costs and :data:`ASSUMED_TAIL`.
    """
    network = network_like(name, costs, 1.0, model)
    max_frames = 20 + int(4 * network.total_ms / max(budget_ms, 1e-3))
    outcome = simulate(
        [Arrival(network)],
        min(max_frames, _MAX_SIMULATED_FRAMES),
        budget_ms=budget_ms,
        frame_ms=frame_ms,
        noise=Noise.of_tail(ASSUMED_TAIL),
        cost_model=_true_model(network),
    )
    frames = len(outcome.busy)
    return Forecast(
        budget_ms,
        frame_ms,
        frames,
        frames * frame_ms / 1e3,
        outcome.percentile(0.99),
        outcome.over_share,
        sum(model.is_measured(c) for c in costs),
        len(costs),
        model.guess.source.partition(":")[0],
    )


def known_costs(device: str, file: Path | None) -> CostModel:
    """Returns the cost model saved in ``file``; without a file, one with the device's guess."""
    guess = FirstGuess.for_device(device)
    return CostModel.load(file, guess=guess) if file else CostModel(guess=guess)


def frames(
    session: Session, inputs: Mapping[str, Array], *, budget_ms: float, frame_ms: float, count: int,
    layers: int, costs_file: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> FramesReport:  # fmt: skip
    """Runs :func:`measure_frames` with the costs in ``costs_file`` and returns its report.

    The costs learned meanwhile are saved to the file.
    """
    model = known_costs(gpu_of(session).name, costs_file)
    report = measure_frames(
        session, inputs, budget_ms=budget_ms, frame_ms=frame_ms, frames=count, layers=layers,
        cost_model=model, progress=progress,
    )  # fmt: skip
    _keep(model, costs_file)
    return report


def _keep(model: CostModel, file: Path) -> None:
    """Saves the learned costs to the file; only warns on failure, as they can be learned again."""
    try:
        model.save(file)
    except OSError as error:
        message = f"the learned costs are not kept: cannot write '{file}': {error.strerror}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def trace(
    session: Session, inputs: Mapping[str, Array], path: Path, *, budget_ms: float, frame_ms: float,
    runs: int,
) -> tuple[int, int]:  # fmt: skip
    """Runs the session ``runs`` times in frames and writes the trace of these frames to ``path``.

    Returns the numbers of frames and slices in it.
    """
    gpu = gpu_of(session)
    scheduler = FrameScheduler(gpu, frame_ms, budget_ms)
    reports: list[FrameReport] = []
    jobs: list[Job] = []

    def frame() -> None:
        encoder = gpu.device.create_command_encoder()
        reports.append(scheduler.encode(encoder))
        gpu.queue.submit([encoder.finish()])
        scheduler.end_frame()

    for _ in range(runs):
        jobs.append(scheduler.submit(session, inputs))
        while not jobs[-1].ended:
            frame()
    for _ in range(10):  # until the last timings are here
        frame()
    about = {"device": gpu.name, "clock": scheduler.executor.clock_source}
    names = {job.number: f"{job.name} {job.number}" for job in jobs}
    plan = session.plan
    assert plan is not None
    memory = {"weights": plan.weights_bytes + plan.own_bytes, "activations": plan.memory.peak}
    places = {step.title: str(step.source) for step in plan.steps if step.source}
    write_trace(path, reports, names, memory, about, places)
    return len(reports), sum(len(r.slices) for r in reports)


def policies(
    name: str, costs: Sequence[StepCost], budget_ms: float, frame_ms: float, model: CostModel,
    speed: float = 1.0, frames: int = 2000,
) -> list[SimulatedRun]:  # fmt: skip
    """Simulates repeated runs of the network under several schedulers; returns a result for each.

    The device is ``speed`` times as fast as this one. A run is submitted at most once per frame and
    takes at most half of the device's time. Rendering takes half a frame, at most 8 ms.
    """

    def requests() -> list[Arrival]:
        network = network_like(name, costs, speed, model)
        return [Arrival(network, period_ms=max(frame_ms, budget_ms, 2 * network.total_ms))]

    return compare_policies(
        requests, frames, budget_ms=budget_ms, frame_ms=frame_ms, noise=Noise.of_tail(ASSUMED_TAIL),
        render_ms=lambda frame: min(8.0, frame_ms / 2),
    )  # fmt: skip


def _true_model(network: SimNetwork) -> CostModel:
    model = CostModel()
    for step in network.steps:
        _teach(model, step)
    return model


def _teach(model: CostModel, step: SimStep) -> None:
    for count in {1, step.groups}:
        model.learn([(step, count)], max(1e-9, count * step.ms_per_group))


def cooked_guesses() -> list[DeviceGuess]:
    """Returns the shipped first guesses in the format of a cooked file."""
    return [
        DeviceGuess(words, g.flops_per_ms, g.bytes_per_ms, g.launch_ms, g.kernels)
        for words, g in FirstGuess.shipped_by_words()
    ]
