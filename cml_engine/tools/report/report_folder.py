"""The report folder of ``cml report``: all facts about a model, with a page to read them.

Every section adds its data files and updates the page, so an interrupted report can be read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.compiler.optimize import stages_of
from cml_engine.compiler.plan import Binding, Plan, Step
from cml_engine.compiler.planning.decisions import Decision, computed_operators
from cml_engine.compiler.tuning_tables import Record
from cml_engine.errors import CmlError
from cml_engine.formats.builder import registered_declarations
from cml_engine.io.output_folder import OutputFolder
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.memory import mib
from cml_engine.nnef.files.writer import to_text
from cml_engine.ops.declaration.choice import Choice
from cml_engine.runtime.session import CompileOptions, Session, random_inputs
from cml_engine.tools.report.model_facts import ModelFacts, Peak
from cml_engine.tools.report.page import (
    Cell,
    Html,
    PageSection,
    details,
    html,
    link,
    listed,
    note,
    number,
    page,
    pre,
    table,
)

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

_INDEX = "index.html"
#: the number of frames in the picture
_SHOWN_FRAMES = 240
_TRACED_RUNS = 3
#: options of a decision beyond this number are shown after a click
_LISTED = 2
#: the extents of pictures, and the width of the labels on the left
_WIDTH, _LEFT, _TOP = 1200, 76, 10


class ReportFolder(OutputFolder):
    """A report folder that is being written, section by section.

    Its manifest ``report.json`` marks a folder as a report and lists the finished sections.
    """

    def __init__(
        self, path: str, facts: ModelFacts, titles: Mapping[str, str], overwrite: bool
    ) -> None:
        super().__init__(path, "report.json", overwrite=overwrite)
        self.facts = facts
        self._titles = titles
        self._sections: dict[str, PageSection] = {}
        self._write_state()

    def add(self, key: str, body: Html, *files: str) -> None:
        """Adds a section, or replaces the one of the same key, and writes the page again."""
        self._sections[key] = PageSection(key, self._titles[key], body, files)
        device = self.facts.device
        intro = f"Planned for {device or 'what WebGPU guarantees: no GPU was found'}."
        finished = [self._sections[key] for key in self._titles if key in self._sections]
        missing = [self._titles[key] for key in self._missing()]
        self.write(_INDEX, page(self.facts.graph.name, intro, finished, missing))
        self._write_state()

    def write_json(self, name: str, data: object) -> str:
        """Writes data as a JSON file of this name into the folder, and returns the name."""
        return self.write(name, json.dumps(data, indent=1) + "\n")

    def _missing(self) -> list[str]:
        return [key for key in self._titles if key not in self._sections]

    def _write_state(self) -> None:
        files = {key: list(s.files) for key, s in self._sections.items()}
        self.write_manifest(
            {"format": "cml report 1", "sections": files, "missing": self._missing()}
        )


def write_report(
    facts: ModelFacts,
    path: str,
    frames: tuple[float, float],
    gpu: Gpu | None,
    options: CompileOptions,
    runs: int,
    overwrite: bool,
    log: Sequence[str],
) -> Iterator[str]:
    """Writes the report folder, and yields a line of text for each finished step.

    Parameters
    ----------
    frames : the budget of a frame and its duration, in milliseconds.
    gpu : the device on which the model is also measured; None measures nothing.
    options, runs : the options of that session, and the number of runs.
    log : the engine's log messages, which grow while the report is written.
    """
    sections: dict[str, Callable[[ReportFolder], None]] = {
        **SECTIONS,
        "frames": lambda folder: _add_frames(folder, *frames),
        "kernels": _add_kernels,
    }
    if gpu is not None:
        sections["measured"] = lambda folder: _add_measured(folder, gpu, options, runs, frames)
    sections["log"] = lambda folder: _add_log(folder, log)
    folder = ReportFolder(path, facts, {key: key.capitalize() for key in sections}, overwrite)
    yield str(folder.path / _INDEX)
    for key, add in sections.items():
        add(folder)
        yield f"  {key}"


def _add_summary(folder: ReportFolder) -> None:
    """Adds the text of ``cml info`` and writes ``model.json``."""
    info = folder.facts.summary
    file = folder.write("model.json", json.dumps(asdict(info), indent=2) + "\n")
    folder.add("summary", pre(str(info)), file)


def _add_graph(folder: ReportFolder) -> None:
    """Adds a table of the operators as they run, each with its operators in the model's file.

    Writes ``graph.json``.
    """
    written, graph = folder.facts.graph, folder.facts.optimized
    origins, computed = written.producers, graph.producers
    data: list[dict[str, object]] = []
    rows: list[list[Cell]] = []
    for index, node in enumerate(graph.nodes):
        origin = [
            {
                "title": operator.title,
                "place": str(operator.source or ""),
                "text": operator.source.text.strip() if operator.source else "",
            }
            for operator in computed_operators(node, origins, computed) or [node]
        ]
        outputs = {name: str(graph.facts[name]) for name in node.outputs}
        reads = {name: str(graph.facts[name]) for name in dict.fromkeys(node.reads)}
        attrs = repr(node.attrs)
        row = {"number": index, "op": node.full_op, "outputs": outputs, "reads": reads}
        data.append({**row, "attrs": attrs, "made_of": origin})
        lines = [
            html(f"{o['title']}  {o['place']} ", Html("<pre>"), o["text"], Html("</pre>"))
            for o in origin
        ]
        rows.append(
            [
                index,
                details(_code(node.full_op), listed([*lines, *([_code(attrs)] if attrs else [])])),
                ", ".join(f"{name}: {fact}" for name, fact in outputs.items()),
                ", ".join(n if n not in graph.constants else f"{n} (constant)" for n in reads),
                origin[-1]["place"],
            ]
        )
    ends = {
        key: {name: str(graph.facts[name]) for name in names}
        for key, names in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }
    file = folder.write_json("graph.json", {"name": graph.name, **ends, "nodes": data})
    caption = (
        f"{len(rows)} operators, of {len(written.nodes)} in the model. Each opens to the "
        "lines of the model that it was made of."
    )
    titles = ("", "operator", "result", "reads", "place")
    folder.add("graph", html(note(caption), table(titles, rows)), file)


def _code(text: str) -> Html:
    return html(Html("<code>"), text, Html("</code>"))


# ---------------------------------------------------------------- the steps of the plan


@dataclass(frozen=True, slots=True)
class StepRow:
    """The facts about one dispatch of the plan, for a row of the table.

    ``rivals`` are the alternative kernels with their milliseconds measured on this device, or
    None if they were not measured.
    """

    number: int
    title: str
    place: str
    kernel: str
    groups: int
    gflop: float
    mbytes: float
    predicted_ms: float
    measured_ms: float | None
    gflops: float | None
    gbytes_per_s: float | None
    share: float | None
    rivals: dict[str, float | None]

    @classmethod
    def of(
        cls,
        step: Step,
        predicted_ms: float,
        measured_ms: float | None,
        peak: Peak | None,
        rivals: dict[str, float | None],
    ) -> StepRow:
        gflop, mbytes = step.cost.flops / 1e9, step.cost.bytes / 1e6
        gflops = gbytes = share = None
        if measured_ms is not None:
            ms = max(measured_ms, 1e-9)
            gflops, gbytes = 1e3 * gflop / ms, mbytes / ms
            if peak is not None:
                share = max(gflops / peak.gflops, gbytes / peak.gbytes_per_s)
        return cls(
            step.index,
            step.full_title,
            str(step.source or ""),
            step.kernel,
            step.groups,
            gflop,
            mbytes,
            predicted_ms,
            measured_ms,
            gflops,
            gbytes,
            share,
            rivals,
        )

    def cells(self, measured: bool) -> list[Cell]:
        """Returns the cells of the row, those of measured times only with ``measured``."""
        kernel = _code(self.kernel)
        if self.rivals:
            lines = [
                f"{rival}: {'not measured here' if ms is None else f'{ms:.4f} ms'}"
                for rival, ms in self.rivals.items()
            ]
            kernel = details(html(kernel, f" of {len(lines) + 1}"), listed(lines))
        cells: list[Cell] = [
            self.number,
            self.title,
            self.place,
            kernel,
            self.groups,
            number(self.gflop, 4),
            number(self.mbytes, 3),
            number(self.predicted_ms, 4),
        ]
        if measured:
            cells += [
                number(self.measured_ms, 4),
                number(self.gflops, 2),
                number(self.gbytes_per_s, 2),
                None if self.share is None else f"{100 * self.share:.0f} %",
            ]
        return cells


def _add_operators(folder: ReportFolder, measured_ms: Sequence[float] | None = None) -> None:
    """Adds a table of the plan's steps and their times; writes ``plan.json`` and ``plan.txt``.

    ``measured_ms`` are the measured milliseconds of the steps, if they were measured.
    """
    facts = folder.facts
    plan, peak = facts.plan, facts.peak
    choices = {choice.node: choice for choice in plan.choices}
    rows = [
        StepRow.of(
            step,
            facts.predicted_ms[i],
            measured_ms[i] if measured_ms else None,
            peak,
            _rivals(choices.get(step.title), facts.records),
        )
        for i, step in enumerate(plan.steps)
    ]
    data = {
        "device": facts.device,
        "peak": asdict(peak) if peak else None,
        "steps": [asdict(row) for row in rows],
    }
    files = folder.write_json("plan.json", data), folder.write("plan.txt", f"{plan}\n")
    caption = "Predicted by what was learned of this device, else by FLOPs and bytes. "
    if peak is not None:
        caption += f"Peak: {peak.gflops:.0f} GFLOP/s, {peak.gbytes_per_s:.0f} GB/s ({peak.source})."
    else:
        caption += "The peak of this device is not known."
    titles = ["", "operator", "place", "kernel", "groups", "GFLOP", "MB", "predicted ms"]
    if measured_ms:
        titles += ["measured ms", "GFLOP/s", "GB/s", "of the peak"]
    steps = table(titles, (row.cells(bool(measured_ms)) for row in rows))
    folder.add("operators", html(note(caption), steps), *files)


def _rivals(choice: Choice | None, records: Mapping[str, Record]) -> dict[str, float | None]:
    if choice is None:
        return {}
    record = records.get(choice.key)
    times = record.ms if record else {}
    return {name: times.get(name) for name in choice.options if name != choice.chosen}


def _add_listing(folder: ReportFolder) -> None:
    """Adds a table of the tensors that each step binds; writes it as ``listing.json``."""
    plan = folder.facts.plan
    data = [
        {"step": step.index, "operator": step.full_title, "kernel": step.kernel, **asdict(tensor)}
        for step in plan.steps
        for tensor in plan.bound_tensors(step)
    ]
    file = folder.write_json("listing.json", data)
    caption = (
        "Every step in running order with the tensors that its kernel binds. Offsets are bytes in "
        "the arena, in the weights, or in the network's own memory."
    )
    rows = ([*row.values()] for row in data)
    folder.add("listing", html(note(caption), table(tuple(data[0]) if data else (), rows)), file)


# ---------------------------------------------------------------- the arena


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor's place in the arena: a range of bytes, and the steps that use it.

    It occupies bytes ``[offset, offset + nbytes)`` during steps ``first`` to ``last``. Inputs
    begin at step -1; outputs end at the number of steps.
    """

    tensor: str
    offset: int
    nbytes: int
    first: int
    last: int


