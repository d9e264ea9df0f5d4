"""What a frame scheduler's job may take as inputs, checked before it is queued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np

from cml_engine.compiler.plan import TensorPlace
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.outputs import Result
from cml_engine.gpu.program.device_inputs import check_on_device, refuse_own_memory
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Fact
from cml_engine.ir.textures import on_device


class _Promised(Protocol):
    """The output that a job will have: ``scheduler.JobOutput``."""

    @property
    def job(self) -> Any: ...
    @property
    def name(self) -> str: ...


def is_array(value: Any) -> bool:
    """Whether it comes from the host."""
    return not (on_device(value) or _is_promised(value))


def _is_promised(value: Any) -> TypeGuard[_Promised]:
    return hasattr(value, "job") and hasattr(value, "name")


def check_inputs(gpu: Device, network: Any, inputs: Mapping[str, Any]) -> None:
    """:class:`InputError` where the network is not this device's, or one of these inputs is
    unknown, of another device, or of another shape or type than the network wants."""
    if not isinstance(network, GpuProgram):
        raise InputError(
            f"{network!r} is no network on a GPU: submit a cml.Session(graph, gpu) to the "
            "scheduler of the same cml.Gpu"
        )
    if network.gpu is not gpu:
        raise InputError(
            f"model '{network.name}' is on another cml.Gpu ({network.gpu.name}) than the scheduler "
            f"({gpu.name}): make both with the same one"
        )
    for name, value in inputs.items():
        check_input(gpu, network, name, value)


def check_input(gpu: Device, network: GpuProgram, name: str, value: Any) -> None:
    """As :func:`check_inputs`, for one of them."""
    place = network.plan.inputs.get(name)
    if place is None:
        known = ", ".join(network.plan.inputs) or "(none)"
        raise InputError(f"model '{network.name}' has no input '{name}'; it has {known}")
    if on_device(value):
        check_on_device(gpu, name, place.fact, value)
        refuse_own_memory(network, name, value)
        return
    if _is_promised(value):
        kind, found = "GPU tensor", _promised(gpu, name, value) or place.fact
    else:
        # sessions have checked its type before
        kind, found = "array", Fact(place.fact.dtype, tuple(np.shape(value)))
    if found != place.fact:
        raise InputError(f"input '{name}': wanted {place.fact}, got a {kind} {found}")


def _promised(gpu: Device, name: str, value: _Promised) -> Fact | None:
    """What the job's output is; None where the job has ended without any."""
    places = _outputs_of(gpu, value.job)
    if places is None:
        return None
    if not places:
        raise InputError(
            f"input '{name}': job '{value.job.name}' runs on another device. Read its output "
            "there, and give the array"
        )
    place = places.get(value.name)
    if place is None:
        raise InputError(
            f"input '{name}': job '{value.job.name}' has no output '{value.name}'; it has "
            f"{', '.join(places)}"
        )
    return place.fact


def _outputs_of(gpu: Device, job: Any) -> Mapping[str, TensorPlace] | None:
    """A job's outputs, of its network or, once it has ended, its own; {} on another device."""
    if isinstance(job.network, GpuProgram):
        return job.network.plan.results if job.network.gpu is gpu else {}
    if isinstance(job.result, Result):
        return job.result.places if job.result.memory.allocator is gpu.memory else {}
    return None if job.ended else {}
