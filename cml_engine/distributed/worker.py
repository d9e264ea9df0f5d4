"""What runs on a worker: the work is opened once in a process, each task makes some units.

Where writing takes long, a unit is written while the next is made, and none is further ahead: a
worker that dies takes two units with it at most. A task never raises: what went wrong is part of an
:class:`Outcome`, so that one bad input among a million costs one line of the report. Only a worker
that dies says nothing.
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
from typing import Any

from distributed import WorkerPlugin, get_worker
from distributed.metrics import context_meter

from cml_engine.distributed.batch import LONGEST_S, Batch
from cml_engine.distributed.store import LASTING, Store
from cml_engine.distributed.trace import Moment
from cml_engine.distributed.versions import check_same_versions, own_versions
from cml_engine.distributed.watch import FORGET_AFTER, forget_names
from cml_engine.distributed.work import Layer, Made, Maker, Unit, Watch, Work
from cml_engine.errors import CmlError, DeviceError, InputError

#: makers of this process by their works' keys, the last used at the end
_makers: OrderedDict[str, Maker] = OrderedDict()
_MAKERS_KEPT = 2
#: what runs have been set up in this process, by the runs' names
_opened: dict[str, Opened] = {}
_opening = threading.Lock()
#: of the time, that writing takes if it is not to be waited for; for less it is not worth that the
#: thread that writes is in the way of one that makes with a processor
_BESIDE = 0.3
#: glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
_MALLOC = {-1: 1 << 27, -3: 1 << 25}


@dataclass
class Outcome:
    """What became of a unit. ``kind``: ``"made"``, ``"kept"`` (it was whole), ``"aside"`` (it can
    never be made), ``"failed"`` (another attempt may do), ``"stop"`` (nothing can be made any
    more)."""

    unit: Unit
    kind: str = "made"
    message: str = ""
    #: cells that were set aside, with the reason
    aside: dict[str, str] = field(default_factory=dict)
    #: whether chunks that were there had another checksum
    damaged: bool = False
    nbytes: int = 0
    #: when what was done, where that is traced
    moments: list[Moment] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        """It was not made, or not written."""
        self.kind, self.message = _kind_of(error), _described(error)


@dataclass
class Done:
    """What a task gives back: of its units the first, or all, in their order; its seconds, and
    those of what was done; and why the worker cannot take part."""

    worker: str
    outcomes: list[Outcome] = field(default_factory=list)
    elapsed: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    refused: str = ""


@dataclass
class Opened:
    """One run on this worker. Its maker has one session, so units are made one after the other,
    under the ``lock``; a second thread looks meanwhile what is there, or writes."""

    maker: Maker | None = None
    store: Store | None = None
    #: why it cannot take part
    refused: str = ""
    #: whether units are written while the next ones are made
    beside: bool = False
    tasks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Setup(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes a worker ready for a run, those too that join later: the work's maker is there, and
    where ``layers`` are given their store. ``device`` is what the work must run on, "" for whatever
    there is. A worker that cannot take part says why (:func:`state`)."""

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
        # bytes: what a worker cannot read is that worker's message
        self.work, self.key = pickle.dumps(work), work.key

    def setup(self, worker: Any) -> None:
        if self.embedded:  # Ctrl-C is for the client, which ends its workers
            with contextlib.suppress(ValueError):  # not in the main thread: it has no handlers
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        _keep_memory()
        opened = Opened()
        try:
            if self.versions is not None:
                check_same_versions(self.versions, own_versions())
            opened.maker = _maker(self.key, self.work)
            if self.device and opened.maker.device != self.device:
                raise DeviceError(
                    f"it runs on {opened.maker.device}, the others on {self.device}: floats would "
                    "not be equal bit by bit"
                )
            if self.layers:
                opened.store = Store(self.place, self.layers)
        except Exception as error:
            opened.refused = _described(error)
        _opened[self.name] = opened

    def teardown(self, worker: Any) -> None:
        _opened.pop(self.name, None)