def _placed_tensors(plan: Plan) -> list[PlacedTensor]:
    """Returns the places of all tensors in the plan's arena, in the order of their first steps."""
    lives: dict[Binding, list[int]] = {}
    for place in plan.inputs.values():
        lives.setdefault(place.binding, []).append(-1)
    for step in plan.steps:
        for binding in step.bindings:
            lives.setdefault(binding, []).append(step.index)
    for place in plan.results.values():
        lives.setdefault(place.binding, []).append(len(plan.steps))
    return [
        PlacedTensor(binding.tensor, binding.offset, binding.nbytes, min(steps), max(steps))
        for binding, steps in lives.items()
        if binding.space == "arena"
    ]


def _add_memory(folder: ReportFolder) -> None:
    """Adds a picture of the arena, with addresses upwards and steps to the right.

    The tensor under the pointer shows its name. Writes ``arena.json``.
    """
    plan = folder.facts.plan
    memory, tensors, steps = plan.memory, _placed_tensors(plan), len(plan.steps)
    data = {"peak": memory.peak, "bound": memory.bound, "steps": steps}
    file = folder.write_json("arena.json", {**data, "tensors": [asdict(t) for t in tensors]})
    height, bottom = 420, 24
    size, width = max(memory.peak, 1), (_WIDTH - _LEFT - 8) / (steps + 2)

    def y(address: float) -> float:
        return _TOP + (height - _TOP - bottom) * (1 - address / size)

    def name_step(step: int) -> str:
        if step < 0:
            return "the inputs"
        return f"step {step}" if step < steps else "the end"

    parts = []
    for t in tensors:
        top, base = y(t.offset + t.nbytes), y(t.offset)
        hue = zlib.crc32(t.tensor.encode()) % 360
        caption = f"{t.nbytes} bytes at {t.offset}, {name_step(t.first)} to {name_step(t.last)}"
        parts.append(
            f'<rect class="tensor" x="{_LEFT + width * (t.first + 1):.2f}" y="{top:.2f}" '
            f'width="{width * (t.last - t.first + 1):.2f}" height="{max(base - top, 0.5):.2f}" '
            f'fill="hsl({hue} 55% 62%)"><title>{escape(f"{t.tensor}: {caption}")}</title></rect>'
        )
    for address in (0, size / 2, size):
        parts.append(f'<text x="4" y="{y(address) + 4:.1f}">{address / 2**20:.2f} MiB</text>')
    bound = y(memory.bound)
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{y(0):.1f}"/>'
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH}" y1="{bound:.1f}" y2="{bound:.1f}">'
        f"<title>lower bound: {memory.bound} bytes</title></line>"
        f'<text x="{_LEFT}" y="{height - 7}">inputs</text>'
        f'<text x="{_WIDTH - 8}" y="{height - 7}" text-anchor="end">{steps} steps, outputs</text>'
    )
    caption = (
        f"Peak {mib(memory.peak)}, {memory.ratio:.3f} of the lower bound of {mib(memory.bound)} "
        "(the broken line): the most that lives at once. Upwards are addresses, to the right steps."
    )
    folder.add("memory", html(note(caption), _picture(height, "the arena by step", parts)), file)


