"""Admission control: warns about or refuses jobs whose deadline cannot be met."""

from __future__ import annotations

import warnings
from typing import Literal

from scheduler.jobs.job import Job

#: the reaction to a deadline that cannot be met
Admission = Literal["accept", "warn", "refuse"]


class AdmissionError(RuntimeError):
    """The error for a job submitted with ``admission="refuse"`` whose deadline cannot be met.

    Examples
    --------
    >>> try:
    ...     scheduler.submit(network, {"image": image}, deadline_ms=0.001, admission="refuse")
    ... except cml.AdmissionError:
    ...     pass  # draw the frame without it
    """


def admit(job: Job, admission: Admission, others: int) -> None:
    """Warns or raises :class:`AdmissionError` if the job cannot meet its deadline.

    ``others`` is the number of the other jobs, for the message.
    """
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
