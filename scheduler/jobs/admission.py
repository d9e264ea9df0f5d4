"""Checks a new job: its session, its inputs, and a deadline that cannot be met."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, cast

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_input_mapping, shortened
from cml_engine.ir.textures import on_device
from cml_engine.runtime.session import Session
from scheduler.executor import Executor, Network
from scheduler.jobs.job import Job, JobOutput

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
    """Warns or raises :class:`AdmissionError` if the job is predicted to miss its deadline.

    ``admission`` selects the reaction; ``others`` is the number of the other jobs, for the message.
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


def network_of(session: Session | Network) -> Network:
    """Returns the network of a GPU session, or the argument itself if it is a network.

    Raises :class:`InputError` for anything else.
    """
    network = cast(Network, getattr(session, "program", session))
    if not hasattr(network, "step_costs"):
        backend = getattr(session, "backend", None)
        got = shortened(repr(session))
        if isinstance(backend, str):
            got = f"a session on the {backend.upper()}"
        raise InputError(
            f"session: wanted one on a GPU, got {got}; cml.Session(graph, gpu) makes one"
        )
    return network


def accept_inputs(
    executor: Executor, session: Session | Network, inputs: Mapping[str, object]
) -> dict[str, object]:
    """Returns a new job's inputs by name, checked and in the form that the device keeps.

    The session checks host arrays; the executor checks tensors on the device.
    """
    check_input_mapping(inputs)
    if isinstance(session, Session):
        inputs = session.check_inputs(inputs, skip=_on_gpu(inputs))
    return executor.accept(network_of(session), dict(inputs))


def _on_gpu(inputs: Mapping[str, object]) -> frozenset[str]:
    """Returns the names of the inputs on the device: other jobs' outputs, tensors, textures."""
    return frozenset(name for name, v in inputs.items() if isinstance(v, JobOutput) or on_device(v))
