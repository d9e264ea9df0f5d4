"""List every operator, or show one: signature, meaning, kernels and limits."""

from __future__ import annotations

import argparse

from cml_engine.compiler.plugins import load_entry_points
from cml_engine.tools.cli.options import MODEL, OUTPUT, CommandParser, add_options

GROUP = "This installation"
EXAMPLE = "cml ops conv"


def options(parser: CommandParser) -> None:
    add_options(parser, "ops")
    parser.group(MODEL).add_argument(
        "name", nargs="?", metavar="NAME", help="an operator to show; all if left out"
    )
    parser.group(OUTPUT).add_argument(
        "--kernels", action="store_true", help="list the kernel variants of operators instead"
    )


def run(a: argparse.Namespace) -> int:
    from cml_engine.tools.report.operator_support import kernel_table, operator_table, operator_text

    load_entry_points()
    if a.name:
        print(operator_text(a.name))
    else:
        print(kernel_table() if a.kernels else operator_table())
    return 0
