"""Writes a scheduler recording as lines for ``replay.c``, and reads its decisions.

A line is the name of an event and numbers. Texts, which are only compared, are numbered from 1.
"""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from cml_engine.scheduler.planning.cost_model import FirstGuess
from cml_engine.scheduler.recording import Recording
from cml_engine.scheduler.tools.simulate import SimStep

_POLICIES = ("least_laxity", "fair_share", "by_priority")
_Numbers = Iterator[tuple[str | float, ...]]


def lines_of(recording: Recording) -> _Numbers:
    """Yields a recording's options, networks and events as the words of a line each."""
    options = recording.options
    model, feedback = options["cost_model"], options["feedback"]
    guess = FirstGuess.from_json(model["guess"])
    numbers: defaultdict[str, int] = defaultdict(count(1).__next__)
    jobs = sum(event["kind"] == "submit" for event in recording.events)
    yield (
        "begin", options["frame_ms"], options["granule"], options["max_groups"],
        _POLICIES.index(options["policy"]), options["clock_source"] == "wall clock",
        options["over_share"], options["frame"], jobs + 1,
    )  # fmt: skip
    yield (
        "known", guess.launch_ms, model["launch_ms"] or math.inf, model["drift"], model["error"],
        feedback["factor"], feedback["usual_ms"], feedback["ended_ms"] is not None,
        feedback["ended_ms"] or 0.0, feedback["without"], feedback["since_skip"],
        feedback["skip_due"], len(model["ratios"]), *model["ratios"],
    )  # fmt: skip
    for key, sizes in model["curves"].items():
        rows = [(count, samples, len(times), *times) for count, samples, times in sizes]
        yield "curve", numbers[key], len(rows), *chain.from_iterable(rows)
    for frame in options["tail"]:
        yield "excess", *frame
    groups: dict[object, int] = {}
    for index, network in enumerate(recording.networks):
        exclusive = groups.setdefault(network["group"] or index, len(groups))
        steps, times = network["steps"], network["load_ms"]
        yield "network", exclusive, len(steps), bool(times)
        for at, (key, op, title, workgroups, flops, nbytes) in enumerate(steps):
            step = SimStep(key, workgroups, 0.0, op, title, flops, nbytes)
            work = max(step.flops / guess.flops_per_ms, step.nbytes / guess.bytes_per_ms)
            yield workgroups, work, guess._factor(key), numbers[key], *times[at : at + 1]
    decisions = iter(recording.decisions)
    for event in recording.events:
        given = next(decisions) if event["kind"] == "frame" else []
        yield event["kind"], event.get("now", 0.0), *_event(event, options, given, numbers)


def _event(
    event: Mapping[str, Any],
    options: Mapping[str, Any],
    given: list[list[int]],
    numbers: Mapping[str, int],
) -> Iterator[float]:
    kind = event["kind"]
    if kind == "frame":
        yield from (event["budget"], event["aim"] if options["spare"] else -1.0)
        yield from (event["waiting"], event["given"], event["rests"])
        yield from (len(event["ready"]), *map(int, chain.from_iterable(event["ready"].items())))
        yield from (len(event["held"]), *event["held"])
        slices = given if event["given"] else []
        yield from (len(slices), *chain.from_iterable(slices))
    elif kind == "end":
        yield from (len(event["timings"]), *chain.from_iterable(event["timings"]))
    elif kind == "submit":
        deadline, slot = event["deadline"], event["slot"]
        yield from (event["job"], event["network"], event["priority"])
        yield from (
            math.nan if deadline is None else deadline,
            0 if slot is None else numbers[slot],
        )
        yield from (len(event["needs"]), *event["needs"])
    elif kind != "abandoned":
        yield event["job"]


def replayed(program: Path | Sequence[str], recording: Recording) -> list[list[list[int]]]:
    """Replays a recording in the C player, a program or a command; returns a list per frame of its
    slices, as integers."""
    lines = "".join(
        " ".join(word if isinstance(word, str) else float(word).hex() for word in words) + "\n"
        for words in lines_of(recording)
    )
    command = [program] if isinstance(program, Path) else program
    run = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return [
        [[int(n) for n in part.split(":")] for part in line.split()]
        for line in run.stdout.splitlines()
    ]
