"""What runs on a worker: the work is opened once in a process, each task makes one unit.

A task never raises: what went wrong is part of its :class:`Outcome`, so that one bad input among a
million costs one line of the report. Only a worker that dies says nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import WorkerPlugin, get_worker
from distributed.metrics import context_meter

from cml_engine.distributed.store import LASTING, Store
from cml_engine.distributed.trace import Moment
from cml_engine.distributed.versions import check_same_versions, own_versions
from cml_engine.distributed.watch import FORGET_AFTER, forget_names
from cml_engine.distributed.work import Layer, Maker, Unit, Watch, Work
from cml_engine.errors import CmlError, DeviceError, InputError

#: makers of this process by their works' keys, the last used at the end
_makers: OrderedDict[str, Maker] = OrderedDict()
_MAKERS_KEPT = 2
#: what runs have been set up in this process, by the runs' names
_opened: dict[str, Opened] = {}
_opening = threading.Lock()
#: glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
_MALLOC = {-1: 1 << 27, -3: 1 << 25}


@dataclass
class Outcome:
    """What became of a unit. ``kind``: ``"made"``, ``"kept"`` (it was whole), ``"aside"`` (it can
    never be made), ``"failed"`` (another attempt may do), ``"unfit"`` (not on this worker),
    ``"stop"`` (nothing can be made any more)."""

    unit: Unit
    kind: str
    message: str = ""
    #: cells that were set aside, with the reason
    aside: dict[str, str] = field(default_factory=dict)
    #: whether chunks that were there had another checksum
    damaged: bool = False
    nbytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    #: when what was done, where that is traced, and the thread that did it
    moments: list[Moment] = field(default_factory=list)
    thread: int = 0


@dataclass
class Opened:
    """One run on this worker. Its maker has one session, so units are made one after the other,
    under the ``lock``; a second thread looks meanwhile what is there, or writes."""

    maker: Maker | None = None
    store: Store | None = None
    #: why it cannot take part
    refused: str = ""
    units: int = 0
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
    """Seconds by activity, which Dask's dashboard shows too (Fine Performance Metrics)."""

    def __init__(self, outcome: Outcome, traced: bool) -> None:
        self.seconds = outcome.seconds
        self.moments = outcome.moments if traced else None
        self.first, self.start = time.time(), time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, activity: str) -> Iterator[Watch | None]:
        start = time.perf_counter()
        try:
            with context_meter.meter(activity):
                yield self._watch(start)
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - start
            self.note("step", activity, start)

    def note(self, kind: str, name: str, start: float) -> float:
        """Something that has ended now, for the trace; now."""
        end = time.perf_counter()
        if self.moments is not None:
            self.moments.append(Moment(kind, name, self.first + start - self.start, end - start))
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


def run_unit(name: str, layer: str, traced: bool, *at: int) -> tuple[str, Outcome]:
    """Make one unit and write it, if it is not there and whole; with this worker's address."""
    outcome = Outcome(Unit(layer, at), "unfit")
    opened = _opened.get(name)
    if opened is None:
        outcome.message = "the work did not arrive"
    elif opened.refused:
        outcome.message = opened.refused
    else:
        _run(opened, outcome, traced)
        opened.units += 1
        if opened.units % FORGET_AFTER == 0:
            forget_names()
    return get_worker().address, outcome


def _run(opened: Opened, outcome: Outcome, traced: bool) -> None:
    maker, store, unit = opened.maker, opened.store, outcome.unit
    assert maker is not None and store is not None
    times = _Times(outcome, traced)
    outcome.thread = threading.get_native_id()
    try:
        with times("check"):
            found = store.state(unit)
        outcome.damaged = found == "damaged"
        if found == "whole":
            outcome.kind = "kept"
            return
        with opened.lock:
            made = maker.make(store.layers[unit.layer], unit, times)
        with times("write"):
            outcome.nbytes = store.write(unit, made.arrays, not made.aside)
        outcome.kind, outcome.aside = "made", made.aside
    except Exception as error:
        outcome.kind, outcome.message = _kind_of(error), _described(error)
    finally:
        times.note("unit", str(unit), times.start)


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
