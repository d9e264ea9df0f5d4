"""Converts frame reports to a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format: a JSON list of events with microseconds. Tracks: frames as
expected (the budget) and as they were, a track of slices for each job, counters for budget, margin
and memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.json_files import JsonObject
from scheduler.reports import FrameReport

_PID = 1
_FRAMES, _EXPECTED, _FIRST_JOB = 1, 2, 10


def trace_events(
    reports: Sequence[FrameReport],
    names: Mapping[int, str] | None = None,
    memory: Mapping[str, float] | None = None,
    places: Mapping[str, str] | None = None,
) -> list[JsonObject]:
    """Returns the trace events of the reported frames, as JSON objects.

    ``names`` are the jobs' names by number; jobs of one name share a track. ``memory`` is bytes by
    owner, shown as a counter. ``places`` are the positions of operators in their model's files, by
    title.
    """
    tracks = _tracks(reports, names or {})
    numbers = _threads(tracks)
    threads = {job: numbers[name] for job, name in tracks.items()}
    events = list(_names(numbers))
    start = reports[0].now_ms if reports else 0.0
    for report in reports:
        events += _frame(report, report.now_ms - start, threads, memory or {}, places or {})
    return events


def write_trace(
    path: Path,
    reports: Sequence[FrameReport],
    names: Mapping[int, str] | None = None,
    memory: Mapping[str, float] | None = None,
    about: JsonObject | None = None,
    places: Mapping[str, str] | None = None,
) -> None:
    """Writes the trace of the reported frames to a JSON file; ``about`` is stored in it for people.

    Examples
    --------
    >>> reports = [scheduler.encode(encoder)]
    >>> cml.write_trace(Path("frames.json"), reports)
    """
    data = {
        "traceEvents": trace_events(reports, names, memory, places),
        "displayTimeUnit": "ms",
        "otherData": dict(about or {}),
    }
    write_atomically(path, json.dumps(data))


def _tracks(reports: Sequence[FrameReport], names: Mapping[int, str]) -> dict[int, str]:
    """Returns the track name of each job that ran: the job's name, or ``job`` and its number."""
    seen = dict.fromkeys(part.job for report in reports for part in report.slices)
    return {job: names.get(job) or f"job {job}" for job in seen}


def _names(threads: Mapping[str, int]) -> Iterator[JsonObject]:
    yield _meta("process_name", 0, "networks on the GPU")
    yield _meta("thread_name", _FRAMES, "frames, actual")
    yield _meta("thread_name", _EXPECTED, "frames, expected")
    for name, thread in threads.items():
        yield _meta("thread_name", thread, name)


def _threads(tracks: Mapping[int, str]) -> dict[str, int]:
    """Returns a thread number for each track name, in the order of first use."""
    return {name: _FIRST_JOB + i for i, name in enumerate(dict.fromkeys(tracks.values()))}


def _meta(name: str, thread: int, value: str) -> JsonObject:
    return {"ph": "M", "pid": _PID, "tid": thread, "name": name, "args": {"name": value}}


def _frame(
    report: FrameReport,
    at_ms: float,
    threads: Mapping[int, int],
    memory: Mapping[str, float],
    places: Mapping[str, str],
) -> Iterator[JsonObject]:
    took = report.measured_ms if report.measured_ms is not None else report.predicted_ms
    args = {
        "budget_ms": report.budget_ms,
        "aim_ms": report.aim_ms,
        "predicted_ms": report.predicted_ms,
        "measured_ms": report.measured_ms,
        "stopped_by": report.reason,
        "over_budget": report.over_budget,
    }
    yield _span(f"frame {report.frame}", _EXPECTED, at_ms, report.budget_ms, args)
    if report.slices:
        yield _span(f"frame {report.frame}", _FRAMES, at_ms, took, args)
    scale = took / report.predicted_ms if report.predicted_ms else 1.0
    at = at_ms
    for part in report.slices:
        length = part.predicted_ms * scale
        about = {"job": part.job, "step": part.step,
                 "workgroups": f"[{part.first}, {part.first + part.count})",
                 "predicted_ms": part.predicted_ms, "operator": part.title}  # fmt: skip
        if place := places.get(part.title):
            about["place"] = place
        yield _span(part.op, threads[part.job], at, length, about)
        at += length
    counters = {"budget": report.budget_ms, "aim": report.aim_ms, "used": took}
    yield _counter("ms per frame", at_ms, counters)
    if memory:
        yield _counter("memory (MiB)", at_ms, {k: v / 2**20 for k, v in memory.items()})


def _span(name: str, thread: int, at_ms: float, ms: float, args: JsonObject) -> JsonObject:
    return {
        "ph": "X", "pid": _PID, "tid": thread, "name": name,
        "ts": 1e3 * at_ms, "dur": 1e3 * ms, "args": dict(args),
    }  # fmt: skip


def _counter(name: str, at_ms: float, values: Mapping[str, float]) -> JsonObject:
    return {"ph": "C", "pid": _PID, "name": name, "ts": 1e3 * at_ms, "args": dict(values)}
