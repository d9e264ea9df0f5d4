"""Writes a scheduler recording as lines for ``players/c/replay.c``, and reads its decisions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scheduler.planning.cost_model import FirstGuess
from scheduler.recording import Recording
from scheduler.tools.simulate import SimStep

_POLICIES = ("least_laxity", "fair_share", "by_priority")


def lines_of(recording: Recording) -> Iterator[str]:
    """Yields a recording's options, networks and events as lines for the C program; numbers are
    exact."""
    options = recording.options
    guess = FirstGuess.from_json(options["cost_model"]["guess"])
    jobs = sum(event["kind"] == "submit" for event in recording.events)
    yield _words(
        "begin", options["frame_ms"], options["granule"], options["max_groups"],
        _POLICIES.index(options["policy"]), int(options["clock_source"] == "wall clock"),
        options["over_share"], options["frame"], jobs + 1,
    )  # fmt: skip
    model, feedback = options["cost_model"], options["feedback"]
    back_off, usual, ended = (feedback[name] for name in ("factor", "usual_ms", "ended_ms"))
    yield _words(
        "known", guess.launch_ms, model["unknown"], model["unknown_samples"], model["drift"],
        model["error"], back_off, usual, int(ended is not None), ended or 0.0,
        feedback["interval_ms"], feedback["intervals"], feedback["without"], feedback["since_skip"],
        int(feedback["skip_due"]),
    )  # fmt: skip
    for key, points in model["curves"].items():
        yield f"curve {len(points)} {key}"
        yield from (_words(*point) for point in points)
    for predicted, measured, hopeless in options["tail"]:
        yield _words("tail", predicted, measured, int(hopeless))
    yield from _networks(recording, guess)
    decisions = iter(recording.decisions)
    for event in recording.events:
        given = next(decisions) if event["kind"] == "frame" else []
        yield _event(event, options["spare"], given)


def _networks(recording: Recording, guess: FirstGuess) -> Iterator[str]:
    groups: dict[object, int] = {}
    for index, network in enumerate(recording.networks):
        exclusive = groups.setdefault(network["group"] or index, len(groups))
        steps, times = network["steps"], network["load_ms"]
        yield _words("network", exclusive, len(steps), int(bool(times)))
        for at, (key, op, title, count, flops, nbytes) in enumerate(steps):
            step = SimStep(key, count, 0.0, op, title, flops, nbytes)
            work = max(step.flops / guess.flops_per_ms, step.nbytes / guess.bytes_per_ms)
            ms = times[at] if times else 0.0
            yield f"{_words(count, work, guess._factor(key), ms)} {key}"


def _event(event: Mapping[str, Any], spare: bool, given: list[list[int]]) -> str:
    kind = event["kind"]
    if kind == "frame":
        ready = [(int(net), int(is_ready)) for net, is_ready in event["ready"].items()]
        held, slices = event["held"], given if event["given"] else []
        return _words(
            kind, event["now"], event["budget"], event["aim"] if spare else -1.0,
            int(event["waiting"]), int(event["given"]), int(event["rests"]),
            len(ready), *(n for pair in ready for n in pair), len(held), *held,
            len(slices), *(n for part in slices for n in part),
        )  # fmt: skip
    if kind == "end":
        timings = event["timings"]
        return _words(kind, event["now"], len(timings), *(n for timing in timings for n in timing))
    if kind == "submit":
        deadline = "-" if event["deadline"] is None else event["deadline"].hex()
        slot = "-" if event["slot"] is None else event["slot"].replace(" ", "_")
        return _words(
            kind, event["now"], event["job"], event["network"], event["priority"], deadline, slot,
            len(event["needs"]), *event["needs"],
        )  # fmt: skip
    return kind if kind == "abandoned" else _words(kind, event["now"], event["job"])


def _words(*values: str | float) -> str:
    return " ".join(v.hex() if isinstance(v, float) else str(v) for v in values)


def replayed(program: Path, recording: Recording) -> list[list[list[int]]]:
    """Replays a recording in the C player; returns a list per frame of its slices, as integers."""
    lines = "\n".join(lines_of(recording)) + "\n"
    run = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return [
        [[int(n) for n in part.split(":")] for part in line.split()]
        for line in run.stdout.splitlines()
    ]
