"""Shows the progress of a bake: a bar on a terminal, otherwise a line every half minute."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from cml_engine.distributed.report import Report
from cml_engine.distributed.task_window import Progress

#: seconds between two lines without a terminal
_EVERY_S = 30.0


@contextlib.contextmanager
def show_progress(what: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """A context manager that yields a callback ``progress(report)``, which shows a bake's progress.

    It writes to ``stream`` (standard error by default): a bar headed ``what`` on a terminal,
    otherwise a line every half minute.

    Examples
    --------
    >>> with show_progress("inputs") as progress:
    ...     progress(Report("out.zarr", total=10, made=5))
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _ProgressLines(stream)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
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
        self._said = time.monotonic()

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if now - self._said < _EVERY_S or not report.rate:
            return
        self._said = now
        left = (report.total - report.done) / report.rate
        print(
            f"{_describe(report)}: {report.done:,} of {report.total:,}, {report.rate:.1f}/s, "
            f"{_duration(left)} left",
            file=self._stream,
            flush=True,
        )


def _describe(report: Report) -> str:
    parts = [report.what, f"on {len(report.workers)} workers"]
    if report.dashboard:
        parts.append(report.dashboard)
    if report.aside_count:
        parts.append(f"{report.aside_count:,} set aside")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