def _picture(height: int, label: str, parts: Sequence[str]) -> Html:
    return Html(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


# ---------------------------------------------------------------- decisions, passes, kernels


def _add_decisions(folder: ReportFolder) -> None:
    """Adds a table of the compiler's decisions; writes ``decisions.json``."""
    decisions = folder.facts.decisions
    file = folder.write_json("decisions.json", [asdict(decision) for decision in decisions])
    titles = ("subject", "kind", "chosen", "by", "why", "instead of")
    rows = ((d.subject, d.kind, d.chosen, d.by, d.why, _others(d)) for d in decisions)
    folder.add("decisions", html(note(f"{len(decisions)} decisions."), table(titles, rows)), file)


def _others(decision: Decision) -> Cell:
    alternatives = [option for option in decision.options if option != decision.chosen]
    if len(alternatives) <= _LISTED:
        return ", ".join(alternatives)
    return details(f"{len(alternatives)} others", listed(alternatives))


def _add_passes(folder: ReportFolder) -> None:
    """Adds a table of the optimization passes; writes the graph after each change.

    The graph is written as NNEF where NNEF can express it.
    """
    rows: list[list[Cell]] = []
    last = ""
    for index, (name, reason, graph) in enumerate(stages_of(folder.facts.graph)):
        refused = ""
        try:
            text = to_text(graph, registered_declarations())
        except CmlError as error:
            text, refused = _plain_text(graph), str(error)
        cell: Cell = "nothing changed"
        if text != last:
            suffix = "txt" if refused else "nnef"
            cell = link(folder.write(f"passes/{index:02d}-{name}.{suffix}", text))
        remark = f"no NNEF: {refused}" if text != last and refused else ""
        rows.append([name, len(graph.nodes), cell, reason, remark])
        last = text
    titles = ("pass", "operators", "graph", "why there", "")
    remark = "NNEF without its weights, where it can be written; else its text."
    folder.add("passes", html(note(remark), table(titles, rows)))


def _add_planning(folder: ReportFolder) -> None:
    """Adds a table of the stages that made the plan; writes ``planning.json``."""
    stages = folder.facts.plan.stages
    data = [{"stage": name, "changed": figures, "why": why} for name, why, figures in stages]
    rows = [
        (name, ", ".join(f"{number} {unit}" for unit, number in figures.items()), why)
        for name, why, figures in stages
    ]
    caption = "After the passes, in this order." if stages else "The cooked file has the plan."
    body = html(note(caption), table(("stage", "result", "what it does"), rows))
    folder.add("planning", body, folder.write_json("planning.json", data))


def _plain_text(graph: Graph) -> str:
    """Returns the graph as a text with a line for each node and for each epilogue."""

    def call(inputs: Sequence[str], attrs: Mapping[str, object]) -> str:
        return ", ".join((*inputs, *([repr(attrs)] if attrs else ())))

    def line(node: Node) -> str:
        results = ", ".join(f"{name}: {graph.facts[name]}" for name in node.outputs)
        epilogues = "".join(f"\n    then {e.op}({call(e.inputs, e.attrs)})" for e in node.epilogues)
        return f"{results} = {node.op}({call(node.inputs, node.attrs)}){epilogues}"

    head = f"graph {graph.name}({', '.join(graph.inputs)}) -> ({', '.join(graph.outputs)})"
    return "\n".join([head, *map(line, graph.nodes)]) + "\n"


def _add_kernels(folder: ReportFolder) -> None:
    """Adds a table of the kernels; writes each kernel's HLSL source."""
    from cml_engine.gpu.shaders.dump import source_file
    from cml_engine.gpu.shaders.hlsl import ShaderKey, step_key

    contents: dict[tuple[str, str], str] = {}
    by_kernel: dict[ShaderKey, list[str]] = {}
    for step in (step for step in folder.facts.plan.steps if step.cpu_part is None):
        by_kernel.setdefault(step_key(step, contents), []).append(f"{step.index} {step.title}")
    rows: list[list[Cell]] = []
    for key, steps in by_kernel.items():
        name, source = source_file(key)
        file = link(folder.write(f"kernels/{name}", source))
        rows.append([file, key.label, len(steps), details(steps[0], pre("\n".join(steps)))])
    caption = (
        "HLSL with all that it includes. `cml rank MODEL --dump-kernels DIR` writes the SPIR-V, "
        "and what other platforms get of it."
    )
    folder.add("kernels", html(note(caption), table(("kernel", "in words", "steps", "of"), rows)))


#: the sections that need nothing but the facts: each adds itself to the page and writes its files
SECTIONS: dict[str, Callable[[ReportFolder], None]] = {
    "summary": _add_summary,
    "graph": _add_graph,
    "operators": _add_operators,
    "listing": _add_listing,
    "memory": _add_memory,
    "decisions": _add_decisions,
    "passes": _add_passes,
    "planning": _add_planning,
}


# ---------------------------------------------------------------- frames and measurements


def _add_frames(folder: ReportFolder, budget_ms: float, frame_ms: float) -> None:
    """Adds the table of ``cml simulate``, and a picture of the first frames' inference times.

    Writes ``frames.json``.
    """
    from cml_engine.scheduler.tools.commands import policies
    from cml_engine.scheduler.tools.simulate import table

    facts = folder.facts
    costs = facts.plan.step_costs()
    outcomes = policies(
        facts.graph.name, costs, budget_ms, frame_ms, facts.costs, frames=_SHOWN_FRAMES
    )
    data = [{"policy": o.name, "inference_ms": o.inference_ms, "row": o.row()} for o in outcomes]
    file = folder.write_json("frames.json", {"budget_ms": budget_ms, "outcomes": data})
    caption = (
        f"Simulated: the network again and again with {budget_ms:g} ms in frames of "
        f"{frame_ms:.2f} ms, on a device on paper with the times predicted above."
    )
    times = outcomes[0].inference_ms[:_SHOWN_FRAMES]
    top, height = max([budget_ms, *times]) * 1.05, 180
    bar_width = (_WIDTH - _LEFT) / max(len(times), 1)

    def y(ms: float) -> float:
        return _TOP + (height - 2 * _TOP) * (1 - ms / top)

    line = y(budget_ms)
    parts = [
        f'<rect class="{"bar" if ms <= budget_ms * (1 + 1e-9) else "bar over"}" '
        f'x="{_LEFT + i * bar_width:.2f}" y="{y(ms):.2f}" width="{0.9 * bar_width:.2f}" '
        f'height="{y(0) - y(ms):.2f}"><title>frame {i}: {ms:.3f} ms</title></rect>'
        for i, ms in enumerate(times)
        if ms > 0
    ]
    parts.append(
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH}" y1="{line:.2f}" y2="{line:.2f}"/>'
        f'<text x="4" y="{line + 4:.2f}">{budget_ms:g} ms</text>'
    )
    picture = _picture(height, "time by frame", parts)
    folder.add("frames", html(note(caption), pre(table(outcomes)), picture), file)


