"""Simulates frames on a card: are budgets kept, and what do slices cost?

    python -m benchmarks.hardware.frames            # stored steps: no compiler is needed
    python -m benchmarks.hardware.frames --write    # compiles and stores the steps first

A step is modelled as in docs/design/performance.md; the scheduler sees timestamps alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.hardware.listing import JUMP, MEMORY, SCALAR, SCALAR_LOAD, SHARED, WAIT
from benchmarks.hardware.model import CARDS, LAUNCH, Card
from benchmarks.table import markdown_table
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.planning.plan import Planner, plan_frame
from cml_engine.scheduler.tools.simulate import (
    Arrival,
    Noise,
    SimGpu,
    SimNetwork,
    SimulatedRun,
    WaveStep,
    simulate,
)

if TYPE_CHECKING:
    from benchmarks.hardware.networks import StepEstimate

CARD = CARDS["RX 6800"]
SIMDS = CARD.units * CARD.simds
STORED = Path(__file__).with_name("frames.json")
BUDGETS_MS = (0.5, 1.0, 2.0)
#: milliseconds in which a pass with timestamps is longer than its dispatches; no card was measured
_PASS_MS = 0.002
#: a quiet card: times differ by 1 %, of frames and of slices
_NOISE = Noise(0.01, 0.01)
_FRAMES = 3000
#: the stored values of a step
_FIELDS = ("key", "groups", "waves", "busy_ms", "alone_ms", "resident", "memory_ms", "flops",
           "nbytes")  # fmt: skip


def steady(frame: int) -> float:
    """Returns the clock of a card that is cool, as a share of the boost clock."""
    return 1.0


def dropping(frame: int) -> float:
    """Returns a clock that drops to 70 % for 300 frames, again and again."""
    return 0.7 if frame // 300 % 2 else 1.0


@dataclass(frozen=True, slots=True)
class SlicedCost:
    """The cost of slicing: the share of frames over budget, and sliced over unsliced time.

    ``waves`` are those of the slices that are a part of their step: the 10th percentile and the
    median. ``cuts`` is the number of such slices in a frame, on average.
    """

    over: float
    used: float
    ratio: float
    frames_per_run: float
    cuts: float
    waves: tuple[int, int]


def wave_step(key: str, s: StepEstimate, card: Card) -> list[object]:
    """Returns a step of a plan as the values of :data:`_FIELDS`."""
    kernel, work = s.kernel, s.work
    counts, moved = kernel.listing.counts(work.nest), kernel.listing.moved(work.nest)
    cycles = (
        kernel.listing.vector_cycles(work.nest, max(kernel.wave // card.lanes, 1)),
        sum(counts[kind] for kind in (SCALAR, SCALAR_LOAD, JUMP, WAIT)),
        card.simds * kernel.wave * moved[MEMORY] / card.load_bytes,
        card.simds * kernel.wave * moved[SHARED] / card.shared_bytes,
    )
    alone = kernel.listing.cycles_alone(work.nest, card.latency(kernel.wave))
    waves, groups = -(-work.threads // kernel.wave), max(work.groups, 1)
    return [
        key, work.groups, waves, round(1e3 * max(cycles) / card.clock, 6),
        round(1e3 * alone / card.clock, 6), kernel.waves,
        round(1e3 * card.memory_seconds(work.nbytes), 6), round(2 * work.products / groups),
        round(work.nbytes / groups),
    ]  # fmt: skip


def write_steps() -> None:
    """Compiles the networks' kernels for the card and stores their steps."""
    from benchmarks.hardware.networks import estimate_network, plan_for
    from benchmarks.hardware.radv import Radv
    from benchmarks.models import load_network
    from cml_engine.gpu.shaders.hlsl import compile_spirv
    from cml_engine.tools.selftest import random_networks
    from cml_engine.tools.selftest.networks import random_graph

    networks = {
        "unet, 256²": random_graph(random_networks.unet(256)),
        "rrdb, 256²": random_graph(random_networks.rrdb(256)),
        "stylegan2, 256²": load_network("stylegan2")[0],
    }
    radv = Radv(CARD.family)
    stored = {}
    for name, graph in networks.items():
        plan = plan_for(graph, "discrete")
        found = estimate_network(name, plan, CARD, lambda key: radv.compile(compile_spirv(key)), ())
        keys = [cost.key for cost in plan.step_costs()]
        short = {key: f"{name} {number}" for number, key in enumerate(dict.fromkeys(keys))}
        stored[name] = [
            wave_step(short[key], step, CARD) for key, step in zip(keys, found.steps, strict=True)
        ]
    lines = ",\n".join(
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, steps)) + "\n ]"
        for name, steps in stored.items()
    )
    STORED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def stored_networks() -> dict[str, SimNetwork]:
    """Returns the stored networks by name."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    return {
        name: SimNetwork(
            name,
            [WaveStep(simds=SIMDS, **dict(zip(_FIELDS, step, strict=True))) for step in steps],
        )
        for name, steps in stored.items()
    }


def unsliced_ms(network: SimNetwork) -> float:
    """Returns the milliseconds of all steps in one frame, at the boost clock."""
    return _PASS_MS + sum(1e3 * LAUNCH + step.ms(step.groups) for step in network.steps)


def sliced_cost(
    network: SimNetwork,
    budget_ms: float,
    clock: Callable[[int], float] = steady,
    granule: int = 1,
    planner: Planner = plan_frame,
    frames: int = _FRAMES,
) -> SlicedCost:
    """Simulates runs of a network, one after the other; the first third of the frames is learning.

    Slices are multiples of ``granule`` workgroups where possible.
    """
    gpu = SimGpu(_NOISE, launch_ms=1e3 * LAUNCH, pass_ms=_PASS_MS, granule=granule, clock=clock)
    model = CostModel(guess=FirstGuess.for_device("AMD Radeon RX 6800"))
    run = simulate(
        [Arrival(network, period_ms=1000 / 60)], frames, budget_ms=budget_ms, planner=planner,
        cost_model=model, gpu=gpu,
    )  # fmt: skip
    return _cost_of(run, network, budget_ms, clock, frames // 3)


def _cost_of(
    run: SimulatedRun, network: SimNetwork, budget_ms: float, clock: Callable[[int], float],
    first: int,
) -> SlicedCost:  # fmt: skip
    counted = [
        (report, ms) for report, ms in zip(run.reports, run.inference_ms, strict=True)
        if report.frame >= first and report.slices
    ]  # fmt: skip
    by_job: dict[int, float] = defaultdict(float)
    for report, ms in counted:
        for part in report.slices:  # a frame's time by the predicted shares, without the clock
            share = part.predicted_ms / report.predicted_ms
            by_job[part.job] += share * ms * clock(report.frame)
    whole = {job.number for job in run.jobs if job.state == "done"} - {min(by_job)}
    times = [ms for number, ms in by_job.items() if number in whole]
    cuts = sorted(
        part.count * network.steps[part.index].waves  # type: ignore[attr-defined]
        for report, _ in counted
        for part in report.slices
        if part.count < network.steps[part.index].groups
    )
    busy = [ms for _, ms in counted]
    return SlicedCost(
        sum(ms > budget_ms for ms in busy) / len(busy),
        sum(busy) / len(busy) / budget_ms,
        median(times) / unsliced_ms(network),
        len(busy) / max(1, len(times)),
        len(cuts) / len(busy),
        (cuts[len(cuts) // 10], cuts[len(cuts) // 2]) if cuts else (0, 0),
    )


_HEAD = ("network", "unsliced, ms", "budget, ms", "clock", "slices of", "sliced ÷ unsliced",
         "over", "used", "frames of a run", "waves of a cut slice: P10, P50")  # fmt: skip


def table() -> str:
    """Returns a Markdown table with a row per network, budget, clock and granule of slices."""
    rows = []
    for name, network in stored_networks().items():
        for budget_ms in BUDGETS_MS:
            if unsliced_ms(network) < budget_ms:
                continue
            for clock in (steady, dropping):
                for granule in (1, SIMDS):
                    cost = sliced_cost(network, budget_ms, clock, granule)
                    rows.append((
                        name, f"{unsliced_ms(network):.2f}", f"{budget_ms:g}", clock.__name__,
                        str(granule), f"{cost.ratio:.3f}", f"{cost.over:.1%}", f"{cost.used:.0%}",
                        f"{cost.frames_per_run:.1f}", "{}, {}".format(*cost.waves),
                    ))  # fmt: skip
    return markdown_table(_HEAD, "|---|--:|--:|---|" + "--:|" * (len(_HEAD) - 4), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hardware.frames", description=__doc__
    )
    parser.add_argument("--write", action="store_true", help="compile and store the steps first")
    if parser.parse_args(arguments).write:
        write_steps()
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
