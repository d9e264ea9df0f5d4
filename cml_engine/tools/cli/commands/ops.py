"""List every operator and how each backend runs it."""

from __future__ import annotations

import argparse

from cml_engine.compiler.plugins import load_entry_points
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "ops")
    parser.add_argument(
        "--kernels", action="store_true", help="the kernel variants of operators instead"
    )


def run(a: argparse.Namespace) -> int:
    from cml_engine.tools.report.operator_support import kernel_table, operator_table

    load_entry_points()
    print(kernel_table() if a.kernels else operator_table())
    return 0
