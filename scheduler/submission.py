"""Checks and converts the sessions and inputs that a host submits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_input_mapping, shortened
from cml_engine.ir.textures import on_device
from scheduler.executor import Executor, Network
from scheduler.jobs.job import JobOutput


def network_of(session: Any) -> Network:
    """Returns the network of a GPU session, or the argument itself if it is a network.

    Raises :class:`InputError` for anything else.
    """
    network = getattr(session, "program", session)
    if not hasattr(network, "step_costs"):
        backend = getattr(session, "backend", None)
        got = shortened(repr(session))
        if isinstance(backend, str):
            got = f"a session on the {backend.upper()}"
        raise InputError(
            f"session: wanted one on a GPU, got {got}; cml.Session(graph, gpu) makes one"
        )
    found: Network = network
    return found


def accepted(
    executor: Executor, session: Any, network: Network, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the checked inputs, as the device keeps them.

    The session checks host arrays; the executor checks tensors on the device.
    """
    check_input_mapping(inputs)
    if network is not session:
        inputs = session.check_inputs(inputs, skip=_on_gpu(inputs))
    return executor.accept(network, dict(inputs))


def _on_gpu(inputs: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the inputs that are not host arrays."""
    return frozenset(name for name, v in inputs.items() if isinstance(v, JobOutput) or on_device(v))
