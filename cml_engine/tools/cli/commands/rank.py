"""Rank a model's operators by the time that they take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import TIMES
from cml_engine.tools.cli.common import backend_of, load_model, session_of
from cml_engine.tools.cli.options import add_options

if TYPE_CHECKING:
    from cml_engine.runtime.ablation import AblationReport
    from cml_engine.runtime.rank import RankReport


def options(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser, "model", "random", "backend", "half", "arena", "decide", "decisions", "dump"
    )
    parser.add_argument("--runs", type=TIMES, default=10)
    parser.add_argument(
        "--given",
        action="append",
        metavar="NAME",
        help="what runs where a session retains its inputs and gets this one; may be given again",
    )
    table = parser.add_mutually_exclusive_group()
    add_options(table, "json")
    table.add_argument("--csv", action="store_true")
    parser.add_argument(
        "--stub", metavar="NAME", help="whole runs without that operator against runs with it"
    )


def run(a: argparse.Namespace) -> int:
    if a.stub and a.given:
        raise InputError("--stub compares whole runs: leave --given out")
    retain = a.given is not None
    session = session_of(a, load_model(a), backend_of(a), retain=retain)
    if a.stub:
        report: RankReport | AblationReport = session.rank_without(a.stub, runs=a.runs)
    else:
        report = session.rank(runs=a.runs, given=a.given)
    print(report.json() if a.json else report.csv() if a.csv else report)
    return 0
