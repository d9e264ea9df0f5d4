"""Compare scheduling policies for a model on a simulated device."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.compiler.optimize import optimize
from cml_engine.errors import InputError
from cml_engine.errors.arguments import SPEED
from cml_engine.io import arrays as array_files
from cml_engine.io.folders import costs_file
from cml_engine.tools.cli.common import (
    arena_limit_of,
    load_model,
    read_decisions,
    storage_of,
    write_decisions,
)
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

if TYPE_CHECKING:
    from scheduler.tools.simulate import SimulatedRun

GROUP = "Fit it into frames"
EXAMPLE = "cml simulate enlarge.onnx --speed 0.1 --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "frames")
    parser.group(GPU).add_argument(
        "--speed",
        type=SPEED,
        default=1.0,
        metavar="X",
        help="the simulated device's speed; 0.1 is a tenth of this one's (default: 1)",
    )
    parser.group(OUTPUT).add_argument(
        "--plot", metavar="FILE", help="draw every frame's time as a picture (needs matplotlib)"
    )


def run(a: argparse.Namespace) -> int:
    from cml_engine.tools.report.model_info import make_plan
    from scheduler.tools import commands
    from scheduler.tools.simulate import table

    if a.plot:
        _check_plot(Path(a.plot), a.model)
    graph = load_model(a)
    plan, device = make_plan(graph, storage_of(a), read_decisions(a), arena_limit_of(a))
    write_decisions(a, graph, optimize(graph), plan, device)
    model = commands.known_costs(device, costs_file(device) if device else None)
    outcomes = commands.policies(
        graph.name, plan.step_costs(), budget_ms=a.budget_ms, frame_ms=a.frame_ms, speed=a.speed,
        model=model,
    )  # fmt: skip
    print(table(outcomes))
    if a.plot:
        _plot(outcomes, a.frame_ms, Path(a.plot))
    return 0


def _plot(outcomes: Sequence[SimulatedRun], frame_ms: float, path: Path) -> None:
    from scheduler.tools.plot import plot_outcomes

    try:
        plot_outcomes(outcomes, frame_ms, path)
    except ValueError as error:  # matplotlib raises this for an unknown suffix
        raise InputError(f"cannot write '{path}': {error}") from None
    print(f"plot: {path}")


def _check_plot(path: Path, model: str) -> None:
    """Raises ``InputError`` early if the picture could not be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install matplotlib")
    array_files.check_place(path, model)
