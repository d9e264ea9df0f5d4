"""Formats measured times as Markdown for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contenders import Workload
from benchmarks.rounds import EngineResult

#: the contenders whose output all others are compared with: the first that has one
REFERENCES = ("ncnn-cpu", "onnxruntime")
#: (engine, other engine, largest ratio of their times): for the upres network, for the others
_UPRES = (
    ("ours-gpu", "ncnn-vulkan", 1 / 1.5),
    ("ours-gpu", "ort-webgpu", 0.1),
    ("ours-cpu", "onnxruntime", 1.4),
    ("ours-ort", "onnxruntime", 1.1),
    ("ours-cpu", "tract", 1.0),
)
_OTHERS = (("ours-gpu", "ncnn-vulkan", 1.0),)
#: a ratio that grew by this factor is worse; smaller changes are noise of this machine
_WORSE = 1.25
#: the largest accepted difference from the reference for values up to 1; in proportion for larger
#: values
TOLERANCE = 1e-4

_HEAD = (
    "engine", "device", "median ms", "min", "p10", "p90", "÷ ours GPU", "÷ ours CPU",
    "max abs diff",
)  # fmt: skip


def differences(results: Sequence[EngineResult], workload: Workload) -> dict[str, float]:
    """Returns the largest absolute difference of each output from the reference's, by key.

    The reference itself is included. Empty if no reference has an output.
    """
    outputs = {}
    for result in results:
        path = workload.output(result.contender.key)
        if result.about and path.is_file():
            outputs[result.contender.key] = np.load(path).astype(np.float64)
    reference = next((outputs[key] for key in REFERENCES if key in outputs), None)
    if reference is None:
        return {}
    return {key: _difference(value, reference) for key, value in outputs.items()}


def tolerance(workload: Workload) -> float:
    """Returns the largest accepted difference of outputs: a share of the reference's largest value.

    That value counts as 1 if it is smaller.
    """
    paths = (workload.output(key) for key in REFERENCES)
    largest = next((float(np.abs(np.load(path)).max()) for path in paths if path.is_file()), 1.0)
    return TOLERANCE * max(1.0, largest)


def _difference(value: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Returns the largest absolute difference of two arrays.

    It is infinity if the shapes differ or ``value`` is not finite.
    """
    if value.shape != reference.shape or not np.isfinite(value).all():
        return float("inf")
    return float(np.abs(value - reference).max())


def markdown(results: Sequence[EngineResult], differences: dict[str, float]) -> str:
    """Returns a Markdown table of the times, one row per contender.

    A contender without times shows the reason.
    """
    rows = [_row(result, results, differences) for result in results]
    return markdown_table(_HEAD, "|---|---|" + "--:|" * (len(_HEAD) - 2), rows)


def markdown_table(head: Sequence[str], rule: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; ``rule`` is its second line, which aligns the columns."""
    first, *body = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([first, rule, *body])


def _row(
    result: EngineResult, results: Sequence[EngineResult], differences: dict[str, float]
) -> tuple[str, ...]:
    title = f"{result.contender.title} {result.about.get('version', '')}".strip()
    if result.problem or not result.turns:
        return (title, one_line(result.problem), *[""] * (len(_HEAD) - 2))
    low, high = np.percentile(result.times, (10, 90))
    difference = differences.get(result.contender.key)
    return (
        title,
        result.about["device"].partition(" (")[0],
        *(f"{ms:.1f}" for ms in (result.median, min(result.times), low, high)),
        *(_ratio(result, find(results, key)) for key in ("ours-gpu", "ours-cpu")),
        "" if difference is None else f"{difference:.1e}",
    )


def one_line(text: str) -> str:
    """Returns a message as one line without ``|``, for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "¦")


def find(results: Sequence[EngineResult], key: str) -> EngineResult | None:
    """Returns the result of the contender ``key``, or None if it has no times or a problem."""
    for result in results:
        if result.contender.key == key and result.turns and not result.problem:
            return result
    return None


def _ratio(result: EngineResult, reference: EngineResult | None) -> str:
    return f"{result.ratio_to(reference):.2f}" if reference else ""


def _compared(
    model: str, results: Sequence[EngineResult]
) -> Iterator[tuple[str, float, EngineResult, EngineResult]]:
    """Yields each limit on the speed of a network: its name, the largest ratio, both results.

    A limit whose engines were not measured is left out.
    """
    for ours, peer, limit in _UPRES if model.startswith("upres") else _OTHERS:
        mine, theirs = find(results, ours), find(results, peer)
        if mine and theirs:
            yield f"{ours} ÷ {peer}", limit, mine, theirs


def verdicts(
    model: str,
    results: Sequence[EngineResult],
    differences: dict[str, float],
    tolerance: float = TOLERANCE,
) -> list[tuple[bool, str]]:
    """Returns (passed, text) for each limit on the speed and on the numerical difference."""
    checks = []
    for name, limit, mine, theirs in _compared(model, results):
        ratio = mine.ratio_to(theirs)
        best = min(mine.times) / min(theirs.times)
        text = f"{name} = {ratio:.2f}, at most {limit:.2f} (best runs: {best:.2f})"
        checks.append((ratio <= limit, text))
    for key in ("ours-gpu", "ours-cpu"):
        if key in differences:
            text = f"{key} - reference = {differences[key]:.1e}, at most {tolerance:.0e}"
            checks.append((differences[key] <= tolerance, text))
    return checks


def ratios(model: str, results: Sequence[EngineResult]) -> dict[str, float]:
    """Returns the time ratios that have a limit, by the text "ours ÷ theirs"."""
    return {
        name: round(mine.ratio_to(theirs), 4) for name, _, mine, theirs in _compared(model, results)
    }


def worse(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Returns a sentence for each ratio that is clearly larger than in the report ``before``.

    Times of two runs cannot be compared; the ratios within each run can.
    """
    old_ratios = {record["model"]: record["ratios"] for record in before["models"]}
    sentences = []
    for record in now["models"]:
        for name, ratio in record["ratios"].items():
            old_ratio = old_ratios.get(record["model"], {}).get(name)
            if old_ratio and ratio > _WORSE * old_ratio:
                sentences.append(f"{record['model']}: {name} is {ratio:.2f}, was {old_ratio:.2f}")
    return sentences


def record(results: Sequence[EngineResult], differences: dict[str, float]) -> list[dict[str, Any]]:
    """Returns every contender's numbers for the JSON report, including all single times."""
    return [
        {
            "key": result.contender.key,
            "title": result.contender.title,
            **result.about,
            "problem": result.problem,
            "median_ms": round(result.median, 3) if result.turns else None,
            "turns_ms": [[round(ms, 3) for ms in round_ms] for round_ms in result.turns],
            "max_abs_difference": differences.get(result.contender.key),
        }
        for result in results
    ]
