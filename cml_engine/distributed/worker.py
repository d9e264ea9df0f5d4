"""The part of a bake that runs on a worker: opens the work once per process and computes units.

If writing is slow, a unit is written while the next one is computed. At most two units are in
progress, so a worker that dies loses at most two. A task does not raise for a failed unit:
errors are part of an :class:`Outcome`, and one bad input among a million costs one line of the
report.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from distributed import Worker, WorkerPlugin, get_worker
from distributed.metrics import context_meter

from cml_engine.distributed.cluster import (
    FORGET_AFTER,
    check_same_versions,
    forget_names,
    package_versions,
)
from cml_engine.distributed.report import TraceEvent
from cml_engine.distributed.store import LASTING, Store
from cml_engine.distributed.work import (
    LONGEST_S,
    Batch,
    Layer,
    Unit,
    UnitProducer,
    UnitResult,
    Watch,
    Work,
)
from cml_engine.errors import CmlError, DeviceError, InputError
from cml_engine.ir.graph import Array, Node

#: the producers of this process by work key, the most recently used last
_producers: OrderedDict[str, UnitProducer] = OrderedDict()
_PRODUCERS_KEPT = 2
#: the runs that are set up in this process, by run name
_opened: dict[str, OpenRun] = {}
_opening = threading.Lock()
#: the share of a task's time spent writing above which a second thread writes; below it, the
#: thread would slow the computation more than it saves
_BESIDE = 0.3
#: glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
_MALLOC = {-1: 1 << 27, -3: 1 << 25}


@dataclass
class Outcome:
    """The outcome of one unit of a task.

    ``kind`` is ``"made"``, ``"kept"`` (it was already stored), ``"aside"`` (it can never be
    computed), ``"failed"`` (a retry may succeed) or ``"stop"`` (every further unit would fail).
    """

    unit: Unit
    kind: str = "made"
    message: str = ""
    #: cells that were set aside, with the reason
    aside: dict[str, str] = field(default_factory=dict)
    #: True if the stored chunks had another checksum
    damaged: bool = False
    nbytes: int = 0
    #: timed events, if the unit is traced
    events: list[TraceEvent] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        """Sets ``kind`` and ``message`` from the error that ended the unit's work."""
        self.kind, self.message = "failed", _describe(error)
        if isinstance(error, InputError):
            self.kind = "aside"
        elif isinstance(error, OSError) and error.errno in LASTING:
            self.kind = "stop"


@dataclass
class BatchResult:
    """The result of a task: an outcome for each unit that was begun, in order, and times.

    A task that ran out of time has outcomes only for its first units. ``elapsed`` is the
    task's duration in seconds, ``seconds`` the time by activity. ``refusal`` is the reason why
    the worker cannot take part.
    """

    worker: str
    outcomes: list[Outcome] = field(default_factory=list)
    elapsed: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    refusal: str = ""


@dataclass
class OpenRun:
    """The state of a run on this worker: the producer of its units and the open store.

    The producer has one session, so units are computed one after the other under ``lock``.
    Meanwhile a second thread may write.
    """

    producer: UnitProducer | None = None
    store: Store | None = None
    #: the reason why this worker cannot take part
    refusal: str = ""
    #: True if a unit is written while the next one is computed
    writes_in_background: bool = False
    tasks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class WorkerSetup(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """A Dask plugin that prepares every current and future worker for a run.

    It opens the work's producer and, if ``layers`` are given, the store at ``place``. ``device`` is
    the required device; "" accepts any. A worker that cannot take part keeps the reason for
    :func:`worker_state`.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        embedded: bool,
        versions: Mapping[str, str] | None = None,
        place: str = "",
        layers: Sequence[Layer] = (),
        device: str = "",
    ) -> None:
        self.name, self.place, self.layers, self.device = name, place, tuple(layers), device
        self.embedded, self.versions = embedded, versions
        # pickled here, so that a worker that cannot unpickle it reports that itself
        self.work, self.key = pickle.dumps(work), work.key

    def setup(self, worker: Worker) -> None:
        if self.embedded:  # the client handles Ctrl-C and stops its workers
            with contextlib.suppress(ValueError):  # only the main thread has signal handlers
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        _keep_memory()
        run_state = OpenRun()
        try:
            if self.versions is not None:
                check_same_versions(self.versions, package_versions())
            run_state.producer = _producer_of(self.key, self.work)
            if self.device and run_state.producer.device != self.device:
                raise DeviceError(
                    f"it runs on {run_state.producer.device}, the others on {self.device}: floats "
                    "would not be equal bit by bit"
                )
            if self.layers:
                run_state.store = Store(self.place, self.layers)
        except Exception as error:
            run_state.refusal = _describe(error)
        _opened[self.name] = run_state

    def teardown(self, worker: Worker) -> None:
        _opened.pop(self.name, None)


def _keep_memory() -> None:
    """Makes glibc keep freed arrays for the next unit.

    Dask configures glibc to return freed memory at once. The page faults of allocating it again
    double the time of a terrain unit.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.items():
            mallopt(parameter, value)


def _producer_of(key: str, work: bytes) -> UnitProducer:
    with _opening:
        if key not in _producers:
            while len(_producers) >= _PRODUCERS_KEPT:
                _producers.popitem(last=False)
            _producers[key] = pickle.loads(work).open()
        _producers.move_to_end(key)
        return _producers[key]


def worker_state(name: str) -> tuple[str, str]:
    """Returns the device of run ``name`` on this worker, and the reason if the worker was refused.

    The device is "" if the producer could not be opened; the reason is "" if there is none.
    """
    run_state = _opened.get(name)
    if run_state is None:
        return "", "the work did not arrive"
    return (run_state.producer.device if run_state.producer else ""), run_state.refusal


class _Times:
    """A :class:`UnitClock` for one unit: adds to a task's seconds, and records events if traced."""

    def __init__(self, seconds: dict[str, float], events: list[TraceEvent] | None) -> None:
        self.seconds, self.events = seconds, events
        self.first, self.start = time.time(), time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, activity: str) -> Iterator[Watch | None]:
        start = time.perf_counter()
        try:
            yield self._watch(start)
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - start
            self.note("step", activity, start)

    def note(self, event_type: str, name: str, start: float) -> float:
        """Records an event from ``start`` to now, if traced; returns now in seconds."""
        end = time.perf_counter()
        if self.events is not None:
            begin_time, thread = self.first + start - self.start, threading.get_native_id()
            self.events.append(TraceEvent(event_type, name, begin_time, end - start, thread))
        return end

    def _watch(self, start: float) -> Watch | None:
        """Returns a callback that records an event for each operator; None without a trace."""
        if self.events is None:
            return None
        last = start

        def watch(node: Node, results: Sequence[Array]) -> None:
            nonlocal last
            last = self.note("operator", node.title, last)

        return watch


