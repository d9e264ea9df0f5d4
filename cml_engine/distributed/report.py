"""The report of a bake (counts, times and failures), its progress and its trace."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from cml_engine.errors import InputError
from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.json_files import Json

#: the number of cells set aside that a report names; the others are only counted
NAMED = 1000
_SHOWN = 5


@dataclass
class WorkerShare:
    """One worker's share of a run: the number of cells it computed, and its seconds by activity."""

    made: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds seconds of work to the totals of each activity, such as "check" or "write"."""
        for activity, spent_s in seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent_s

    @property
    def busy_s(self) -> float:
        """The total seconds of work over all activities."""
        return sum(self.seconds.values())


@dataclass
class Report:
    """The results of a run, counted in cells (tiles or inputs).

    ``made`` cells were computed by this run, ``kept`` cells were already stored, and ``aside``
    names the first cells that could not be computed, with the reason.

    Examples
    --------
    >>> report = Report("out.zarr", total=100, made=98)
    >>> report.set_aside("a.npy", "it is empty")
    >>> report.complete
    False
    """

    store: str
    what: str = "tiles"
    device: str = ""
    total: int = 0
    made: int = 0
    kept: int = 0
    #: cells whose stored chunks had another checksum; they were computed again
    damaged: int = 0
    #: retries of units that failed or whose worker died
    retried: int = 0
    aside: dict[str, str] = field(default_factory=dict)
    aside_count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    #: total time of all workers, in seconds
    worker_s: float = 0.0
    #: workers whose process ended, which their tasks survive
    lost: list[str] = field(default_factory=list)
    #: workers that could not take part, with the reason
    refused: dict[str, str] = field(default_factory=dict)
    workers: dict[str, WorkerShare] = field(default_factory=dict)
    #: the address of Dask's dashboard
    dashboard: str = ""
    #: the price of one worker for an hour, in any currency
    price: float | None = None

    @property
    def done(self) -> int:
        """The number of cells in the store: computed by this run or stored before."""
        return self.made + self.kept

    @property
    def complete(self) -> bool:
        """True if every cell is in the store and none was set aside."""
        return self.done == self.total and not self.aside_count

    @property
    def per_s(self) -> float:
        """The number of cells computed per second by this run; 0 at its start."""
        return self.made / self.seconds if self.seconds else 0.0

    @property
    def hours_per_million(self) -> float:
        """The hours of worker time per million computed cells; 0 if none was computed."""
        return 1e6 * self.worker_s / 3600 / self.made if self.made else 0.0

    @property
    def rate(self) -> float:
        """The number of cells per second that were computed or found stored; 0 at the start."""
        return self.done / self.seconds if self.seconds else 0.0

    def check(self) -> None:
        """Raises :class:`InputError` with the first set-aside cells if any were set aside."""
        if self.aside_count:
            reasons = "\n  ".join(self.aside_lines())
            raise InputError(
                f"set aside: {self.aside_count:,} of {self.total:,} {self.what}. The others are in "
                f"'{self.store}'; mend these, and the same command makes only them\n  {reasons}"
            )

    def set_aside(self, name: str, reason: str, cells: int = 1) -> None:
        """Counts ``cells`` more cells that cannot be computed, and keeps their name and the reason.

        Names beyond the first ``NAMED`` are only counted.
        """
        self.aside_count += cells
        if len(self.aside) < NAMED:
            self.aside[name] = reason

    def lose_worker(self, address: str) -> None:
        """Records that a worker's process ended."""
        if address not in self.lost:
            self.lost.append(address)

    def to_json(self) -> dict[str, Json]:
        """Returns the whole report as a dictionary of JSON values."""
        return {
            "store": self.store,
            "device": self.device,
            "total": self.total,
            "made": self.made,
            "kept": self.kept,
            "damaged": self.damaged,
            "retried": self.retried,
            "set_aside": self.aside_count,
            "set_aside_named": self.aside,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 3),
            "per_s": round(self.per_s, 3),
            "worker_hours_per_million": round(self.hours_per_million, 3),
            "cost_per_million": (
                None if self.price is None else round(self.price * self.hours_per_million, 2)
            ),
            "lost": self.lost,
            "refused": self.refused,
            "workers": {
                name: {
                    "made": share.made,
                    "busy_s": round(share.busy_s, 3),
                    "seconds": {k: round(v, 3) for k, v in sorted(share.seconds.items())},
                }
                for name, share in sorted(self.workers.items())
            },
        }

    def __str__(self) -> str:
        lines = [
            f"{self.store}: {self.done:,} of {self.total:,} {self.what} ({self.made:,} made, "
            f"{self.damaged:,} of them in the place of damaged ones; {self.kept:,} kept; "
            f"{self.retried:,} further attempts; {self.aside_count:,} set aside)",
            f"  {self.per_s:.1f} {self.what}/s, {self.nbytes / 1e6:.1f} MB in "
            f"{self.seconds:.1f} s, on {self.device}",
            f"  a million {self.what}: {self.hours_per_million:.2f} hours of a worker"
            + ("" if self.price is None else f", {self.price * self.hours_per_million:.2f} in all"),
        ]
        for name, share in sorted(self.workers.items()):
            parts = ", ".join(
                f"{activity} {1e3 * spent_s / max(1, share.made):.1f}"
                for activity, spent_s in sorted(share.seconds.items(), key=lambda item: -item[1])
            )
            lines.append(
                f"  {name}: {share.made:,} {self.what}, {share.busy_s:.1f} s busy "
                f"(ms each: {parts})"
            )
        note = "its process ended, and its tasks were repeated"
        lines += [f"  lost: {name}: {note}" for name in self.lost]
        lines += [f"  refused: {name}: {reason}" for name, reason in self.refused.items()]
        lines += [f"  set aside: {line}" for line in self.aside_lines()]
        return "\n".join(lines)

    def aside_lines(self) -> list[str]:
        """Returns lines of text: one for each of the first set-aside cells, one for the rest."""
        lines = [f"{name}: {reason}" for name, reason in list(self.aside.items())[:_SHOWN]]
        more = self.aside_count - len(lines)
        return [*lines, *([f"and {more:,} more"] if more > 0 else [])]


