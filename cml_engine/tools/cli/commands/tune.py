"""Measure which kernels are fastest on this device, for all sessions on it."""

from __future__ import annotations

import argparse

from cml_engine.errors.arguments import TIMES
from cml_engine.tools.cli.common import bar, load_model, session_of
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model", "random", "half", "decide", "decisions", "json")
    parser.add_argument("--rounds", type=TIMES, default=30, help="for each option")
    parser.add_argument("--dry-run", action="store_true", help="measure, and write nothing")


def run(a: argparse.Namespace) -> int:
    from cml_engine.runtime.tuning import Bench
    from cml_engine.runtime.tuning import tune as measure

    session = session_of(a, load_model(a), "gpu")
    with bar("tune", len(Bench(session).candidates)) as done:
        report = measure(session, rounds=a.rounds, dry_run=a.dry_run, progress=done)
    print(report.json() if a.json else report)
    return 0
