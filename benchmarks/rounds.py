"""Runs the contenders in interleaved rounds, so that a slow minute affects all equally."""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, serve

#: seconds after which a worker that does not answer is given up
_PATIENCE = 300.0
#: seconds of pause: the last contender's thread pools may still be spinning
_PAUSE = 0.05
#: the approximate length of a turn in ms; it has at most _MOST_RUNS runs
_TURN_MS = 250.0
_MOST_RUNS = 8


class WorkerFailed(Exception):
    """Raised if a worker stops answering or crashes; the message says which."""


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
        return [ms for round_ms in self.turns for ms in round_ms]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def ratio_to(self, reference: EngineResult) -> float:
        """Returns the median over rounds of the ratios of medians to those of ``reference``."""
        pairs = zip(self.turns, reference.turns, strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


class Worker:
    """A child process that runs one contender."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        arguments = theirs, contender.key, folder
        self._process = spawning.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def answer(self) -> Any:
        """Returns the next answer; raises :class:`WorkerFailed` if there is none."""
        try:
            if self._pipe.poll(_PATIENCE):
                return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise WorkerFailed(f"crashed with code {self._process.exitcode}") from None
        raise WorkerFailed(f"no answer in {_PATIENCE:.0f} s")

    def measure(self, count: int) -> list[float]:
        """Lets the worker run the network ``count`` times; returns the ms of each run."""
        self._pipe.send(count)
        times: list[float] = self.answer()
        return times

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def missing(contender: Contender) -> str:
    """Returns the reason why the contender cannot be started; "" if it can."""
    installed = importlib.util.find_spec(contender.module) is not None
    return "" if installed else f"not installed: pip install {contender.package}"


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
            worker.end()
    return results


def _start(result: EngineResult, folder: Path) -> Worker:
    """Starts a contender's worker, waits until it is ready and returns it.

    The worker's description is stored in ``result.about``, or the reason why it failed in
    ``result.problem``. Loading before the first round disturbs no measurement.
    """
    worker = Worker(result.contender, folder)
    try:
        answer = worker.answer()
    except WorkerFailed as error:
        answer = str(error)
    if isinstance(answer, dict):
        result.about = answer
    else:
        result.problem = f"cannot run it: {answer}"
    return worker


def _take_turn(result: EngineResult, worker: Worker) -> None:
    last = result.turns[-1][-1] if result.turns else _TURN_MS
    count = max(1, min(_MOST_RUNS, round(_TURN_MS / last)))
    time.sleep(_PAUSE)
    try:
        result.turns.append(worker.measure(count))
    except WorkerFailed as error:
        result.problem = str(error)
