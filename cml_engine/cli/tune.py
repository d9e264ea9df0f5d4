"""``cml tune``: which kernels are fastest on this device."""

from __future__ import annotations

import argparse

from cml_engine.cli.common import bar, compile_options, load_model
from cml_engine.session import Session


def tune(a: argparse.Namespace) -> int:
    from cml_engine.tuning import Bench
    from cml_engine.tuning import tune as measure

    session = Session(load_model(a), "gpu", compile_options(a))
    with bar("tune", len(Bench(session).candidates)) as done:
        report = measure(session, rounds=a.rounds, dry_run=a.dry_run, progress=done)
    print(report.json() if a.json else report)
    return 0
