"""What a host hands in, made into what a scheduler works with: the one place that looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.checks import ranges, refused
from scheduler.executor import Executor, Network
from scheduler.jobs.job import JobOutput


def network_of(session: Any) -> Network:
    """The network of a session on a GPU, or the network itself; else :class:`InputError`."""
    network = getattr(session, "program", session)
    if not hasattr(network, "step_costs"):
        backend = getattr(session, "backend", None)
        what = f"one on the {backend.upper()}" if isinstance(backend, str) else f"{session!r}"
        raise refused(
            f"a FrameScheduler runs sessions on a GPU; {what} is none: "
            "cml.Session(graph, gpu) makes one"
        )
    found: Network = network
    return found


def accepted(
    executor: Executor, session: Any, network: Network, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs, checked and kept by the device. A session checks the host's arrays, the executor
    what lies on the device."""
    ranges().inputs_by_name(inputs)
    if network is not session:
        inputs = session.check_inputs(inputs, skip=_on_gpu(inputs))
    return executor.accept(network, dict(inputs))


def _on_gpu(inputs: Mapping[str, Any]) -> frozenset[str]:
    """Inputs that are not host arrays."""
    from cml_engine.ir.textures import on_device  # the scheduler comes without NumPy

    return frozenset(name for name, v in inputs.items() if isinstance(v, JobOutput) or on_device(v))
