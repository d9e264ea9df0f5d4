"""Compare scheduling policies for a model on a simulated device."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import SPEED
from cml_engine.io import arrays as array_files
from cml_engine.tools.cli.common import load_facts
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
    from scheduler.tools.simulate import table

    if a.plot:
        _check_plot(Path(a.plot), a.model)
    facts = load_facts(a)
    outcomes = facts.policies(a.budget_ms, a.frame_ms, speed=a.speed)
    print(table(outcomes))
    if a.plot:
        _plot(outcomes, a.frame_ms, Path(a.plot))
    return 0


def _plot(outcomes: Sequence[SimulatedRun], frame_ms: float, path: Path) -> None:
    from scheduler.tools.simulate import plot_outcomes

    try:
        plot_outcomes(outcomes, frame_ms, path)
    except ValueError as error:  # matplotlib raises this for an unknown suffix
        raise InputError(f"cannot write '{path}': {error}") from None
    print(f"plot: {path}")


def _check_plot(path: Path, model: str) -> None:
    """Raises ``InputError`` before the simulation if the plot at ``path`` cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install matplotlib")
    array_files.check_place(path, model)
