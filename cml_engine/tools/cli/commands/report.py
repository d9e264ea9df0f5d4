"""Write a folder with a page of all facts about a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import TIMES
from cml_engine.runtime.session import Session, random_inputs
from cml_engine.tools.cli.common import compile_options, load_facts
from cml_engine.tools.cli.options import GPU, OUTPUT, CommandParser, add_options

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.tools.report.folder.page import PageSection
    from cml_engine.tools.report.folder.report_folder import ReportFolder
    from cml_engine.tools.report.model_facts import ModelFacts

#: the sections of the page, in the order in which they are shown and computed
_TITLES = {
    "summary": "Summary",
    "graph": "Graph",
    "operators": "Operators",
    "memory": "Memory",
    "decisions": "Decisions",
    "passes": "Passes",
    "frames": "Frames",
    "kernels": "Kernels",
}
_MEASURED = {"measured": "Measured"}
_TRACED_RUNS = 3

GROUP = "Look at a model"
EXAMPLE = "cml report enlarge.onnx -o report --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "frames", "overwrite")
    parser.group(GPU).add_argument(
        "--run", action="store_true", help="also measure the model on this machine's GPU"
    )
    parser.group(GPU).add_argument(
        "--runs", type=TIMES, default=10, metavar="N", help="runs to measure (default: 10)"
    )
    parser.group(OUTPUT).add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the folder to write"
    )


def run(a: argparse.Namespace) -> int:
    from cml_engine.tools.report.folder import sections
    from cml_engine.tools.report.folder.report_folder import INDEX, ReportFolder

    facts = load_facts(a)
    if facts.graph.ready is not None:
        raise InputError(f"'{a.model}' is cooked: report the model that it was made of")
    gpu = _gpu() if a.run else None  # raises before anything is written if there is no GPU
    titles = _TITLES | (_MEASURED if gpu else {})
    folder = ReportFolder(Path(a.output), titles, overwrite=a.overwrite)
    folder.heading, folder.lead = facts.graph.name, sections.lead(facts)
    print(f"{folder.path / INDEX}", flush=True)
    for key in _TITLES:
        if key == "frames":
            folder.add(_frames(facts, folder, a))
        else:
            make: sections.Maker = getattr(sections, key)
            folder.add(make(facts, folder))
        print(f"  {_TITLES[key].lower()}", flush=True)
    if gpu is not None:
        folder.add(_measured(facts, folder, gpu, a))
        print("  measured", flush=True)
    return 0


def _gpu() -> Gpu:
    from cml_engine.gpu.gpu import Gpu

    return Gpu()


def _frames(facts: ModelFacts, folder: ReportFolder, a: argparse.Namespace) -> PageSection:
    """Returns the page section of simulated frames: the table of ``cml simulate`` and a picture.

    Its data is written to ``frames.json`` in the folder.
    """
    from cml_engine.tools.report.folder.page import PageSection, html, note, pre
    from cml_engine.tools.report.folder.sections import SHOWN, frames_picture
    from scheduler.tools.simulate import table

    outcomes = facts.policies(a.budget_ms, a.frame_ms, frames=SHOWN)
    data = [{"policy": o.name, "inference_ms": o.inference_ms, "row": o.row()} for o in outcomes]
    file = folder.data("frames.json", {"budget_ms": a.budget_ms, "outcomes": data})
    said = (
        f"Simulated: the network again and again with {a.budget_ms:g} ms in frames of "
        f"{a.frame_ms:.2f} ms, on a device on paper with the times predicted above."
    )
    picture = frames_picture(outcomes[0].inference_ms, a.budget_ms)
    return PageSection(
        "frames", "Frames", html(note(said), pre(table(outcomes)), picture), (file,)
    )  # fmt: skip


def _measured(
    facts: ModelFacts, folder: ReportFolder, gpu: Gpu, a: argparse.Namespace
) -> PageSection:  # fmt: skip
    """Measures the model on the GPU and returns the page section with the ranking of its operators.

    Also replaces the section of operators by one with measured times, and writes a trace of runs in
    frames if the GPU has timestamps.
    """
    from cml_engine.runtime.rank import gpu_report, time_gpu
    from cml_engine.runtime.session.compile_graph import as_gpu_program
    from cml_engine.tools.report.folder.page import PageSection, html, pre
    from cml_engine.tools.report.folder.sections import operators

    session = Session(facts.graph, gpu, compile_options(a))
    program = as_gpu_program(session.program)
    times = time_gpu(program, random_inputs(session.inputs), a.runs, None)
    folder.add(operators(facts, folder, [float(ms) for ms in np.median(times, axis=0)]))
    rank = gpu_report(program, times)
    files = [folder.text("rank.json", rank.json() + "\n")]
    if gpu.has_timestamps:
        files.append(_trace(session, folder.place("trace.json"), a))
    body = pre(str(rank))
    if a.half:
        body = html(body, pre(_storage_errors(facts)))
    return PageSection("measured", "Measured", body, tuple(files))


def _storage_errors(facts: ModelFacts) -> str:
    """Returns a text about the errors of 16-bit storage, measured with NumPy on random inputs."""
    from cml_engine.runtime.node_check import storage_errors
    from cml_engine.tools.report.storage_report import StorageReport

    graph = facts.optimized
    arrays = random_inputs({name: graph.facts[name] for name in graph.inputs})
    return str(StorageReport.of(graph, storage_errors(graph, facts.plan.layouts, arrays)))


def _trace(session: Session, path: Path, a: argparse.Namespace) -> str:
    from scheduler.tools import commands

    commands.trace(
        session, random_inputs(session.inputs), path, budget_ms=a.budget_ms, frame_ms=a.frame_ms,
        runs=_TRACED_RUNS,
    )  # fmt: skip
    return path.name
