"""Run the model in frames and measure whether the frame budget is kept and used."""

from __future__ import annotations

import argparse

from cml_engine.errors.arguments import TIMES
from cml_engine.io.folders import costs_file
from cml_engine.tools.cli.common import bar, gpu_session
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        "model",
        "random",
        "inputs",
        "half",
        "arena",
        "decide",
        "decisions",
        "budget",
        "frame",
        "json",
    )
    parser.add_argument("--frames", type=TIMES, default=600, help="of ours, full ones")
    parser.add_argument("--layers", type=TIMES, default=4, help="of the usual way beside it")


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
