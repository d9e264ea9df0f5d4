"""Builds texts that say what a job waits for and what a scheduler is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.jobs.job import Job
from scheduler.reports import FrameReport

#: the most jobs in a scheduler's text, and characters of an error
_SHOWN, _LENGTH = 12, 200


def waiting_for(
    job: Job, find_memory_user: Callable[[Job], Job | None], last: FrameReport | None
) -> str:
    """Returns a line of text with a job's state and what it waits for.

    ``find_memory_user`` returns the job that runs in its network's memory; ``last`` is the report
    of the previous frame.
    """
    if job.ended:
        return _ended(job)
    room = f"room in a frame{_stopped_at(last)}"
    if job.state == "running":
        done = f"running: {100 * job.progress:.0f} % encoded"
        if job.paused:
            return f"{done}, paused until resume()"
        return f"{done}, waits for {job.blocked_by or room}"
    return f"queued: waits for {_to_begin(job, find_memory_user) or f'its turn, {room}'}"


def _stopped_at(last: FrameReport | None) -> str:
    return f"; the last frame stopped at: {last.reason}" if last else ""


def _ended(job: Job) -> str:
    if job.state != "done":
        return one_line(f"{job.state}: {job.error}" if job.error else job.state)
    if job.read_error is not None:
        return one_line(f"done: its readback failed: {job.read_error}")
    reading = job.wants_read and job.owner.executor.is_reading(job.result)
    return "done: waits for its readback" if reading else "done"


def _to_begin(job: Job, find_memory_user: Callable[[Job], Job | None]) -> str:
    """Returns a text that says what a queued job waits for before it can begin; "" if nothing."""
    producers = [producer for producer in job.producers if not producer.ended]
    if producers:
        named = ", ".join(f"'{m.name}' (job {m.number}, {m.state})" for m in producers[:3])
        more = f" and {len(producers) - 3} more" if len(producers) > 3 else ""
        return f"the outputs of {named}{more}"
    if job.paused:
        return "resume(): it is paused"
    if not job.network.ready:
        said = job.network.waiting_for
        return one_line(f"its network to be ready: {said}" if said else "its network to be ready")
    holder = find_memory_user(job)
    if holder is not None:
        return f"job {holder.number} '{holder.name}' to end, which has its network's memory"
    return one_line(job.blocked_by)


def describe(
    *, frame: int, budget_ms: float, report: FrameReport | None, jobs: Sequence[Job],
    preparing: str, last_error: str, ignored: int,
) -> str:  # fmt: skip
    """Returns a text of several lines about a scheduler, for people.

    It has the budget, the last frame, the preparation thread, the last error, and a line for
    each of the first jobs.
    """
    running = sum(job.state == "running" for job in jobs)
    lines = [
        f"frame {frame}: budget {budget_ms:.3g} ms, {running} jobs "
        f"running, {len(jobs) - running} queued{_stopped_at(report)}",
        f"preparation: {one_line(preparing) or 'nothing to do'}",
    ]
    if last_error:
        lines.append(f"last error: {one_line(last_error)}")
    if ignored:
        lines.append(f"{ignored} times that made no sense were left out")
    lines += [f"job {job.number} '{job.name}': {job.waiting_for}" for job in jobs[:_SHOWN]]
    if len(jobs) > _SHOWN:
        lines.append(f"and {len(jobs) - _SHOWN} more jobs")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Returns the text in one line, cut off after ``_LENGTH`` characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LENGTH else joined[: _LENGTH - 1] + "…"