def _add_log(folder: ReportFolder, log: Sequence[str]) -> None:
    """Adds the log messages; writes ``log.txt``."""
    content = "".join(f"{line}\n" for line in log)
    folder.add("log", pre(content or "no messages"), folder.write("log.txt", content))


def _add_measured(
    folder: ReportFolder,
    gpu: Gpu,
    options: CompileOptions,
    runs: int,
    frames: tuple[float, float],
) -> None:
    """Measures the model on the GPU and adds the ranking of its operators.

    Also replaces the section of operators by one with measured times, and writes a trace of runs in
    frames if the GPU has timestamps.
    """
    from cml_engine.runtime.rank import gpu_report, time_gpu
    from cml_engine.runtime.session.compile_graph import as_gpu_program

    session = Session(folder.facts.graph, gpu, options)
    program = as_gpu_program(session.program)
    times = time_gpu(program, random_inputs(session.inputs), runs, None)
    _add_operators(folder, [float(ms) for ms in np.median(times, axis=0)])
    rank = gpu_report(program, times)
    files = [folder.write("rank.json", rank.json() + "\n")]
    if gpu.has_timestamps:
        from cml_engine.scheduler.tools.commands import trace

        path, inputs = folder.place("trace.json"), random_inputs(session.inputs)
        budget_ms, frame_ms = frames
        trace(session, inputs, path, budget_ms=budget_ms, frame_ms=frame_ms, runs=_TRACED_RUNS)
        files.append(path.name)
    body = pre(str(rank))
    if folder.facts.options.storage == "half":
        body = html(body, pre(_storage_errors(folder.facts)))
    folder.add("measured", body, *files)


def _storage_errors(facts: ModelFacts) -> str:
    """Returns a text about the errors of 16-bit storage, measured with NumPy on random inputs."""
    from cml_engine.runtime.node_check import storage_errors
    from cml_engine.tools.report.validation import StorageReport

    graph = facts.optimized
    arrays = random_inputs({name: graph.facts[name] for name in graph.inputs})
    return str(StorageReport.of(graph, storage_errors(graph, facts.plan.layouts, arrays)))