def _keep_memory() -> None:
    """Arrays that are freed are kept for the next unit. Dask has glibc give them back at once, and
    each page that is asked for anew is a fault: terrain took twice as long."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.items():
            mallopt(parameter, value)


def _maker(key: str, work: bytes) -> Maker:
    with _opening:
        if key not in _makers:
            while len(_makers) >= _MAKERS_KEPT:
                _makers.popitem(last=False)
            _makers[key] = pickle.loads(work).open()
        _makers.move_to_end(key)
        return _makers[key]


def state(name: str) -> tuple[str, str]:
    """The device of a run on this worker, and why the worker was refused."""
    opened = _opened.get(name)
    if opened is None:
        return "", "the work did not arrive"
    return (opened.maker.device if opened.maker else ""), opened.refused


class _Times:
    """Times a unit: adds to a task's seconds, and notes moments where they are traced."""

    def __init__(self, seconds: dict[str, float], moments: list[Moment] | None) -> None:
        self.seconds, self.moments = seconds, moments
        self.first, self.start = time.time(), time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, activity: str) -> Iterator[Watch | None]:
        start = time.perf_counter()
        try:
            yield self._watch(start)
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - start
            self.note("step", activity, start)

    def note(self, kind: str, name: str, start: float) -> float:
        """Something that has ended now, for the trace; now."""
        end = time.perf_counter()
        if self.moments is not None:
            begun, thread = self.first + start - self.start, threading.get_native_id()
            self.moments.append(Moment(kind, name, begun, end - start, thread))
        return end

    def _watch(self, start: float) -> Watch | None:
        """What notes the operators of a session."""
        if self.moments is None:
            return None
        last = start

        def watch(node: Any, results: Any) -> None:
            nonlocal last
            last = self.note("operator", node.title, last)

        return watch


def measure(name: str) -> Any:
    """What the work's maker says of itself, on this worker."""
    opened = _opened[name]
    assert opened.maker is not None
    with opened.lock:
        return opened.maker.measure()


def run_batch(batch: Batch) -> Done:
    """Make units and write them, those that are not there and whole, until time is up."""
    start, done = time.perf_counter(), Done(get_worker().address)
    opened = _opened.get(batch.name)
    if opened is None or opened.refused:
        done.refused = opened.refused if opened else "the work did not arrive"
        return done
    with ThreadPoolExecutor(1, "cml-write") as writer:
        writing: Future[None] | None = None
        for at in batch.at:
            outcome = Outcome(Unit(batch.layer, at))
            done.outcomes.append(outcome)
            times = _Times(done.seconds, outcome.moments if batch.traced else None)
            write = _make(opened, outcome, times)
            if writing is not None:
                writing.result()
            if write is not None and opened.beside:
                writing = writer.submit(write)
            elif write is not None:
                write()
            times.note("unit", str(outcome.unit), times.start)
            if time.perf_counter() - start > LONGEST_S or _is_over(opened, batch, done):
                break
    for activity, spent in done.seconds.items():  # for Dask's dashboard: Fine Performance Metrics
        context_meter.digest_metric(activity, spent, "seconds")
    opened.beside = done.seconds.get("write", 0.0) > _BESIDE * sum(done.seconds.values())
    opened.tasks += 1
    if opened.tasks % FORGET_AFTER == 0:
        forget_names()
    done.elapsed = time.perf_counter() - start
    return done


def _is_over(opened: Opened, batch: Batch, done: Done) -> bool:
    """Whether nobody wants more of it: its client was interrupted, or the disk is full."""
    stopped = any(outcome.kind == "stop" for outcome in done.outcomes)
    return stopped or _opened.get(batch.name) is not opened


def _make(opened: Opened, outcome: Outcome, times: _Times) -> Callable[[], None] | None:
    """Make a unit: what writes it, or None where nothing is to be written."""
    maker, store, unit = opened.maker, opened.store, outcome.unit
    assert maker is not None and store is not None
    try:
        with times("check"):
            found = store.state(unit)
        outcome.damaged = found == "damaged"
        if found == "whole":
            outcome.kind = "kept"
            return None
        with opened.lock:
            made = maker.make(store.layers[unit.layer], unit, times)
        return partial(_write, store, outcome, made, times)
    except Exception as error:
        outcome.fail(error)
        return None


def _write(store: Store, outcome: Outcome, made: Made, times: _Times) -> None:
    try:
        with times("write"):
            outcome.nbytes = store.write(outcome.unit, made.arrays, not made.aside)
        outcome.aside = made.aside
    except Exception as error:
        outcome.fail(error)


def _kind_of(error: Exception) -> str:
    if isinstance(error, InputError):
        return "aside"
    return "stop" if isinstance(error, OSError) and error.errno in LASTING else "failed"


def _described(error: Exception) -> str:
    if isinstance(error, CmlError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
