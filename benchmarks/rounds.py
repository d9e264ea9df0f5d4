"""Runs the contenders in interleaved rounds, so that a slow minute affects all equally."""

from __future__ import annotations

import importlib.util
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from cml_engine.io.json_files import Json

#: seconds after which a worker that does not answer is given up
_PATIENCE = 300.0
#: seconds of pause: the last contender's thread pools may still be spinning
_PAUSE = 0.05
#: the approximate length of a turn in ms; it has at most _MOST_RUNS runs
_TURN_MS = 250.0
_MOST_RUNS = 8


class WorkerFailed(Exception):
    """Raised if a worker reports an error, stops answering or crashes; the message says which."""


@dataclass
class EngineResult:
    """The result of one contender: its ms by round, or the ``problem`` that prevented them.

    ``turns`` has a list for each round, ``times`` all of them; ``about`` is the worker's
    description.
    """

    contender: Contender
    about: dict[str, Any] = field(default_factory=dict)
    turns: list[list[float]] = field(default_factory=list)
    problem: str = ""

    @property
    def times(self) -> list[float]:
        return [ms for turn in self.turns for ms in turn]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def ratio_to(self, other: EngineResult) -> float:
        """Returns the time relative to ``other``: the median of the rounds' ratios of medians."""
        pairs = zip(self.turns, other.turns, strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


class Worker:
    """A child process that runs one contender; a context manager that ends the process."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.contenders", contender.key, str(folder)]
        self._log = (folder / f"{contender.key}.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def about(self) -> dict[str, Any]:
        """Waits until the contender is ready and returns its description.

        It has the device, the version and the time of the first run.

        Raises :class:`WorkerFailed` if it cannot be started.
        """
        about: dict[str, Json] = self._answer()
        if "error" in about:
            raise WorkerFailed(about["error"])
        return about

    def measure(self, count: int) -> list[float]:
        """Lets the worker run the network ``count`` times; returns the ms of each run."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer()
        return times

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        giving_up = threading.Timer(_PATIENCE, self._process.kill)
        giving_up.start()
        try:
            line = self._process.stdout.readline()
        finally:
            giving_up.cancel()
        if not line:
            raise WorkerFailed(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGTERM or code == -9:
            return f"no answer in {_PATIENCE:.0f} s"
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        return f"crashed with code {code}" + (f": {said[-1]}" if said else "")


def missing(contender: Contender) -> str:
    """Returns the reason why the contender cannot be started; "" if it can."""
    there = importlib.util.find_spec(contender.module) is not None
    return "" if there else f"not installed: pip install {contender.package}"


def run_rounds(contenders: Sequence[Contender], folder: Path, rounds: int) -> list[EngineResult]:
    """Measures every contender in ``rounds`` interleaved rounds and returns a result for each.

    The result of a contender that is not installed or fails states its ``problem``; the others
    go on.
    """
    results = [EngineResult(contender, problem=missing(contender)) for contender in contenders]
    workers = {r.contender.key: _start(r, folder) for r in results if not r.problem}
    try:
        for _ in range(rounds):
            for result in results:
                if not result.problem:
                    _take_turn(result, workers[result.contender.key])
    finally:
        for worker in workers.values():
            worker.__exit__()
    return results


def _start(result: EngineResult, folder: Path) -> Worker:
    """Starts a contender's worker, waits until it is ready and returns it.

    The worker's description is stored in ``result.about``, or the reason why it failed in
    ``result.problem``. Loading before the first round disturbs no measurement.
    """
    worker = Worker(result.contender, folder)
    try:
        result.about = worker.about()
    except WorkerFailed as error:
        result.problem = f"cannot run it: {error}"
    return worker


def _take_turn(result: EngineResult, worker: Worker) -> None:
    last = result.turns[-1][-1] if result.turns else _TURN_MS
    count = max(1, min(_MOST_RUNS, round(_TURN_MS / last)))
    time.sleep(_PAUSE)
    try:
        result.turns.append(worker.measure(count))
    except WorkerFailed as error:
        result.problem = str(error)
