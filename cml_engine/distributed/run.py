"""Runs a bake: sends the work to every worker, prepares the store and computes missing units."""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby, islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cml_engine.distributed.cluster import (
    LOOK_S,
    PATIENCE_S,
    ClusterMonitor,
    check_devices,
    check_versions,
    connect,
    need_extra,
)
from cml_engine.distributed.report import Progress, Report, Trace, WorkerShare
from cml_engine.distributed.store import Store, manifest_of, prepare, refuse
from cml_engine.distributed.work import Batch, Layer, Unit, Work
from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import PRICE

if TYPE_CHECKING:
    from distributed import Client, Future

    from cml_engine.distributed.worker import BatchResult, Outcome, WorkerSetup

#: the target duration of a task in seconds, and its minimum while enough units are left
TASK_S, SHORTEST_S = 0.5, 0.05
#: the most units in a task
_MOST_UNITS = 256
#: the weight of the latest task in the moving average of a unit's time
_LATEST = 0.3


class Pace:
    """Chooses the number of units in a task from the measured time of a unit."""

    def __init__(self) -> None:
        self._unit_s = 0.0

    def record(self, units: int, seconds: float) -> None:
        """Updates the mean time of a unit with a task of ``units`` units that took ``seconds``."""
        latest = seconds / units
        mean = self._unit_s or latest
        self._unit_s = mean + _LATEST * (latest - mean)

    def units(self, remaining: int, tasks: int) -> int:
        """Returns the number of units to put in the next task, at least 1.

        ``remaining`` is the number of units that remain, ``tasks`` the number of tasks that run at
        once. Tasks become smaller towards the end so that all workers finish together. Before the
        first :meth:`record`, a task has one unit.
        """
        if not self._unit_s:
            return 1
        fair_share = max(remaining // tasks, int(SHORTEST_S / self._unit_s))
        return max(1, min(_MOST_UNITS, int(TASK_S / self._unit_s), fair_share))


# -- task window ----------------------------------------------------------------------------------
# Sends tasks in a sliding window and collects their results in any order.
#
# The window is just large enough to keep the workers busy, so the memory of the client and the
# scheduler does not grow with the number of units. A task whose worker died is retried on another
# worker, which computes only units that were not written. A unit that keeps failing is set aside
# and named in the report.

#: attempts per unit
ATTEMPTS = 3
#: seconds between two calls of ``progress``
_SHOW_S = 0.2
#: the share of the window that must be free before tasks are sent
_REFILL = 1 / 3
_Key = tuple[object, ...]
#: a unit and the number of failed attempts
_Try = tuple[Unit, int]


@dataclass
class _RunningTask:
    """A task that was sent: its units with their numbers of failed attempts, and its future."""

    tries: list[_Try]
    future: Future


class TaskWindow:
    """Sends the units of a run to the workers and counts the results in the monitor's report.

    ``name`` is the run's name on the workers.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        layers: Sequence[Layer],
        monitor: ClusterMonitor,
        progress: Progress,
        trace: Trace | None = None,
    ) -> None:
        self.client, self.name, self.monitor = client, name, monitor
        self.report = monitor.report
        self._layers = {layer.name: layer for layer in layers}
        self._progress, self._trace = progress, trace
        self._running: dict[_Key, _RunningTask] = {}
        self._finished_keys: queue.SimpleQueue[_Key] = queue.SimpleQueue()
        self._retries: list[_Try] = []
        self._pace = Pace()
        #: the number of units that are neither sent nor suspects
        self._unsent = 0
        #: units that were running on workers that died; each is retried alone, at the end
        self._suspects: list[Unit] = []
        self._numbers = count(1)
        self._span: tuple[str, contextlib.ExitStack] | None = None

    def run(self, units: Iterator[Unit], total: int) -> None:
        """Sends all ``units`` and waits until each has been computed, kept or set aside.

        ``total`` is the number of units. A unit is set aside if it can never be computed, or after
        ``ATTEMPTS`` failures.
        """
        self._unsent = total
        start, last_shown = time.monotonic(), 0.0
        try:
            while self._fill(units):
                self.monitor.check()
                self._take_results(self._wait_finished())
                self.report.seconds = time.monotonic() - start
                if time.monotonic() - last_shown > _SHOW_S:
                    last_shown = time.monotonic()
                    self._progress(self.report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self.monitor.describe_progress()) from None
        finally:
            self.monitor.count_time()
            with contextlib.suppress(Exception):  # the cluster may be gone
                self.monitor.count_workers()
            self.report.seconds = time.monotonic() - start
            self._progress(self.report)

    def close(self) -> None:
        """Cancels the tasks that are still running."""
        if self._span is not None:
            self._span[1].close()
        if self._running:
            self.client.cancel([task.future for task in self._running.values()])

    def _fill(self, units: Iterator[Unit]) -> bool:
        """Sends new tasks if the window has enough room; returns True if any task is running.

        Units whose worker died are sent again one at a time, once no other task is left.
        """
        free_slots = self.monitor.window - len(self._running)
        if free_slots >= self.monitor.window * _REFILL or not self._running:
            self._send(self._make_tasks(units, free_slots))
        if not self._running and self._suspects:
            self._send([[(self._suspects.pop(), ATTEMPTS - 1)]])
        return bool(self._running)

    def _make_tasks(self, units: Iterator[Unit], free_slots: int) -> list[list[_Try]]:
        """Takes the next units and returns them as about ``free_slots`` lists, one list per task.

        All units of a task are of one layer, so there is one more task where a layer ends.
        """
        tries, tasks = self._next_tries(units), list[list[_Try]]()
        while len(tasks) < free_slots:
            units_taken = list(islice(tries, self._pace.units(self._unsent, self.monitor.window)))
            if not units_taken:
                break
            self._unsent -= len(units_taken)
            tasks += (list(part) for _, part in groupby(units_taken, key=_layer_of))
        return tasks

    def _next_tries(self, units: Iterator[Unit]) -> Iterator[_Try]:
        while self._retries:
            yield self._retries.pop()
        for unit in units:
            yield unit, 0

    def _send(self, tasks: Sequence[list[_Try]]) -> None:
        """Sends tasks to the cluster in one message per layer.

        The message is most of a task's cost.
        """
        from cml_engine.distributed.worker import run_batch

        for layer, group in groupby(tasks, key=lambda tries: _layer_of(tries[0])):
            tasks_of_layer = list(group)
            label = f"{self.report.what} {layer}".strip()
            keys: list[_Key] = [
                (label, *tries[0][0].at, next(self._numbers), self.name) for tries in tasks_of_layer
            ]
            self._enter_span(label)
            batches = [
                Batch(
                    self.name,
                    layer,
                    tuple(unit.at for unit, _ in tries),
                    self._trace is not None and self._trace.take(len(tries)),
                )
                for tries in tasks_of_layer
            ]
            futures = self.client.map(run_batch, batches, key=keys, pure=False)
            for key, tries, future in zip(keys, tasks_of_layer, futures, strict=True):
                self._running[key] = _RunningTask(tries, future)
                future.add_done_callback(lambda _, key=key: self._finished_keys.put(key))

    def _enter_span(self, label: str) -> None:
        """Enters the Dask span named ``label``, if it is not the current one.

        The scheduler retains every span, so there is only one per layer.
        """
        from distributed import span

        if self._span is not None and self._span[0] == label:
            return
        if self._span is not None:
            self._span[1].close()
        context = contextlib.ExitStack()
        context.enter_context(span(f"cml {self.report.store}", label))
        self._span = label, context

    def _wait_finished(self) -> list[_RunningTask]:
        """Waits for finished tasks, removes them from the running ones, and returns them.

        The list is empty after ``LOOK_S`` seconds without any.
        """
        finished: list[_RunningTask] = []
        try:
            key = self._finished_keys.get(timeout=LOOK_S)
            while True:
                task = self._running.pop(key, None)
                if task is not None:
                    finished.append(task)
                key = self._finished_keys.get_nowait()
        except queue.Empty:
            return finished

    def _take_results(self, finished: list[_RunningTask]) -> None:
        for task, result in self._gather_results(finished):
            if result.refusal:
                self._retire_worker(result.worker, task, result.refusal)
                continue
            n_begun = len(result.outcomes)
            self._pace.record(n_begun, result.elapsed)
            self.report.workers.setdefault(result.worker, WorkerShare()).add(result.seconds)
            self._put_back(task.tries[n_begun:])
            for attempt, outcome in zip(task.tries, result.outcomes, strict=False):
                self._count(result.worker, attempt, outcome)
        for task in finished:
            if task.future.status == "error":
                self._handle_lost(task, task.future.exception())
            elif task.future.status != "finished":  # the scheduler restarted or dropped the task
                self._put_back(task.tries)
            task.future.release()

    def _put_back(self, tries: list[_Try]) -> None:
        """Puts units back at the front of the queue in the same order, to be sent again."""
        self._retries += reversed(tries)
        self._unsent += len(tries)

    def _gather_results(
        self, finished: list[_RunningTask]
    ) -> list[tuple[_RunningTask, BatchResult]]:
        """Returns the finished tasks that have a result, each with its result.

        All results are gathered in one call, which is faster. If that fails because a worker
        died, each result is fetched separately and lost ones are left out.
        """
        successful = [task for task in finished if task.future.status == "finished"]
        try:
            outcomes = (
                self.client.gather([task.future for task in successful]) if successful else []
            )
            return list(zip(successful, outcomes, strict=True))
        except Exception:
            results = []
            for task in successful:
                with contextlib.suppress(Exception):  # ``_take`` handles the future's status
                    results.append((task, task.future.result()))
            return results

    def _count(self, worker: str, attempt: _Try, outcome: Outcome) -> None:
        report, size = self.report, self._size(outcome.unit)
        if outcome.kind == "stop":
            raise InputError(
                f"'{report.store}': {outcome.message}. {self.monitor.describe_progress()}"
            )
        report.damaged += size * outcome.damaged
        if self._trace is not None:
            self._trace.add(worker, outcome.events)
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
            self._handle_failed(attempt, outcome.message)

    def _handle_failed(self, attempt: _Try, message: str) -> None:
        unit, n_failed = attempt
        if n_failed + 1 < ATTEMPTS:
            self.report.retried += 1
            self._put_back([(unit, n_failed + 1)])
        else:
            self._set_aside(unit, f"{message} ({ATTEMPTS} attempts)")

    def _handle_lost(self, task: _RunningTask, error: object) -> None:
        """Handles the units of a task that ended with ``error``: retries them or sets them aside.

        If the task's worker died, each of its units is retried alone, because Dask suspects
        every task on that worker.
        """
        from distributed import KilledWorker

        for unit, attempts in task.tries:
            if not isinstance(error, KilledWorker):
                self._handle_failed((unit, attempts), f"{type(error).__name__}: {error}")
            elif attempts + 1 < ATTEMPTS:
                self.report.retried += 1
                self.report.lose_worker(error.last_worker.address)
                self._suspects.append(unit)
            else:
                self.report.lose_worker(error.last_worker.address)
                self._set_aside(unit, "the process that makes it ends each time")

    def _retire_worker(self, worker: str, task: _RunningTask, message: str) -> None:
        """Retires a worker that cannot take part, and puts the units of its task back in the queue.

        Raises :class:`DeviceError` if no other worker is left.
        """
        self.report.refused[worker] = message
        self._put_back(task.tries)
        self.client.retire_workers([worker], close_workers=True)
        if not self.client.nthreads():
            raise DeviceError(f"worker {worker}: {message}. No other worker is left")

    def _set_aside(self, unit: Unit, message: str) -> None:
        self.report.set_aside(str(unit), message, self._size(unit))

    def _size(self, unit: Unit) -> int:
        return self._layers[unit.layer].size(unit)


def _layer_of(attempt: _Try) -> str:
    return attempt[0].layer


# -- run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StorePlan:
    """The layers of a new store, and its manifest: everything that its values depend on.

    A bake refuses a store that has a different ``manifest``.

    Examples
    --------
    >>> cells = {"height": Cell((64, 64), "float32", ("row", "column"))}
    >>> layer = Layer("L0", (4, 4), (2, 2), ("z", "x"), cells)
    >>> plan = StorePlan([layer], {"seed": 7})
    """

    layers: Sequence[Layer]
    manifest: Mapping[str, object]


def bake(
    work: Work,
    store: str,
    plan: StorePlan | Callable[[Any], StorePlan],
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    workers: int | Callable[[], int] | None = None,
    verify: bool = True,
    what: str = "tiles",
    title: str = "",
    price: float | None = None,
    progress: Progress | None = None,
    dashboard: bool = False,
    trace: str | Path | None = None,
) -> Report:
    """Computes all units of a plan that the store lacks, writes them, and returns the report.

    No cluster is started on this machine for a store that soon turns out to be complete.

    Parameters
    ----------
    work : the work that is sent to every worker.
    store : a folder that all workers can reach, or a URL that Zarr supports.
    plan : the contents of the store, or a function that returns them from the measurements of one
        worker (:meth:`UnitProducer.measure`).
    client : a ``distributed.Client``. Without ``client`` and ``scheduler``, a cluster is started
        on this machine.
    scheduler : the address of a Dask scheduler.
    workers : the number of processes of the cluster on this machine, or a function that returns it.
    verify : if True, stored units are read and computed again if their checksum differs;
        otherwise a unit with a record counts as complete.
    progress : called with the current report, at most a few times per second.
    trace : a file to write a Perfetto trace of the first thousand units to.

    Raises
    ------
    InputError
        if the store holds something else, versions differ, the cluster is gone or the disk is
        full. Finished units stay in the store, and the same call continues from there.

    Examples
    --------
    >>> report = bake(FlatLand(), "planet.zarr", StorePlan([layer], {"seed": 7}))  # doctest: +SKIP
    """
    if price is not None:
        PRICE.check(price, "price")
    need_extra()
    traced = None if trace is None else Trace(trace)
    if "://" not in store:
        store = str(Path(store).absolute())  # workers may have another working folder
    # before a cluster is started
    is_there = refuse(store, plan.manifest if isinstance(plan, StorePlan) else {})
    report = Report(store, what, price=price)
    is_own = client is None and scheduler is None
    if is_own and is_there and isinstance(plan, StorePlan) and _is_complete(report, plan, verify):
        # the workers would be like this process
        refuse(store, {**plan.manifest, "device": work.open().device})
        if traced is not None:
            traced.write()
        return report
    count = workers() if callable(workers) else workers
    with connect(client, scheduler, count, dashboard) as (connected, embedded):
        run = _Run(connected, embedded, work, report)
        if dashboard or not embedded:
            report.dashboard = connected.dashboard_link or ""
        show = progress or (lambda report: None)
        try:
            return run.bake(plan, verify, title, show, traced)
        finally:
            if traced is not None:
                traced.write()


#: the longest time (s) that a store is checked before workers check it
_CHECK_S = 2.0


def _is_complete(report: Report, plan: StorePlan, verify: bool) -> bool:
    """Returns True if all units of a store are soon seen to be there, and counts them as kept.

    With ``verify`` they are read and compared with their checksums.
    """
    start = time.monotonic()
    store = Store(report.store, plan.layers, writable=False)
    recorded, total = store.recorded(), sum(layer.count for layer in plan.layers)
    if len(recorded) < total:
        return False
    for unit in recorded if verify else ():
        if store.state(unit) != "whole" or time.monotonic() > start + _CHECK_S:
            return False
    report.total = report.kept = sum(prod(layer.cells) for layer in plan.layers)
    report.device = str(manifest_of(report.store).get("device", ""))
    report.seconds = time.monotonic() - start
    return True


class _Run:
    def __init__(self, client: Client, embedded: bool, work: Work, report: Report) -> None:
        self.client, self.embedded, self.work, self.report = client, embedded, work, report
        #: the run's name on the workers
        self.name = f"cml-{uuid.uuid4().hex[:12]}"

    def bake(
        self,
        plan: StorePlan | Callable[[Any], StorePlan],
        verify: bool,
        title: str,
        progress: Progress,
        trace: Trace | None,
    ) -> Report:
        from distributed import CancelledError
        from distributed.comm import CommClosedError

        from cml_engine.distributed.worker import WorkerSetup

        report, window = self.report, None
        watch = ClusterMonitor(self.client, self.embedded, report)
        try:
            self._await_workers()
            versions = check_versions(self.client)
            setup = partial(
                WorkerSetup, self.name, self.work, embedded=self.embedded, versions=versions
            )
            report.device = self._set_up(setup())
            if not isinstance(plan, StorePlan):
                plan = plan(self._measure())
            layers = plan.layers
            report.total = sum(prod(layer.cells) for layer in layers)
            manifest = {**plan.manifest, "device": report.device}
            was_there = prepare(report.store, layers, manifest, title)
            # coordinates may be large, and workers do not need them
            stripped = [replace(layer, coordinates={}) for layer in layers]
            self._set_up(setup(place=report.store, layers=stripped, device=report.device))
            units: Iterable[Unit] = (unit for layer in layers for unit in layer.units())
            count = sum(layer.count for layer in layers)
            if was_there and not verify:
                recorded = self._recorded_units(layers)
                units = (unit for unit in units if unit not in recorded)
                count -= len(recorded)
            window = TaskWindow(self.client, self.name, layers, watch, progress, trace)
            window.run(iter(units), count)
        except (CommClosedError, CancelledError, TimeoutError) as error:
            raise watch.vanished_error() from error
        finally:
            self._close(window)
        return report

    def _recorded_units(self, layers: Sequence[Layer]) -> set[Unit]:
        """Returns the units that have a record in the store; the report counts them as kept.

        The units' values are not read.
        """
        recorded = Store(self.report.store, layers).recorded()
        sizes = {layer.name: layer for layer in layers}
        self.report.kept = sum(sizes[unit.layer].size(unit) for unit in recorded)
        return recorded

    def _await_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE_S)
        except TimeoutError:
            raise InputError(
                f"no worker has joined the cluster for {PATIENCE_S:g} s: start some, with "
                "'dask worker ADDRESS'"
            ) from None

    def _set_up(self, setup: WorkerSetup) -> str:
        """Installs the work on every current and future worker; returns the workers' device.

        Raises if a worker was refused.
        """
        from cml_engine.distributed.worker import worker_state

        self.client.register_plugin(setup, name=self.name)
        return check_devices(self.client.run(worker_state, self.name))

    def _measure(self) -> object:
        from cml_engine.distributed.worker import measure

        future = self.client.submit(measure, self.name, pure=False, key=f"measure-{self.name}")
        return future.result()

    def _close(self, window: TaskWindow | None) -> None:
        if self.client.status != "running" or self.embedded:
            return  # a local cluster stops with its tasks
        with contextlib.suppress(Exception):  # the cluster may be stopping, or the setup failed
            if window is not None:
                window.close()
            self.client.unregister_worker_plugin(self.name)
