"""The commands that fit a model into frames."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import SPEED, TIMES
from cml_engine.io import arrays as array_files
from cml_engine.io.data_folders import costs_file
from cml_engine.tools.cli.common import load_facts, timed_session
from cml_engine.tools.cli.options import command, value_option
from cml_engine.tools.cli.terminal import progress

GROUP = "Fit it into frames"


@command(
    GROUP,
    "cml simulate enlarge.onnx --speed 0.1 --shape 1,3,64,64",
    "planned",
    "frames",
    value_option(
        "GPU",
        "--speed",
        "X",
        "the simulated device's speed; 0.1 is a tenth of this one's (default: 1)",
        SPEED,
        1.0,
    ),
    value_option(
        "output", "--plot", "FILE", "draw every frame's time as a picture (needs matplotlib)", Path
    ),
)
def simulate(a: Namespace) -> None:
    """Compare scheduling policies for a model on a simulated device."""
    from cml_engine.scheduler.tools.commands import policies
    from cml_engine.scheduler.tools.simulate import table

    if a.plot:
        if importlib.util.find_spec("matplotlib") is None:
            raise InputError("--plot needs matplotlib: pip install matplotlib")
        array_files.check_place(a.plot, a.model)
    facts = load_facts(a)
    outcomes = policies(
        facts.graph.name, facts.plan.step_costs(), a.budget_ms, a.frame_ms, facts.costs, a.speed
    )
    print(table(outcomes))
    if a.plot:
        from cml_engine.scheduler.tools.simulate import plot_outcomes

        try:
            plot_outcomes(outcomes, a.frame_ms, a.plot)
        except ValueError as error:  # matplotlib raises this for an unknown suffix
            raise InputError(f"cannot write '{a.plot}': {error}") from None
        print(f"plot: {a.plot}")


@command(
    GROUP,
    "cml frames enlarge.onnx --budget-ms 2 --frames 60 --shape 1,3,64,64",
    "planned",
    "inputs",
    "frames",
    "json",
    value_option("GPU", "--frames", "N", "frames to measure (default: 600)", TIMES, 600),
    value_option(
        "GPU",
        "--operators",
        "N",
        "operators per frame of the usual way of slicing, for comparison (default: 4)",
        TIMES,
        4,
    ),
)
def frames(a: Namespace) -> int:
    """Measure whether a frame budget is kept, and used, on this GPU."""
    from cml_engine.scheduler.tools import commands

    session, gpu, arrays = timed_session(a)
    with progress() as show:
        report = commands.frames(
            session, arrays, budget_ms=a.budget_ms, frame_ms=a.frame_ms, count=a.frames,
            layers=a.operators, costs_file=costs_file(gpu.name),
            progress=lambda done: show("frames", done, a.frames),
        )  # fmt: skip
    print(report.json() if a.json else report)
    return 0 if report.identical else 1


@command(
    GROUP,
    "cml trace enlarge.onnx -o trace.json --shape 1,3,64,64",
    "planned",
    "inputs",
    "frames",
    value_option("GPU", "--runs", "N", "runs to trace (default: 3)", TIMES, 3),
    value_option(
        "output",
        "--write",
        "FILE",
        "the file to write (default: %(default)s)",
        Path,
        "trace.json",
        short="-o",
    ),
)
def trace(a: Namespace) -> None:
    """Write a trace of frames and slices, to open in ui.perfetto.dev."""
    from cml_engine.scheduler.tools import commands

    array_files.check_place(a.write, a.model)
    session, _, arrays = timed_session(a)
    count, slices = commands.trace(
        session, arrays, a.write, budget_ms=a.budget_ms, frame_ms=a.frame_ms, runs=a.runs
    )
    print(f"{a.write}: {count} frames, {slices} slices; open it in ui.perfetto.dev")
