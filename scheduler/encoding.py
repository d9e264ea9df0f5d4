"""Encodes a frame's slices with the host's encoder; errors fail the jobs they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.executor import Slice
from scheduler.jobs.job import Job
from scheduler.jobs.lifecycle import Lifecycle
from scheduler.reports import FrameReport


def append(
    jobs: Lifecycle, encoder: Any, report: FrameReport, groups: Sequence[Sequence[Slice]]
) -> None:
    """Encodes the slices, then the ends of completed jobs, then the readbacks."""
    numbers = {part.job for part in report.slices}
    working = [job for job in jobs.roster.running.values() if job.number in numbers]
    failed: list[tuple[Job, Exception]] = []
    try:
        refused = jobs.executor.encode(encoder, report.frame, groups, timed=report.timed) or ()
        failed = [(j, e) for network, e in refused for j in working if j.network is network]
    except Exception as error:  # the device is lost, or refuses the frame as a whole
        failed = [(job, error) for job in working]
        report.reason = "device error"
        if not working:
            jobs.note(error)
    for job, why in failed:
        report.reason = "device error"
        jobs.fail(job, why)
    if report.reason == "device error":
        fail_all_where_lost(jobs, report)
    _finish(jobs, encoder, report)
    _request_reads(jobs, encoder)


def fail_all_where_lost(jobs: Lifecycle, report: FrameReport) -> None:
    """Fails all jobs if the device is lost."""
    try:
        jobs.executor.check()
    except Exception as error:
        report.reason = "device error"
        for job in jobs.roster.jobs:
            jobs.fail(job, error)


def _finish(jobs: Lifecycle, encoder: Any, report: FrameReport) -> None:
    for job in [job for job in jobs.roster.running.values() if job.all_encoded]:
        try:
            job.outputs.result = jobs.executor.finish_job(encoder, job.network)
        except Exception as error:
            jobs.fail(job, error)
            continue
        if job.result is None:
            job.held_up = "memory for its outputs"
            jobs.held_up.append(job.number)
            continue
        jobs.end(job, "done")
        report.finished.append(job.number)
        if job.wants_read:
            jobs.reads.append(job)


def _request_reads(jobs: Lifecycle, encoder: Any) -> None:
    reads, jobs.reads = jobs.reads, []
    for job in reads:
        if job.result is not None:
            try:
                jobs.executor.request_read(encoder, job.result)
            except Exception as error:
                job.read_error = error
