"""Converts frame reports to a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format: a JSON list of events with microseconds. Tracks: frames as
expected (the budget) and as they were, the host's activities, a track of slices for each job,
counters for budget, margin and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_instances, check_mapping
from cml_engine.io import write_atomically
from cml_engine.io.json_files import JsonObject
from cml_engine.scheduler.clock import check_number
from cml_engine.scheduler.reports import FrameReport

_PID = 1
_FRAMES, _EXPECTED, _HOST, _FIRST_JOB = 1, 2, 3, 10


def trace_events(
    reports: Sequence[FrameReport],
    names: Mapping[int, str] | None = None,
    memory: Mapping[str, float] | None = None,
    places: Mapping[str, str] | None = None,
    activities: Mapping[int, Mapping[str, float]] | None = None,
) -> list[JsonObject]:
    """Returns the trace events of the reported frames, as JSON objects.

    ``names`` are the jobs' names by number; jobs of one name share a track. ``memory`` is bytes by
    owner, shown as a counter. ``places`` are the positions of operators in their model's files, by
    title. ``activities`` are the milliseconds of the host's frames by activity, by frame number.
    """
    names, memory, places = names or {}, memory or {}, places or {}
    activities = activities or {}
    jobs = dict.fromkeys(part.job for report in reports for part in report.slices)
    tracks = {job: names.get(job) or f"job {job}" for job in jobs}
    numbers = {name: _FIRST_JOB + i for i, name in enumerate(dict.fromkeys(tracks.values()))}
    threads = {"frames, actual": _FRAMES, "frames, expected": _EXPECTED, **numbers}
    threads |= {"the host": _HOST} if activities else {}
    events = [_meta("process_name", 0, "networks on the GPU")]
    events += [_meta("thread_name", thread, name) for name, thread in threads.items()]
    mib = {owner: nbytes / 2**20 for owner, nbytes in memory.items()}
    for report in reports:
        at = report.now_ms - reports[0].now_ms
        took = report.predicted_ms if report.measured_ms is None else report.measured_ms
        args = {
            "budget_ms": report.budget_ms,
            "aim_ms": report.aim_ms,
            "predicted_ms": report.predicted_ms,
            "measured_ms": report.measured_ms,
            "stopped_by": report.reason,
            "over_budget": report.over_budget,
        }
        events.append(_span(f"frame {report.frame}", _EXPECTED, at, report.budget_ms, args))
        if report.slices:
            events.append(_span(f"frame {report.frame}", _FRAMES, at, took, args))
        begins = at
        for activity, ms in activities.get(report.frame, {}).items():
            events.append(_span(activity, _HOST, begins, ms, {"frame": report.frame}))
            begins += ms
        counters = {"budget": report.budget_ms, "aim": report.aim_ms, "used": took}
        for name, values in (("ms per frame", counters), ("memory (MiB)", mib)):
            if values:
                events.append(
                    {"ph": "C", "pid": _PID, "name": name, "ts": 1e3 * at, "args": values}
                )
        scale = took / report.predicted_ms if report.predicted_ms else 1.0
        for part in report.slices:
            about = {"job": part.job, "step": part.step,
                     "workgroups": f"[{part.first}, {part.first + part.count})",
                     "predicted_ms": part.predicted_ms, "operator": part.title}  # fmt: skip
            if source := places.get(part.title):
                about["place"] = source
            length = part.predicted_ms * scale
            events.append(_span(part.op, numbers[tracks[part.job]], at, length, about))
            at += length
    return events


def write_trace(
    path: str | Path,
    reports: Sequence[FrameReport],
    names: Mapping[int, str] | None = None,
    memory: Mapping[str, float] | None = None,
    about: JsonObject | None = None,
    places: Mapping[str, str] | None = None,
    activities: Mapping[int, Mapping[str, float]] | None = None,
) -> None:
    """Writes the trace of the reported frames to a JSON file; ``about`` is stored in it for people.

    ``activities`` are the milliseconds of the host's frames by activity, by frame number. Each
    frame's are drawn one after the other, whatever their order was.

    Examples
    --------
    >>> reports = [scheduler.encode(encoder)]
    >>> cml.scheduler.write_trace("frames.json", reports)
    """
    reports = check_instances(FrameReport, reports, "reports")
    for what, values in {"memory": memory, "about": about, "places": places}.items():
        if values is not None:
            check_mapping("values by name", values, what)
    for owner, nbytes in (memory or {}).items():
        check_number(f"the memory of '{owner}'", nbytes)
    data = {
        "traceEvents": trace_events(reports, names, memory, places, activities),
        "displayTimeUnit": "ms",
        "otherData": dict(about or {}),
    }
    try:
        write_atomically(path, json.dumps(data))
    except TypeError as error:
        raise InputError(f"about: wanted values that JSON can hold: {error}") from None
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def _meta(name: str, thread: int, value: str) -> JsonObject:
    return {"ph": "M", "pid": _PID, "tid": thread, "name": name, "args": {"name": value}}


def _span(name: str, thread: int, at_ms: float, ms: float, args: JsonObject) -> JsonObject:
    return {
        "ph": "X", "pid": _PID, "tid": thread, "name": name,
        "ts": 1e3 * at_ms, "dur": 1e3 * ms, "args": args,
    }  # fmt: skip
