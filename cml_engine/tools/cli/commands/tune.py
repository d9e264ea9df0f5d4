"""Measure the fastest kernels on this GPU, for all later sessions."""

from __future__ import annotations

import argparse

from cml_engine.errors.arguments import TIMES
from cml_engine.tools.cli.common import bar, load_model, session_of
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

GROUP = "Change it"
EXAMPLE = "cml tune enlarge.onnx --rounds 5 --dry-run --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "decisions", "json")
    parser.group(GPU).add_argument(
        "--rounds",
        type=TIMES,
        default=30,
        metavar="N",
        help="measurements of each kernel (default: 30)",
    )
    parser.group(OUTPUT).add_argument(
        "--dry-run", action="store_true", help="measure without writing the table"
    )


def run(a: argparse.Namespace) -> int:
    from cml_engine.runtime.tuning import Bench
    from cml_engine.runtime.tuning import tune as measure

    session = session_of(a, load_model(a), "gpu")
    with bar("tune", len(Bench(session).candidates)) as done:
        report = measure(session, rounds=a.rounds, dry_run=a.dry_run, progress=done)
    print(report.json() if a.json else report)
    return 0
