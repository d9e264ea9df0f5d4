"""Compares the frame budget's rules under noise: ours and the best constant plan.

``python -m tests.scheduler.budgets.frame_budgets`` prints a table. Frames run on a virtual clock;
the other work in them comes from a recording (``tests/scheduler/budgets/noise/``) or is random. The
best constant is the largest plan, the same for all frames, that keeps the share of frames that are
late because of it; it cannot be known beforehand.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cml_engine.compiler.plan import Slice, Timing
from cml_engine.scheduler.clock import VirtualClock
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.planning.controller import SpareBudget
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimStep

FRAME_MS = 1000 / 60
_NOISE = Path(__file__).with_name("noise")
#: frames to learn from before any are counted
WARM_UP = 400


@dataclass(frozen=True, slots=True)
class NoisyFrame:
    """The random influences on a frame: the time of the rest, a factor on the networks, a hitch.

    ``rest_ms`` is the frame's duration without networks. A hitch delays whatever the frame is
    executing: the networks, if it has any.
    """

    rest_ms: float
    #: times the prediction
    factor: float = 1.0
    hitch_ms: float = 0.0

    def networks_ms(self, ms: float) -> float:
        """Returns the real time of networks predicted to take ``ms``; 0 without networks."""
        return self.factor * ms + self.hitch_ms if ms else 0.0

    def others_ms(self, ms: float) -> float:
        """Returns the time of all else in the frame, beside networks predicted to take ``ms``."""
        return self.rest_ms if ms else self.rest_ms + self.hitch_ms

    def late(self, ms: float) -> bool:
        """Returns True if the frame misses its target with networks predicted to take ``ms``."""
        return self.others_ms(ms) + self.networks_ms(ms) > FRAME_MS


def recorded(path: Path, frames: int) -> list[NoisyFrame]:
    """Returns ``frames`` noisy frames from a recording's file, repeated as often as needed.

    The part of a frame's network time beyond twice the prediction counts as a hitch.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))["frame, predicted, measured"]
    found = []
    for frame_ms, predicted_ms, measured_ms in rows:
        factor = measured_ms / predicted_ms if predicted_ms else 1.0
        hitch = max(0.0, measured_ms - 2 * predicted_ms) if predicted_ms else 0.0
        found.append(NoisyFrame(frame_ms - measured_ms, min(2.0, factor), hitch))
    return [found[i % len(found)] for i in range(frames)]


def like_a_gpu(frames: int, seed: int = 1) -> list[NoisyFrame]:
    """Returns ``frames`` random frames: a renderer of about 9 ms, and clocks that vary by 3 %."""
    chance = random.Random(seed)
    return [
        NoisyFrame(9.0 * math.exp(chance.gauss(0, 0.02)), math.exp(chance.gauss(0, 0.03)))
        for _ in range(frames)
    ]


def with_spikes(frames: int, seed: int = 2) -> list[NoisyFrame]:
    """Returns the frames of :func:`like_a_gpu` with one frame in 120 that takes 7 ms longer."""
    found = like_a_gpu(frames, seed)
    for i in range(60, frames, 120):
        found[i] = NoisyFrame(found[i].rest_ms + 7.0, found[i].factor)
    return found


def with_hitches(frames: int, seed: int = 3) -> list[NoisyFrame]:
    """Returns the frames of :func:`like_a_gpu`, 3 % of which are delayed by 5 to 30 ms."""
    chance = random.Random(seed)
    return [
        NoisyFrame(frame.rest_ms, frame.factor, chance.uniform(5, 30))
        if chance.random() < 0.03
        else frame
        for frame in like_a_gpu(frames, seed)
    ]


class _Device(SimGpu):
    """A simulated device that runs each frame's slices with the noise of that frame."""

    def __init__(self, noise: Sequence[NoisyFrame]) -> None:
        super().__init__()
        self._noise = noise
        self.exact_ms = 0.0

    def encode(
        self, encoder: object, frame: int, groups: Sequence[Sequence[Slice]], *, timed: bool = True
    ) -> None:
        now = self._noise[frame]
        exact = [sum(_exact_ms(part) for part in group) for group in groups]
        self.exact_ms = sum(exact)
        self.frame_ms = now.networks_ms(self.exact_ms)
        scale = self.frame_ms / self.exact_ms if self.exact_ms else 1.0
        timings = [Timing(frame, index, ms * scale) for index, ms in enumerate(exact)]
        self._pending.append((frame, timings if timed else []))