def measure(name: str) -> object:
    """Returns the measurements that the producer of run ``name`` takes on this worker."""
    run_state = _opened[name]
    assert run_state.producer is not None
    with run_state.lock:
        return run_state.producer.measure()


def run_batch(batch: Batch) -> BatchResult:
    """Computes and writes the units of a task that are not stored yet, and returns their outcomes.

    Stops after ``LONGEST_S`` seconds, or if the run has ended; the rest of the units has no
    outcome.
    """
    start, result = time.perf_counter(), BatchResult(get_worker().address)
    run_state = _opened.get(batch.name)
    if run_state is None or run_state.refusal:
        result.refusal = run_state.refusal if run_state else "the work did not arrive"
        return result
    with ThreadPoolExecutor(1, "cml-write") as writer:
        writing: Future[None] | None = None
        for at in batch.at:
            outcome = Outcome(Unit(batch.layer, at))
            result.outcomes.append(outcome)
            times = _Times(result.seconds, outcome.events if batch.traced else None)
            write = _make(run_state, outcome, times)
            if writing is not None:
                writing.result()
            if write is not None and run_state.writes_in_background:
                writing = writer.submit(write)
            elif write is not None:
                write()
            times.note("unit", str(outcome.unit), times.start)
            stopped = any(outcome.kind == "stop" for outcome in result.outcomes)
            is_over = stopped or _opened.get(batch.name) is not run_state  # the run has ended
            if is_over or time.perf_counter() - start > LONGEST_S:
                break
    for activity, spent_s in result.seconds.items():  # Fine Performance Metrics of Dask's dashboard
        context_meter.digest_metric(activity, spent_s, "seconds")
    run_state.writes_in_background = result.seconds.get("write", 0.0) > _BESIDE * sum(
        result.seconds.values()
    )
    run_state.tasks += 1
    if run_state.tasks % FORGET_AFTER == 0:
        forget_names()
    result.elapsed = time.perf_counter() - start
    return result


def _make(run_state: OpenRun, outcome: Outcome, times: _Times) -> Callable[[], None] | None:
    """Computes the unit of ``outcome``; returns a function that writes it.

    Returns None if the unit is already stored or could not be computed, and says so in ``outcome``.
    """
    producer, store, unit = run_state.producer, run_state.store, outcome.unit
    assert producer is not None and store is not None
    try:
        with times("check"):
            state = store.state(unit)
        outcome.damaged = state == "damaged"
        if state == "whole":
            outcome.kind = "kept"
            return None
        with run_state.lock:
            unit_result = producer.make(store.layers[unit.layer], unit, times)
        return partial(_write, store, outcome, unit_result, times)
    except Exception as error:
        outcome.fail(error)
        return None


def _write(store: Store, outcome: Outcome, unit_result: UnitResult, times: _Times) -> None:
    try:
        with times("write"):
            outcome.nbytes = store.write(outcome.unit, unit_result.arrays, not unit_result.aside)
        outcome.aside = unit_result.aside
    except Exception as error:
        outcome.fail(error)


def _describe(error: Exception) -> str:
    if isinstance(error, CmlError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
