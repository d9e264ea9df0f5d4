"""Show a model's inputs, outputs, operators, memory and predicted time."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from cml_engine.compiler.optimize import optimize
from cml_engine.errors import InputError
from cml_engine.errors.arguments import BUDGET_MS
from cml_engine.io.folders import costs_file
from cml_engine.ir.graph import Graph
from cml_engine.tools.cli.common import (
    arena_limit_of,
    load_model,
    read_decisions,
    storage_of,
    write_decisions,
)
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options
from cml_engine.tools.report.model_info import make_plan, model_info

if TYPE_CHECKING:
    from scheduler.tools.commands import Forecast

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
    from cml_engine.tools.report.cooked_info import CookedInfo

    graph = load_model(a)
    if a.integer or a.gas:
        return _print_proof(graph, a)
    cooked = graph.ready is not None
    limit = arena_limit_of(a)
    if cooked and limit:
        raise InputError(f"'{a.model}' is cooked: its memory was planned when that was done")
    info = (
        CookedInfo.of(graph)
        if cooked
        else model_info(graph, None, storage_of(a), read_decisions(a), limit)
    )
    if a.decisions:
        plan, device = make_plan(graph, storage_of(a), read_decisions(a), arena_limit_of(a))
        write_decisions(a, graph, optimize(graph), plan, device)
    forecast = None
    if a.budget_ms:
        forecast = _forecast_of(graph, a)
    if a.json:
        print(info.json(forecast=asdict(forecast)) if forecast else info.json())
        return 0
    print(info)
    if forecast:
        print(forecast)
    if a.plan:
        print("\n".join(info.layers))
    return 0


def _print_proof(graph: Graph, a: argparse.Namespace) -> int:
    """Prints the results of ``--integer`` and ``--gas``, which follow from the graph alone."""
    from cml_engine.tools.report.integer_info import IntegerInfo

    if a.plan or a.budget_ms or a.half or a.decide or a.decisions:
        raise InputError(
            "--integer and --gas are of the model alone: leave --plan, --budget-ms, --half, "
            "--decide and --decisions out"
        )
    info = IntegerInfo.of(graph, points=a.integer, gas=a.gas)
    print(info.json() if a.json else info)
    return 0


def _forecast_of(graph: Graph, a: argparse.Namespace) -> Forecast:
    """Returns the predicted course of a run under ``--budget-ms``.

    The costs are those of this machine's GPU, if it has one.
    """
    from scheduler.tools.commands import forecast, known_costs

    plan, device = make_plan(graph, storage_of(a), read_decisions(a), arena_limit_of(a))
    model = known_costs(device, costs_file(device) if device else None)
    return forecast(graph.name, plan.step_costs(), a.budget_ms, a.frame_ms, model)
