"""Measure the time of every operator, and rank them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import TIMES
from cml_engine.tools.cli.common import backend_of, load_model, session_of
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

if TYPE_CHECKING:
    from cml_engine.runtime.rank import AblationReport, RankReport

GROUP = "Look at a model"
EXAMPLE = "cml rank enlarge.onnx --runs 20 --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "backend", "dump")
    gpu, output = parser.group(GPU), parser.group(OUTPUT)
    gpu.add_argument(
        "--runs", type=TIMES, default=10, metavar="N", help="runs to measure (default: 10)"
    )
    gpu.add_argument(
        "--given",
        action="append",
        metavar="NAME",
        help="measure runs of a session that retains its inputs and gets only this one; repeatable",
    )
    gpu.add_argument(
        "--stub",
        metavar="NAME",
        help="compare whole runs with runs in which the operator NAME does nothing",
    )
    table = output.add_mutually_exclusive_group()
    table.add_argument("--json", action="store_true", help="print JSON instead of a table")
    table.add_argument("--csv", action="store_true", help="print comma-separated values")


def run(a: argparse.Namespace) -> int:
    if a.stub and a.given:
        raise InputError(
            "--stub compares whole runs and --given measures parts of them: leave one out"
        )
    retain = a.given is not None
    session = session_of(a, load_model(a), backend_of(a), retain=retain)
    if a.stub:
        report: RankReport | AblationReport = session.rank_without(a.stub, runs=a.runs)
    else:
        report = session.rank(runs=a.runs, given=a.given)
    print(report.json() if a.json else report.csv() if a.csv else report)
    return 0
