"""What a job waits for, and what a scheduler is doing, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.frame_scheduler import FrameScheduler
    from scheduler.job import Job

#: jobs that a scheduler's text tells of, and characters of an error
_SHOWN, _LENGTH = 12, 200


def waiting_for(job: Job) -> str:
    """A job's state and what it waits for, in one line."""
    if job.ended:
        return _ended(job)
    if job.state == "running":
        done = f"running: {100 * job.progress:.0f} % encoded"
        if job.paused:
            return f"{done}, paused until resume()"
        return f"{done}, waits for {job.held_up or _room(job)}"
    return f"queued: waits for {_start(job)}"


def _ended(job: Job) -> str:
    if job.state != "done":
        return one_line(f"{job.state}: {job.error}" if job.error else job.state)
    if job.read_error is not None:
        return one_line(f"done: its readback failed: {job.read_error}")
    reading = job.wants_read and job.scheduler.executor.is_reading(job.result)
    return "done: waits for its readback" if reading else "done"


def _start(job: Job) -> str:
    """What a queued job needs before it can begin."""
    makers = job.waits_for()
    if makers:
        named = ", ".join(f"'{m.name}' (job {m.number}, {m.state})" for m in makers[:3])
        more = f" and {len(makers) - 3} more" if len(makers) > 3 else ""
        return f"the outputs of {named}{more}"
    if job.paused:
        return "resume(): it is paused"
    if not job.network.ready:
        said = getattr(job.network, "waiting_for", "")
        return one_line(f"its network to be ready: {said}" if said else "its network to be ready")
    mate = job.scheduler.in_its_seat(job)
    if mate is not None:
        return f"job {mate.number} '{mate.name}' to end, which has its network's memory"
    return one_line(job.held_up) if job.held_up else f"its turn, {_room(job)}"


def _room(job: Job) -> str:
    report = job.scheduler.last_report
    why = f"; the last frame stopped at: {report.reason}" if report is not None else ""
    return f"room in a frame{why}"


def describe(scheduler: FrameScheduler) -> str:
    """What a scheduler is doing: its budget, its last frame, the thread that prepares networks, and
    its jobs, a line each."""
    report, jobs = scheduler.last_report, scheduler.jobs
    running = sum(job.state == "running" for job in jobs)
    lines = [
        f"frame {scheduler.frame}: budget {scheduler.budget.next_ms():.3g} ms, {running} jobs "
        f"running, {len(jobs) - running} queued"
        + (f"; the last frame stopped at: {report.reason}" if report else ""),
        f"preparation: {one_line(scheduler.executor.preparing()) or 'nothing to do'}",
    ]
    if scheduler.last_error:
        lines.append(f"last error: {one_line(scheduler.last_error)}")
    if scheduler.ignored_values:
        lines.append(f"{scheduler.ignored_values} times that made no sense were left out")
    lines += [f"job {job.number} '{job.name}': {job.waiting_for}" for job in jobs[:_SHOWN]]
    if len(jobs) > _SHOWN:
        lines.append(f"and {len(jobs) - _SHOWN} more jobs")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """The text's first words, in one line."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LENGTH else joined[: _LENGTH - 1] + "…"
