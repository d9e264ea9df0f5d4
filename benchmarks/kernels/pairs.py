"""Compares networks and their kernels with those of another checkout, in turns.

``python -m benchmarks.kernels.pairs FOLDER`` runs each network with the packages of the checkout
in FOLDER and with these, in two processes. A ratio is the median over the turns of new time over
old time, with its quartiles; an operator's ratio is the time of all its dispatches, each timed
by itself. Also states whether the results have the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

import cml_engine as cml

#: the share of the time from which on an operator is listed
_LEAST_SHARE = 0.02


class Answer(TypedDict):
    """A turn of one network: ms of a whole run, ms of its operators by name, and the digest of
    its results."""

    run: float
    operators: dict[str, float]
    digest: str


def work() -> None:
    """Runs a turn for each line of stdin, the folder of a network; prints an :class:`Answer`."""
    gpu, sessions = cml.Gpu(), dict[str, cml.Session]()
    print(gpu.name, flush=True)
    for line in sys.stdin:
        folder = Path(json.loads(line))
        with np.load(folder / "inputs.npz") as stored:
            inputs = {name: stored[name] for name in stored.files}
        session = sessions.get(folder.name)
        if session is None:
            session = sessions[folder.name] = cml.Session(cml.load(folder / "network.nnef"), gpu)
            session.run(inputs)
        start = time.perf_counter()
        outputs = session.run(inputs)
        run_ms = 1e3 * (time.perf_counter() - start)
        digest = hashlib.sha256(b"".join(outputs[name].tobytes() for name in sorted(outputs)))
        times = {row.name: row.ms for row in session.rank(inputs, runs=3).rows}
        answer = Answer(run=run_ms, operators=times, digest=digest.hexdigest())
        print(json.dumps(answer), flush=True)


def table(turns: list[tuple[Answer, Answer]]) -> list[str]:
    """Returns a line for the whole run, and for each operator that takes enough of the time."""
    old, new = turns[-1]
    lines = [_line("whole run", [(one["run"], two["run"]) for one, two in turns])]
    times: Mapping[str, float] = old["operators"]
    for name in sorted(times.keys() & new["operators"].keys(), key=lambda name: -times[name]):
        if times[name] >= _LEAST_SHARE * sum(times.values()):
            ms = [(one["operators"][name], two["operators"][name]) for one, two in turns]
            lines.append(_line(name, ms))
    changed = sorted(times.keys() ^ new["operators"].keys())
    if changed:
        lines.append(f"  in one checkout only: {', '.join(changed)}")
    return [*lines, f"  results: {'same' if old['digest'] == new['digest'] else 'other'} bits"]


def _line(name: str, turns: list[tuple[float, float]]) -> str:
    """Returns a line of the old and the new ms of all turns, and of their ratio."""
    old, new = np.array(turns).T
    low, ratio, high = np.percentile(new / old, (25, 50, 75))
    return (
        f"  {name:28s} {np.median(old):9.3f} {np.median(new):9.3f} ms   "
        f"{ratio:.3f} ({low:.3f} to {high:.3f})"
    )


def main() -> None:
    if sys.argv[1:] == ["--work"]:
        work()
        return
    # the other checkout may not have these
    from benchmarks import command
    from benchmarks.checkouts import HERE, Worker
    from benchmarks.contenders import Workload
    from benchmarks.models import MODELS

    parser = argparse.ArgumentParser("python -m benchmarks.kernels.pairs", description=__doc__)
    parser.add_argument("folder", type=Path, help="the other checkout")
    command.add_choices(parser, "all")
    options = parser.parse_args()
    if not (options.folder / "cml_engine").is_dir():
        parser.error("FOLDER must be another checkout of this project")
    command.fetch_assets()
    command.warn_if_busy()
    workers = [Worker(folder, Path(__file__), "--work") for folder in (options.folder, HERE)]
    print(f"{workers[0].device}: old and new ms, and the ratio of {options.rounds} turns")
    for model in command.chosen_models(options):
        with tempfile.TemporaryDirectory(prefix="cml-bench-") as folder:
            workload = Workload(Path(folder))
            MODELS[model](workload)
            turns = []
            for number in range(options.rounds):
                order = (0, 1) if number % 2 else (1, 0)  # the first may find the machine slower
                answers = {i: workers[i].ask(folder) for i in order}
                turns.append((answers[0], answers[1]))
        print("\n".join((model, *table(turns))), flush=True)


if __name__ == "__main__":
    main()
