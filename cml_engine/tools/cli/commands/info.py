"""Show a model's inputs, outputs, operators, memory and predicted time."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from cml_engine.errors import InputError
from cml_engine.errors.arguments import BUDGET_MS
from cml_engine.tools.cli.common import load_facts, load_model
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

GROUP = "Look at a model"
EXAMPLE = "cml info enlarge.onnx --budget-ms 2 --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "frame", "json")
    parser.group(GPU).add_argument(
        "--budget-ms",
        type=BUDGET_MS,
        metavar="MS",
        help="also predict a run in frames with this many milliseconds for the network",
    )
    output = parser.group(OUTPUT)
    output.add_argument("--plan", action="store_true", help="also list every dispatch")
    output.add_argument(
        "--integer",
        action="store_true",
        help="of an integer network: show how its sums are carried, and their proven bounds",
    )
    output.add_argument(
        "--gas", action="store_true", help="show the cost in units that are equal on every machine"
    )


def run(a: argparse.Namespace) -> int:
    if a.integer or a.gas:
        return _print_proof(a)
    facts = load_facts(a)
    if facts.graph.ready is not None and facts.arena_limit:
        raise InputError(
            f"'{a.model}' is cooked, with its memory planned: leave --arena-limit-mib out"
        )
    info = facts.summary
    forecast = facts.forecast(a.budget_ms, a.frame_ms) if a.budget_ms else None
    if a.json:
        print(info.json(forecast=asdict(forecast)) if forecast else info.json())
        return 0
    print(info)
    if forecast:
        print(forecast)
    if a.plan:
        print("\n".join(info.layers))
    return 0


def _print_proof(a: argparse.Namespace) -> int:
    """Prints the results of ``--integer`` and ``--gas``, which follow from the graph; returns 0.

    Raises :class:`InputError` for options that need a plan.
    """
    from cml_engine.tools.report.integer_info import IntegerInfo

    if a.plan or a.budget_ms or a.half or a.decide or a.decisions:
        raise InputError(
            "--integer and --gas describe the model alone: leave --plan, --budget-ms, --half, "
            "--decide and --decisions out"
        )
    info = IntegerInfo.of(load_model(a), points=a.integer, gas=a.gas)
    print(info.json() if a.json else info)
    return 0
