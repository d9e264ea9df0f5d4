"""Measure which kernels are fastest on this device, for all sessions on it."""

from __future__ import annotations

import argparse

from cml_engine.cli.common import (
    bar,
    compile_options,
    load_model,
)
from cml_engine.cli.options import add_options
from cml_engine.ranges import TIMES
from cml_engine.session import Session


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model", "random", "half", "json")
    parser.add_argument("--rounds", type=TIMES, default=30, help="for each option")
    parser.add_argument("--dry-run", action="store_true", help="measure, and write nothing")


def run(a: argparse.Namespace) -> int:
    from cml_engine.tuning import Bench
    from cml_engine.tuning import tune as measure

    session = Session(load_model(a), "gpu", compile_options(a))
    with bar("tune", len(Bench(session).candidates)) as done:
        report = measure(session, rounds=a.rounds, dry_run=a.dry_run, progress=done)
    print(report.json() if a.json else report)
    return 0
