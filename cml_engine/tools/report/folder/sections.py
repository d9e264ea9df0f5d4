"""Builds the sections of the report page from a model's facts; each also writes its data files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from cml_engine.ir.memory import mib
from cml_engine.tools.report.decision_table import decisions_table
from cml_engine.tools.report.folder.arena_picture import arena_data, arena_picture
from cml_engine.tools.report.folder.graph_table import graph_data, graph_table, node_rows
from cml_engine.tools.report.folder.page import (
    Html,
    PageSection,
    details,
    html,
    link,
    note,
    pre,
    table,
    whole,
)
from cml_engine.tools.report.folder.pass_stages import stages
from cml_engine.tools.report.folder.report_folder import KERNELS, PASSES, ReportFolder
from cml_engine.tools.report.folder.step_table import step_rows, steps_data, steps_table
from cml_engine.tools.report.model_facts import ModelFacts

_WIDTH, _HEIGHT, _LEFT, _TOP = 1200, 180, 76, 10
#: the number of frames in the picture
SHOWN = 240


def frames_picture(times: Sequence[float], budget_ms: float) -> Html:
    """Returns an SVG bar chart of the first frames' inference ms, with a line for the budget."""
    times = times[:SHOWN]
    most = max([budget_ms, *times]) * 1.05
    high, wide = _HEIGHT - 2 * _TOP, (_WIDTH - _LEFT) / max(len(times), 1)

    def y(ms: float) -> float:
        return _TOP + high * (1 - ms / most)

    bars = "".join(
        f'<rect class="{"bar" if ms <= budget_ms * (1 + 1e-9) else "bar over"}" '
        f'x="{_LEFT + i * wide:.2f}" y="{y(ms):.2f}" width="{0.9 * wide:.2f}" '
        f'height="{y(0) - y(ms):.2f}"><title>frame {i}: {ms:.3f} ms</title></rect>'
        for i, ms in enumerate(times)
        if ms > 0
    )
    line = y(budget_ms)
    return Html(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="time by frame">{bars}'
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH}" y1="{line:.2f}" y2="{line:.2f}"/>'
        f'<text x="4" y="{line + 4:.2f}">{budget_ms:g} ms</text></svg>'
    )


def lead(facts: ModelFacts) -> str:
    """Returns the sentence below the page's title, which names the GPU that the plan is for."""
    if not facts.device:
        return "Planned for what WebGPU guarantees: no GPU was found."
    return f"Planned for {facts.device}."


#: returns a section about a model, and writes its files
Maker = Callable[[ModelFacts, ReportFolder], PageSection]


def summary(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with the text of ``cml info``; writes ``model.json``."""
    info = facts.summary
    file = folder.text("model.json", info.json() + "\n")
    return PageSection("summary", "Summary", pre(str(info)), (file,))


def graph(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with a table of the operators as they run; writes ``graph.json``."""
    rows = node_rows(facts.graph, facts.optimized)
    file = folder.data("graph.json", graph_data(facts.optimized, rows))
    said = (
        f"{len(rows)} operators, of {len(facts.graph.nodes)} in the model. Each opens to the "
        "lines of the model that it was made of."
    )
    body = html(note(said), graph_table(rows, facts.optimized.constants))
    return PageSection("graph", "Graph", body, (file,))


def passes(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with a table of the passes; writes the graph after each change."""
    rows = []
    for number, stage in enumerate(stages(facts.graph)):
        file = None
        if stage.text:
            suffix = "txt" if stage.refused else "nnef"
            file = link(folder.text(f"{PASSES}/{number:02d}-{stage.name}.{suffix}", stage.text))
        said = f"no NNEF: {stage.refused}" if stage.text and stage.refused else ""
        rows.append((stage.name, whole(stage.nodes), file or "nothing changed", stage.why, said))
    titles = ("pass", "operators", "graph", "why there", "")
    said = "NNEF without its weights, where it can be written; else its text."
    return PageSection("passes", "Passes", html(note(said), table(titles, rows)))


def operators(
    facts: ModelFacts, folder: ReportFolder, measured_ms: Sequence[float] | None = None
) -> PageSection:
    """Returns the section with a table of the plan's steps and times; writes the plan's files.

    ``measured_ms`` are the measured milliseconds of the steps, if they were measured.
    """
    peak = facts.peak
    rows = step_rows(facts.plan, facts.predicted_ms, measured_ms, peak, facts.records)
    files = (
        folder.data("plan.json", steps_data(rows, facts.device, peak)),
        folder.text("plan.txt", f"{facts.plan}\n"),
    )
    said = "Predicted by what was learned of this device, else by FLOPs and bytes. "
    if peak is not None:
        said += f"Peak: {peak.gflops:.0f} GFLOP/s, {peak.gbytes_per_s:.0f} GB/s ({peak.source})."
    else:
        said += "The peak of this device is not known."
    return PageSection("operators", "Operators", html(note(said), steps_table(rows)), files)


def memory(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with the arena's picture; writes ``arena.json``."""
    found = facts.plan.memory
    file = folder.data("arena.json", arena_data(facts.plan))
    said = (
        f"Peak {mib(found.peak)}, {found.ratio:.3f} of the lower bound of {mib(found.bound)} (the "
        "broken line): the most that lives at once. Upwards are addresses, to the right steps."
    )
    return PageSection("memory", "Memory", html(note(said), arena_picture(facts.plan)), (file,))


def decisions(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with a table of the compiler's decisions; writes ``decisions.json``."""
    found = facts.decisions
    file = folder.data("decisions.json", [asdict(decision) for decision in found])
    said = f"{len(found)} decisions."
    return PageSection("decisions", "Decisions", html(note(said), decisions_table(found)), (file,))


def kernels(facts: ModelFacts, folder: ReportFolder) -> PageSection:
    """Returns the section with a table of the kernels; writes each kernel's HLSL source."""
    from cml_engine.gpu.shaders.dump import source_file
    from cml_engine.gpu.shaders.hlsl import ShaderKey, step_key

    contents: dict[tuple[str, str], str] = {}
    by_kernel: dict[ShaderKey, list[str]] = {}
    for step in facts.plan.steps:
        by_kernel.setdefault(step_key(step, contents), []).append(f"{step.index} {step.title}")
    rows = []
    for key, steps in by_kernel.items():
        name, source = source_file(key)
        file = link(folder.text(f"{KERNELS}/{name}", source))
        rows.append((file, whole(len(steps)), details(steps[0], pre("\n".join(steps)))))
    said = (
        "HLSL with all that it includes. `cml rank MODEL --dump-kernels DIR` writes the SPIR-V, "
        "and what other platforms get of it."
    )
    return PageSection(
        "kernels", "Kernels", html(note(said), table(("kernel", "steps", "of"), rows))
    )  # fmt: skip
