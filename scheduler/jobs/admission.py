"""Whether a deadline can be held, asked before a job is taken."""

from __future__ import annotations

import warnings
from typing import Literal

from scheduler.jobs.job import Job

#: what to do with a deadline that cannot be held
Admission = Literal["accept", "warn", "refuse"]


class AdmissionError(RuntimeError):
    """A deadline that cannot be held, for a job submitted with ``admission="refuse"``."""


def admit(job: Job, admission: Admission, others: int) -> None:
    """Warn or refuse where the job's deadline cannot be held beside so many others."""
    if job.deadline_at_ms is None or admission == "accept":
        return
    late = job.submitted_ms + job.eta_ms - job.deadline_at_ms
    if late <= 0:
        return
    said = (
        f"job '{job.name}' cannot hold its deadline: {job.remaining_ms:.1f} ms of GPU time "
        f"beside {others} jobs would end {late:.0f} ms after it. "
        "Give it more time, a larger budget, or a smaller network."
    )
    if admission == "refuse":
        raise AdmissionError(said)
    warnings.warn(said, RuntimeWarning, stacklevel=5)
