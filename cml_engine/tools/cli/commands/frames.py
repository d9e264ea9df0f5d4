"""Measure whether a frame budget is kept, and used, on this GPU."""

from __future__ import annotations

import argparse

from cml_engine.errors.arguments import TIMES
from cml_engine.io.folders import costs_file
from cml_engine.tools.cli.common import bar, gpu_session
from cml_engine.tools.cli.options import GPU, CommandParser, add_options

GROUP = "Fit it into frames"
EXAMPLE = "cml frames enlarge.onnx --budget-ms 2 --frames 60 --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "inputs", "frames", "json")
    parser.group(GPU).add_argument(
        "--frames", type=TIMES, default=600, metavar="N", help="frames to measure (default: 600)"
    )
    parser.group(GPU).add_argument(
        "--layers",
        type=TIMES,
        default=4,
        metavar="N",
        help="operators per frame of the usual way of slicing, for comparison (default: 4)",
    )


def run(a: argparse.Namespace) -> int:
    import numpy as np

    from scheduler.tools import commands

    session, arrays = gpu_session(a)
    with bar("frames", a.frames) as done:
        report = commands.frames(
            session, arrays, budget_ms=a.budget_ms, frame_ms=a.frame_ms, count=a.frames,
            layers=a.layers, same=np.array_equal, costs_file=costs_file(session.gpu.name),
            progress=done,
        )  # fmt: skip
    print(report.json() if a.json else report)
    return 0 if report.identical else 1