def _exact_ms(part: Slice) -> float:
    step: SimStep = part.network.step_costs()[part.step]
    return float(part.count * step.ms_per_group)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a budget rule: the networks' average ms per frame, and shares of late frames.

    ``late`` is the share of all late frames, ``added`` of those that are late because of the
    networks.
    """

    work_ms: float
    added: float
    late: float


Rule = Literal["networks last", "whole frames", "render times"]


def ours(
    noise: Sequence[NoisyFrame],
    share: float = 0.01,
    rule: Rule = "whole frames",
    least_ms: float = 0.0,
) -> RuleResult:
    """Runs the frame scheduler with endless work on noisy frames and returns the result.

    ``least_ms`` is the guaranteed work of a frame.
    ``rule`` decides which times the host reports: whole frames (with the elapsed time if the
    networks run last), or render times only.
    """
    steps = [SimStep(f"k{i}", 2000, 0.004) for i in range(12)]
    nets = [SimNetwork(name, steps) for name in "ab"]
    model = CostModel()
    for step in steps:
        for count in (1, 32, step.groups):
            for _ in range(6):
                model.learn([(step, count)], count * step.ms_per_group)
    device, clock = _Device(noise), VirtualClock()
    scheduler = FrameScheduler(
        device, FRAME_MS, "spare", over_share=share, clock=clock, cost_model=model
    )
    scheduler.budget = SpareBudget(FRAME_MS, least_ms, headroom=0.0)
    jobs = [scheduler.submit(net, {}) for net in nets]
    ran = []
    for frame in noise:
        jobs = [scheduler.submit(n, {}) if j.ended else j for n, j in zip(nets, jobs, strict=True)]
        scheduler.encode(None, frame.rest_ms if rule == "networks last" else None)
        others = frame.others_ms(device.exact_ms)
        took = others + device.frame_ms
        ran.append(device.exact_ms)
        clock.advance(max(FRAME_MS, took))
        scheduler.end_frame()
        if rule == "render times":
            scheduler.render_took(others)
        else:
            scheduler.frame_took(took)
    return result_of(noise[WARM_UP:], ran[WARM_UP:])


def result_of(noise: Sequence[NoisyFrame], ran: Sequence[float]) -> RuleResult:
    """Returns the result of noisy frames whose networks were predicted to take ``ran`` ms each."""
    pairs = list(zip(noise, ran, strict=True))
    late = sum(frame.late(ms) for frame, ms in pairs)
    added = sum(frame.late(ms) and not frame.late(0.0) for frame, ms in pairs)
    return RuleResult(sum(ran) / len(ran), added / len(ran), late / len(ran))


def best_constant(noise: Sequence[NoisyFrame], share: float = 0.01) -> RuleResult:
    """Returns the result of the largest constant plan with at most ``share`` of late frames.

    Only frames that are late because of the networks count. Plans are multiples of a twentieth of a
    millisecond.
    """
    counted = noise[WARM_UP:]

    def constant(tenths: int) -> RuleResult:
        return result_of(counted, [tenths / 20] * len(counted))

    # a larger plan makes no fewer frames late
    plans = range(1, int(20 * FRAME_MS))
    return constant(bisect_right(plans, share, key=lambda tenths: constant(tenths).added))


def scenarios(frames: int) -> dict[str, list[NoisyFrame]]:
    """Returns the table's sequences of noisy frames by name: three random ones, and recordings."""
    found = {
        "clean, like a GPU": like_a_gpu(frames),
        "spikes every 2 s": with_spikes(frames),
        "hitches of 5 to 30 ms": with_hitches(frames),
    }
    for path in sorted(_NOISE.glob("*.json")):
        found[f"recorded: {path.stem}"] = recorded(path, frames)
    return found


def table(frames: int = 6000, share: float = 0.01) -> str:
    """Returns a text table of results with a line for each noise and rule."""
    lines = [
        f"{'noise':28s} {'rule':22s} {'ms of work':>10s} {'of best':>8s} {'late':>8s} "
        f"{'for its sake':>13s}"
    ]
    for name, noise in scenarios(frames).items():
        best = best_constant(noise, share)
        rules = {
            "best constant": best,
            "ours, networks last": ours(noise, share, "networks last"),
            "ours, whole frames": ours(noise, share, "whole frames"),
            "ours, render times": ours(noise, share, "render times"),
        }
        for rule, kept in rules.items():
            lines.append(
                f"{name:28s} {rule:22s} {kept.work_ms:10.2f} {kept.work_ms / best.work_ms:8.2f} "
                f"{100 * kept.late:6.2f} % {100 * kept.added:11.2f} %"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