#: called with the current report, a few times per second
Progress = Callable[[Report], object]


# -- progress -------------------------------------------------------------------------------------

#: seconds until the first line without a terminal, and between two lines
_FIRST_S, _EVERY_S = 1.0, 30.0


@contextlib.contextmanager
def show_progress(what: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """A context manager that yields a callback ``progress(report)``, which shows a bake's progress.

    It writes to ``stream`` (standard error by default): a bar headed ``what`` on a terminal,
    otherwise a line after a second, every half minute, and when a worker is lost.

    Examples
    --------
    >>> with show_progress("inputs") as progress:
    ...     progress(Report("out.zarr", total=10, made=5))
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _ProgressLines(stream)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")

        def show(report: Report) -> None:
            bar.update(
                task,
                description=_describe(report),
                total=report.total,
                completed=report.done,
                rate=f"{report.rate:.1f}/s",
            )

        yield show


class _ProgressLines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next_line_time = time.monotonic() + _FIRST_S
        self._n_lost = 0

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if now < self._next_line_time and len(report.lost) == self._n_lost:
            return
        self._next_line_time, self._n_lost = now + _EVERY_S, len(report.lost)
        line = f"{_describe(report)}: {report.done:,} of {report.total:,}"
        if report.rate:
            seconds_left = (report.total - report.done) / report.rate
            line += f", {report.rate:.1f}/s, {_duration(seconds_left)} left"
        print(line, file=self._stream, flush=True)


def _describe(report: Report) -> str:
    parts = [report.what, f"on {len(report.workers)} workers"]
    if report.dashboard:
        parts.append(report.dashboard)
    if report.lost:
        parts.append(f"workers lost: {len(report.lost)}")
    if report.aside_count:
        parts.append(f"{report.aside_count:,} set aside")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


# -- trace ----------------------------------------------------------------------------------------
# Records a run of the workers as a trace for Perfetto (ui.perfetto.dev).
#
# Each worker is a process. Its slices are units, which contain steps or sessions, which contain
# operators. Writes are slices of a separate thread.

#: the number of units that are traced, from the start of a run; viewers cannot open more
_MOST_TRACED = 1000


@dataclass(frozen=True)
class TraceEvent:
    """An interval in a worker's work; ``kind`` is ``"unit"``, ``"step"`` or ``"operator"``.

    ``start`` is the worker's clock in seconds since 1970, ``seconds`` is the length.
    """

    kind: str
    name: str
    start: float
    seconds: float
    thread: int


class Trace:
    """The timed events of the first units of a run, written to ``path`` by :meth:`write`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_place(self.path)
        self._events: list[tuple[int, TraceEvent]] = []
        self._workers: dict[str, int] = {}
        self._units_left = _MOST_TRACED  # units

    def take(self, units: int) -> bool:
        """Counts ``units`` more units; returns True if they should be traced."""
        self._units_left -= units
        return self._units_left + units > 0

    def add(self, worker: str, events: list[TraceEvent]) -> None:
        """Adds the events of a worker, named by its address."""
        if not events:
            return
        number = self._workers.setdefault(worker, len(self._workers) + 1)
        self._events += [(number, moment) for moment in events]

    def write(self) -> None:
        """Writes the trace to its JSON file, atomically, with times relative to the first event."""
        first = min((event.start for _, event in self._events), default=0.0)
        events = [
            {
                "ph": "X",
                "cat": event.kind,
                "name": event.name,
                "pid": number,
                "tid": event.thread % 2**31,
                "ts": round(1e6 * (event.start - first), 1),
                "dur": round(1e6 * event.seconds, 1),
            }
            for number, event in self._events
        ]
        names = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": worker}}
            for worker, number in self._workers.items()
        ]
        write_atomically(self.path, json.dumps({"traceEvents": [*names, *events]}))
