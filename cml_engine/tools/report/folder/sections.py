"""The sections of the report page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.choose_storage import Storage
from cml_engine.compiler.planning.overrides import Decisions
from cml_engine.compiler.tuning_tables import Record
from cml_engine.ir.graph import Graph
from cml_engine.ir.memory import mib
from cml_engine.tools.report.decision_table import decisions_on, decisions_table
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
from cml_engine.tools.report.folder.step_table import Peak, step_rows, steps_data, steps_table
from cml_engine.tools.report.model_info import model_info

_WIDTH, _HEIGHT, _LEFT, _TOP = 1200, 180, 76, 10
#: the number of frames in the picture
SHOWN = 240


def frames_picture(times: Sequence[float], budget_ms: float) -> Html:
    """Returns a bar chart of the inference time of the first frames, with the budget as a line."""
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


@dataclass(frozen=True)
class Subject:
    """The subject of the report: a model and its plan.

    ``device`` is "" without a GPU. ``predicted_ms`` has one value per step. ``records`` are earlier
    measurements of kernels.
    """

    graph: Graph
    optimized: Graph
    plan: Plan
    storage: Storage
    device: str
    predicted_ms: Sequence[float]
    peak: Peak | None
    records: Mapping[str, Record]
    decide: Decisions

    @property
    def lead(self) -> str:
        """The line below the page's title."""
        if not self.device:
            return "Planned for what WebGPU guarantees: no GPU was found."
        return f"Planned for {self.device}."


#: returns a section about a subject, and writes its files
Maker = Callable[[Subject, ReportFolder], PageSection]


def summary(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with the text of ``cml info``."""
    info = model_info(subject.graph, storage=subject.storage, decide=subject.decide)
    file = folder.text("model.json", info.json() + "\n")
    return PageSection("summary", "Summary", pre(str(info)), (file,))


def graph(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with the operators as they run."""
    rows = node_rows(subject.graph, subject.optimized)
    file = folder.data("graph.json", graph_data(subject.optimized, rows))
    said = (
        f"{len(rows)} operators, of {len(subject.graph.nodes)} in the model. Each opens to the "
        "lines of the model that it was made of."
    )
    body = html(note(said), graph_table(rows, subject.optimized.constants))
    return PageSection("graph", "Graph", body, (file,))


def passes(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with the graph after each pass, in a file if the pass changed it."""
    rows = []
    for number, stage in enumerate(stages(subject.graph)):
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
    subject: Subject, folder: ReportFolder, measured_ms: Sequence[float] | None = None
) -> PageSection:
    """Returns the section with the plan, step by step."""
    peak = subject.peak
    rows = step_rows(subject.plan, subject.predicted_ms, measured_ms, peak, subject.records)
    files = (
        folder.data("plan.json", steps_data(rows, subject.device, peak)),
        folder.text("plan.txt", f"{subject.plan}\n"),
    )
    said = "Predicted by what was learned of this device, else by FLOPs and bytes. "
    if peak is not None:
        said += f"Peak: {peak.gflops:.0f} GFLOP/s, {peak.gbytes_per_s:.0f} GB/s ({peak.source})."
    else:
        said += "The peak of this device is not known."
    return PageSection("operators", "Operators", html(note(said), steps_table(rows)), files)


def memory(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with the arena by step."""
    found = subject.plan.memory
    file = folder.data("arena.json", arena_data(subject.plan))
    said = (
        f"Peak {mib(found.peak)}, {found.ratio:.3f} of the lower bound of {mib(found.bound)} (the "
        "broken line): the most that lives at once. Upwards are addresses, to the right steps."
    )
    return PageSection("memory", "Memory", html(note(said), arena_picture(subject.plan)), (file,))


def decisions(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with the compiler's decisions and their sources."""
    found = decisions_on(
        subject.device, subject.graph, subject.optimized, subject.plan, subject.decide
    )
    file = folder.data("decisions.json", [asdict(decision) for decision in found])
    said = f"{len(found)} decisions."
    return PageSection("decisions", "Decisions", html(note(said), decisions_table(found)), (file,))


def kernels(subject: Subject, folder: ReportFolder) -> PageSection:
    """Returns the section with every kernel's source."""
    from cml_engine.gpu.shaders.dump import source_file
    from cml_engine.gpu.shaders.hlsl import ShaderKey
    from cml_engine.gpu.shaders.steps import step_key

    contents: dict[tuple[str, str], str] = {}
    by_kernel: dict[ShaderKey, list[str]] = {}
    for step in subject.plan.steps:
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
