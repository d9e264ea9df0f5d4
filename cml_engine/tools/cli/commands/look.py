"""The commands that look at a model."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import BUDGET_MS
from cml_engine.tools.cli.common import (
    backend_of,
    compile_options,
    load_facts,
    load_model,
    session_of,
)
from cml_engine.tools.cli.options import command, flag, refuse, require, value_option
from cml_engine.tools.cli.terminal import log_lines

if TYPE_CHECKING:
    from cml_engine.runtime.rank import AblationReport, RankReport

GROUP = "Look at a model"
#: the options that decide a plan
_PLANNED = (
    "half", "half-arithmetic", "no-winograd", "preset", "decide", "arena-limit-mib", "adapter"
)  # fmt: skip


@command(
    GROUP,
    "cml info enlarge.onnx --budget-ms 2 --shape 1,3,64,64",
    "planned",
    "frame",
    "json",
    value_option(
        "GPU",
        "--budget-ms",
        "MS",
        "also predict a run in frames with this many milliseconds for the network",
        BUDGET_MS,
    ),
    flag("output", "--plan", "also list every dispatch"),
    flag(
        "output",
        "--integer",
        "of an integer network: show how its sums are carried, and their proven bounds",
    ),
    flag("output", "--gas", "show the cost in units that are equal on every machine"),
)
def info(a: Namespace) -> None:
    """Show a model's inputs, outputs, operators, memory and predicted time."""
    if a.integer or a.gas:
        from cml_engine.tools.report.integer_info import IntegerInfo

        reason = "--integer and --gas describe the model alone"
        refuse(a, reason, "plan", "budget-ms", "frame-ms", "decisions", *_PLANNED)
        proof = IntegerInfo.of(load_model(a), points=a.integer, gas=a.gas)
        print(proof.json() if a.json else proof)
        return
    if a.budget_ms is None:
        require(a, "--budget-ms MS", "frame-ms")
        if not a.decisions:
            require(a, "--budget-ms MS or --decisions FILE", "adapter")
    facts = load_facts(a)
    if facts.graph.cooked_form is not None:
        refuse(a, f"'{a.model}' is cooked, with its memory planned", "arena-limit-mib")
        if a.budget_ms is None:
            refuse(a, f"'{a.model}' is cooked, with its plans decided", *_PLANNED)
    summary = facts.summary
    predicted = None
    if a.budget_ms:
        from cml_engine.scheduler.tools.commands import forecast

        costs = facts.plan.step_costs()
        predicted = forecast(facts.graph.name, costs, a.budget_ms, a.frame_ms, facts.costs)
    if a.json:
        prediction = {"forecast": asdict(predicted)} if predicted else {}
        print(json.dumps({**asdict(summary), **prediction}, indent=2))
        return
    print(summary)
    if predicted:
        print(predicted)
    if a.plan:
        print("\n".join(summary.layers))


@command(
    GROUP,
    "cml rank enlarge.onnx --runs 20 --shape 1,3,64,64",
    "planned",
    "backend",
    "dump",
    "runs",
    "json",
    value_option(
        "GPU",
        "--given",
        "NAME",
        "measure runs of a session that retains its inputs and gets only this one",
        repeatable=True,
    ),
    value_option(
        "GPU",
        "--stub",
        "NAME",
        "compare whole runs with runs in which the operator NAME does nothing",
    ),
    flag("output", "--csv", "print comma-separated values"),
)
def rank(a: Namespace) -> None:
    """Measure the time of every operator, and rank them."""
    if a.stub:
        refuse(a, "--stub compares whole runs and --given measures parts of them", "given")
    if a.csv:
        refuse(a, "--csv is another format than JSON", "json")
    session = session_of(a, load_model(a), backend_of(a), retain=bool(a.given))
    ranking: RankReport | AblationReport
    if a.stub:
        ranking = session.rank_without(a.stub, runs=a.runs)
    else:
        ranking = session.rank(runs=a.runs, given=a.given or None)
    print(ranking.json() if a.json else ranking.csv() if a.csv else ranking)


@command(
    GROUP,
    "cml report enlarge.onnx -o report --shape 1,3,64,64",
    "model",
    "plan",
    "frames",
    "overwrite",
    "runs",
    flag("GPU", "--run", "also measure the model on this machine's GPU"),
    value_option("output", "--write", "DIR", "the folder to write", short="-o", required=True),
)
def report(a: Namespace) -> None:
    """Write a folder with a page of all facts about a model."""
    from cml_engine.tools.report.report_folder import write_report

    if not a.run:
        require(a, "--run", "runs")
    with log_lines() as log:
        facts = load_facts(a)
        if facts.graph.cooked_form is not None:
            raise InputError(f"'{a.model}' is cooked: report the model that it was made of")
        gpu = None
        if a.run:  # raises before anything is written if there is no GPU
            from cml_engine.gpu.gpu import Gpu

            gpu = Gpu()
        options = compile_options(a)
        frames = a.budget_ms, a.frame_ms
        for done in write_report(facts, a.write, frames, gpu, options, a.runs, a.overwrite, log):
            print(done, flush=True)
