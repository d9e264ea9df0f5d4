"""Write a trace of frames and slices, to open in ui.perfetto.dev."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.errors.arguments import TIMES
from cml_engine.io import arrays as array_files
from cml_engine.tools.cli.common import gpu_session
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

GROUP = "Fit it into frames"
EXAMPLE = "cml trace enlarge.onnx -o trace.json --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "inputs", "frames")
    parser.group(GPU).add_argument(
        "--runs", type=TIMES, default=3, metavar="N", help="runs to trace (default: 3)"
    )
    parser.group(OUTPUT).add_argument(
        "-o",
        "--output",
        default="trace.json",
        metavar="FILE",
        help="the file to write (default: %(default)s)",
    )


def run(a: argparse.Namespace) -> int:
    from scheduler.tools import commands

    path = Path(a.output)
    array_files.check_place(path, a.model)
    session, arrays = gpu_session(a)
    frames, slices = commands.trace(
        session, arrays, path, budget_ms=a.budget_ms, frame_ms=a.frame_ms, runs=a.runs
    )
    print(f"{path}: {frames} frames, {slices} slices; open it in ui.perfetto.dev")
    return 0
