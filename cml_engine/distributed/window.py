"""Tasks go out a few at a time, and come back in any order.

As many are under way as keep the workers busy, and no more: neither the client nor the scheduler
holds anything of the others, however many units there are. Those of a task whose worker died are
looked at again by another, which makes what was not written; a unit that keeps failing is set aside
and named.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any

from cml_engine.distributed.batch import Batch, Pace
from cml_engine.distributed.report import Report, WorkerShare
from cml_engine.distributed.trace import Trace
from cml_engine.distributed.watch import LOOK_S, Watch
from cml_engine.distributed.work import Layer, Unit
from cml_engine.errors import DeviceError, InputError

#: times that a unit is tried
ATTEMPTS = 3
#: seconds between two calls of ``progress``
_SHOW_S = 0.2
#: of the window, that must be free before it is filled again
_REFILL = 1 / 3
Progress = Callable[[Report], object]
_Key = tuple[Any, ...]
#: a unit, and the attempts that there were
_Try = tuple[Unit, int]


@dataclass
class _Sent:
    """A task under way, of units of one layer."""

    tries: list[_Try]
    future: Any


class Window:
    """The tasks under way of a run that every worker knows by its ``name``."""

    def __init__(
        self,
        client: Any,
        name: str,
        layers: Sequence[Layer],
        watch: Watch,
        progress: Progress,
        trace: Trace | None = None,
    ) -> None:
        self.client, self.name, self.watch = client, name, watch
        self.report = watch.report
        self._layers = {layer.name: layer for layer in layers}
        self._progress, self._trace = progress, trace
        self._sent: dict[_Key, _Sent] = {}
        self._done: queue.SimpleQueue[_Key] = queue.SimpleQueue()
        self._again: list[_Try] = []
        self._pace = Pace()
        #: units that are not under way, but for suspects
        self._left = 0
        #: units that were under way where workers died: each is made alone, at the end
        self._suspects: list[Unit] = []
        self._number = 0
        self._span: tuple[str, contextlib.ExitStack] | None = None

    def run(self, units: Iterator[Unit], count: int) -> None:
        """Until all so many are made, kept or set aside."""
        self._left = count
        start, shown = time.monotonic(), 0.0
        try:
            while self._fill(units):
                self.watch.look()
                self._take(self._finished())
                self.report.seconds = time.monotonic() - start
                if time.monotonic() - shown > _SHOW_S:
                    shown = time.monotonic()
                    self._progress(self.report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self.watch.so_far()) from None
        finally:
            self.watch.count_time()
            self.report.seconds = time.monotonic() - start
            self._progress(self.report)

    def close(self) -> None:
        """Nothing more of it runs."""
        if self._span is not None:
            self._span[1].close()
        if self._sent:
            self.client.cancel([sent.future for sent in self._sent.values()])

    def _fill(self, units: Iterator[Unit]) -> bool:
        """Send what there is room for, several at once; whether anything is under way."""
        room = self.watch.window - len(self._sent)
        if room >= self.watch.window * _REFILL or not self._sent:
            self._send(self._tasks(units, room))
        if not self._sent and self._suspects:
            self._send([[(self._suspects.pop(), ATTEMPTS - 1)]])
        return bool(self._sent)

    def _tasks(self, units: Iterator[Unit], room: int) -> list[list[_Try]]:
        """What is to be made, a task's worth at a time; a task more where a layer ends."""
        tries, tasks = self._next(units), list[list[_Try]]()
        while len(tasks) < room:
            found = list(islice(tries, self._pace.units(self._left, self.watch.window)))
            if not found:
                break
            self._left -= len(found)
            tasks += (list(part) for _, part in groupby(found, key=_layer_of))
        return tasks

    def _next(self, units: Iterator[Unit]) -> Iterator[_Try]:
        while self._again:
            yield self._again.pop()
        for unit in units:
            yield unit, 0

    def _send(self, tasks: Sequence[list[_Try]]) -> None:
        """One message to the scheduler for all of a layer: most of what a task costs is that."""
        from cml_engine.distributed.worker import run_batch

        for layer, part in groupby(tasks, key=lambda tries: _layer_of(tries[0])):
            sent = list(part)
            label = f"{self.report.what} {layer}".strip()
            keys = [self._key(label, tries[0][0]) for tries in sent]
            self._enter_span(label)
            batches = [self._batch(layer, tries) for tries in sent]
            futures = self.client.map(run_batch, batches, key=keys, pure=False)
            for key, tries, future in zip(keys, sent, futures, strict=True):
                self._sent[key] = _Sent(tries, future)
                future.add_done_callback(partial(_tell, self._done, key))

    def _batch(self, layer: str, tries: list[_Try]) -> Batch:
        traced = self._trace is not None and self._trace.take(len(tries))
        return Batch(self.name, layer, tuple(unit.at for unit, _ in tries), traced)

    def _key(self, label: str, unit: Unit) -> _Key:
        self._number += 1
        return (label, *unit.at, self._number, self.name)

    def _enter_span(self, label: str) -> None:
        """One span for each layer: they are kept by the scheduler, so there must be few."""
        from distributed import span

        if self._span is not None and self._span[0] == label:
            return
        if self._span is not None:
            self._span[1].close()
        entered = contextlib.ExitStack()
        entered.enter_context(span(f"cml {self.report.store}", label))
        self._span = label, entered

    def _finished(self) -> list[_Sent]:
        """What has come back; after a while nothing, so that the cluster is looked at."""
        found: list[_Sent] = []
        try:
            key = self._done.get(timeout=LOOK_S)
            while True:
                sent = self._sent.pop(key, None)
                if sent is not None:
                    found.append(sent)
                key = self._done.get_nowait()
        except queue.Empty:
            return found

    def _take(self, finished: list[_Sent]) -> None:
        for sent, done in self._results(finished):
            if done.refused:
                self._unfit(done.worker, sent, done.refused)
                continue
            begun = len(done.outcomes)
            self._pace.saw(begun, done.elapsed)
            self.report.workers.setdefault(done.worker, WorkerShare()).add(done.seconds)
            self._put_back(sent.tries[begun:])
            for tried, outcome in zip(sent.tries, done.outcomes, strict=False):
                self._count(done.worker, tried, outcome)
        for sent in finished:
            if sent.future.status == "error":
                self._lost(sent, sent.future.exception())
            elif sent.future.status != "finished":  # the scheduler was lost, or has forgotten it
                self._put_back(sent.tries)
            sent.future.release()

    def _put_back(self, tries: list[_Try]) -> None:
        """They are sent again, before all others."""
        self._again += reversed(tries)
        self._left += len(tries)

    def _results(self, finished: list[_Sent]) -> list[tuple[_Sent, Any]]:
        """What the tasks have returned: of all at once, which is quicker, or of each, where the
        only worker that knew it has just died."""
        good = [sent for sent in finished if sent.future.status == "finished"]
        try:
            outcomes = self.client.gather([sent.future for sent in good]) if good else []
            return list(zip(good, outcomes, strict=True))
        except Exception:
            found = []
            for sent in good:
                with contextlib.suppress(Exception):  # its status says what became of it
                    found.append((sent, sent.future.result()))
            return found

    def _count(self, worker: str, tried: _Try, outcome: Any) -> None:
        report, size = self.report, self._size(outcome.unit)
        if outcome.kind == "stop":
            raise InputError(f"'{report.store}': {outcome.message}. {self.watch.so_far()}")
        report.damaged += size * outcome.damaged
        if self._trace is not None:
            self._trace.add(worker, outcome.moments)
        if outcome.kind == "kept":
            report.kept += size
        elif outcome.kind == "made":
            report.made += size - len(outcome.aside)
            report.nbytes += outcome.nbytes
            report.workers[worker].made += size
            for name, reason in outcome.aside.items():
                report.set_aside(name, reason)
        elif outcome.kind == "aside":
            self._set_aside(outcome.unit, outcome.message)
        else:
            self._failed(tried, outcome.message)

    def _failed(self, tried: _Try, message: str) -> None:
        unit, attempts = tried
        if attempts + 1 < ATTEMPTS:
            self.report.retried += 1
            self._put_back([(unit, attempts + 1)])
        else:
            self._set_aside(unit, f"{message} ({ATTEMPTS} attempts)")

    def _lost(self, sent: _Sent, error: Any) -> None:
        """A task that never came back. Dask blames all that were on a worker that died, so each
        unit gets a chance alone."""
        from distributed import KilledWorker

        for unit, attempts in sent.tries:
            if not isinstance(error, KilledWorker):
                self._failed((unit, attempts), f"{type(error).__name__}: {error}")
            elif attempts + 1 < ATTEMPTS:
                self.report.retried += 1
                self._suspects.append(unit)
            else:
                self._set_aside(unit, "the process that makes it ends each time")

    def _unfit(self, worker: str, sent: _Sent, message: str) -> None:
        """A worker that joined and cannot take part goes again."""
        self.report.refused[worker] = message
        self._put_back(sent.tries)
        self.client.retire_workers([worker], close_workers=True)
        if not self.client.nthreads():
            raise DeviceError(f"worker {worker}: {message}. No other worker is left")

    def _set_aside(self, unit: Unit, message: str) -> None:
        self.report.set_aside(str(unit), message, self._size(unit))

    def _size(self, unit: Unit) -> int:
        return self._layers[unit.layer].size(unit)


def _layer_of(tried: _Try) -> str:
    return tried[0].layer


def _tell(done: queue.SimpleQueue[_Key], key: _Key, future: Any) -> None:
    done.put(key)
