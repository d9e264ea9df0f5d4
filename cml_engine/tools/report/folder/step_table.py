"""Converts the plan to a table of dispatches: predicted and measured times, alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cml_engine.compiler.plan import Plan, Step
from cml_engine.compiler.tuning_tables import Record
from cml_engine.io.json_files import Json
from cml_engine.ops.declaration.choice import Choice
from cml_engine.tools.report.folder.page import (
    Cell,
    Html,
    details,
    html,
    listed,
    number,
    table,
    whole,
)
from cml_engine.tools.report.model_facts import Peak


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
    variant: str
    groups: int
    gflop: float
    mbytes: float
    predicted_ms: float
    measured_ms: float | None
    gflops: float | None
    gbytes_per_s: float | None
    share: float | None
    rivals: dict[str, float | None]


def step_rows(
    plan: Plan,
    predicted: Sequence[float],
    measured: Sequence[float] | None,
    peak: Peak | None,
    records: Mapping[str, Record],
) -> list[StepRow]:
    """Returns a row for every dispatch of the plan, in order.

    ``predicted`` and ``measured`` are milliseconds by step; ``records`` are the device's
    measurements of kernels.
    """
    choices = {choice.node: choice for choice in plan.choices}
    return [
        _row(step, predicted[i], measured[i] if measured else None, peak, choices, records)
        for i, step in enumerate(plan.steps)
    ]


def steps_data(rows: Sequence[StepRow], device: str, peak: Peak | None) -> dict[str, Json]:
    """Returns the rows as a JSON object, with the device and its peak rates."""
    return {
        "device": device,
        "peak": asdict(peak) if peak else None,
        "steps": [asdict(row) for row in rows],
    }


def steps_table(rows: Sequence[StepRow]) -> Html:
    """Returns the rows as an HTML table, with columns of measured times if there are any."""
    measured = any(row.measured_ms is not None for row in rows)
    titles = ["", "operator", "place", "kernel", "groups", "GFLOP", "MB", "predicted ms"]
    if measured:
        titles += ["measured ms", "GFLOP/s", "GB/s", "of the peak"]
    return table(titles, (_cells(row, measured) for row in rows))


def _row(
    step: Step,
    predicted: float,
    measured: float | None,
    peak: Peak | None,
    choices: Mapping[str, Choice],
    records: Mapping[str, Record],
) -> StepRow:
    seconds = None if measured is None else max(measured, 1e-9) / 1e3
    gflops = None if seconds is None else step.cost.flops / seconds / 1e9
    gbytes = None if seconds is None else step.cost.bytes / seconds / 1e9
    share = None
    if gflops is not None and gbytes is not None and peak is not None:
        share = max(gflops / peak.gflops, gbytes / peak.gbytes_per_s)
    return StepRow(
        number=step.index,
        title="+".join((step.title, *step.fused)),
        place=str(step.source) if step.source else "",
        kernel=str(step.path) if step.cooked is None else step.cooked.kernel.label,
        variant=step.variant,
        groups=step.groups,
        gflop=step.cost.flops / 1e9,
        mbytes=step.cost.bytes / 1e6,
        predicted_ms=predicted,
        measured_ms=measured,
        gflops=gflops,
        gbytes_per_s=gbytes,
        share=share,
        rivals=_rivals(choices.get(step.title), records),
    )


def _rivals(choice: Choice | None, records: Mapping[str, Record]) -> dict[str, float | None]:
    if choice is None:
        return {}
    record = records.get(choice.key)
    times = record.ms if record else {}
    return {name: times.get(name) for name in choice.options if name != choice.chosen}


def _cells(row: StepRow, measured: bool) -> list[Cell]:
    cells: list[Cell] = [
        whole(row.number),
        row.title,
        row.place,
        _kernel(row),
        whole(row.groups),
        number(row.gflop, 4),
        number(row.mbytes, 3),
        number(row.predicted_ms, 4),
    ]
    if measured:
        share = None if row.share is None else 100 * row.share
        cells += [
            number(row.measured_ms, 4),
            number(row.gflops, 2),
            number(row.gbytes_per_s, 2),
            None if share is None else html(f"{share:.0f} %"),
        ]
    return cells


def _kernel(row: StepRow) -> Cell:
    name = html(Html("<code>"), f"{row.kernel} {row.variant}".strip(), Html("</code>"))
    if not row.rivals:
        return name
    lines = [
        f"{rival}: {'not measured here' if ms is None else f'{ms:.4f} ms'}"
        for rival, ms in row.rivals.items()
    ]
    return details(html(name, f" of {len(lines) + 1}"), listed(lines))
