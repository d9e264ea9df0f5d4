"""Writes the table of devices in docs/design/devices.md from reports of ``cml selftest``.

    python -m benchmarks.devices             # prints the page of docs/design/devices/*.json
    python -m benchmarks.devices --write     # writes it
    python -m benchmarks.devices --add cml-selftest.json --write

``--add`` copies a report into the folder, under its device's name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import markdown_table
from cml_engine.io.output_folder import file_stem
from cml_engine.tools.selftest.report import PartResult, SelfTestReport

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "devices.md"
FOLDER = PAGE.with_suffix("")
_HEAD = """\
# Devices

Written by `python -m benchmarks.devices --write` from reports of `cml selftest`
(`docs/design/devices/`); do not edit. [Your GPU](../start.md#your-gpu) says how to make one.

A part is the number of its checks, and of those that failed. Kernels run declared cases of odd
sizes against NumPy, in any slices. Budgets are those of a network beside a picture of 4 ms. They
are not judged on a software driver, where the picture and other programs take the same cores.
"""


def page(reports: Sequence[SelfTestReport]) -> str:
    """Returns the page in Markdown, with a column for each report."""
    if not reports:
        return f"{_HEAD}\nNo report yet.\n"
    names = list(dict.fromkeys(part.name for report in reports for part in report.parts))
    budgets = list(dict.fromkeys(name for report in reports for name in _budgets(report)))
    rows = [
        ["driver", *(_driver(r) for r in reports)],
        ["date", *(r.created.partition("T")[0] for r in reports)],
        ["engine, wgpu", *(f"{r.versions['cml-engine']}, {r.versions['wgpu']}" for r in reports)],
        ["test", *("quick" if r.quick else "whole" for r in reports)],
        *([name, *(_checks(_part(r, name)) for r in reports)] for name in names),
        *(
            [f"{n}, P99, over, sliced ÷ unsliced", *(_budget(r, n) for r in reports)]
            for n in budgets
        ),
        ["result", *("ok" if r.ok else "FAILED" for r in reports)],
    ]
    head = ["", *(str(r.device["device"]) for r in reports)]
    return f"{_HEAD}\n{markdown_table(head, '|---' * len(head) + '|', rows)}\n"


def _driver(report: SelfTestReport) -> str:
    words = (report.device["description"], report.device["backend_type"])
    return ", ".join(str(word) for word in words if word)


def _part(report: SelfTestReport, name: str) -> PartResult | None:
    return next((part for part in report.parts if part.name == name), None)


def _checks(part: PartResult | None) -> str:
    if part is None or part.skipped:
        return part.skipped if part else "not run"
    return f"{part.checks}, {part.failed} failed" if part.failed else str(part.checks)


def _budgets(report: SelfTestReport) -> dict[str, Any]:
    part = _part(report, "frames")
    found: Any = part.facts.get("budgets", {}) if part else {}
    return dict(found)


def _budget(report: SelfTestReport, name: str) -> str:
    row = _budgets(report).get(name)
    if row is None or report.device["software"]:
        return "" if row is None else "not judged"
    over = row["frames_over_budget"] / max(1, row["frames"])
    return f"{row['slices_ms']['p99']:.2f} ms, {over:.1%}, {row['sliced_over_unsliced']:.2f}"


def stored_reports() -> list[SelfTestReport]:
    """Returns the reports in the folder, by file name."""
    return [SelfTestReport.read(path) for path in sorted(FOLDER.glob("*.json"))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    parser.add_argument("--add", type=Path, action="append", default=[], help="a report to add")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    for file in options.add:
        report = SelfTestReport.read(file)
        FOLDER.mkdir(exist_ok=True)
        report.save(FOLDER / f"{file_stem(str(report.device['name'])).lower()}.json")
    text = page(stored_reports())
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
