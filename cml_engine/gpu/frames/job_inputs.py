"""Checks of the inputs of a frame scheduler's job, made before the job is queued."""

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
    """A future output of a job (``scheduler.JobOutput``)."""

    @property
    def job(self) -> Any: ...
    @property
    def name(self) -> str: ...


def is_array(value: object) -> bool:
    """Returns True if the value is a host array: neither a GPU value nor a job's future output."""
    return not (on_device(value) or _is_promised(value))


def _is_promised(value: object) -> TypeGuard[_Promised]:
    return hasattr(value, "job") and hasattr(value, "name")


def check_inputs(gpu: Device, network: object, inputs: Mapping[str, object]) -> None:
    """Raises :class:`InputError` if the network or one of the inputs does not fit the device.

    The network must belong to ``gpu``. Each input must exist, lie on the host or on ``gpu``, and
    have the network's shape and type.
    """
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


def check_input(gpu: Device, network: GpuProgram, name: str, value: object) -> None:
    """Raises :class:`InputError` if one input of :func:`check_inputs` does not fit the network."""
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
        # sessions check the element type beforehand
        kind, found = "array", Fact(place.fact.dtype, np.asarray(value).shape)
    if found != place.fact:
        raise InputError(f"input '{name}': wanted {place.fact}, got a {kind} {found}")


def _promised(gpu: Device, name: str, value: _Promised) -> Fact | None:
    """Returns the shape and type of a job's future output; None if the job ended without a result.

    Raises :class:`InputError` if the job is on another device or has no such output.
    """
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
    """Returns the outputs of a job by name.

    They come from the job's network, or from its result once it has ended. Returns {} for a job of
    another device, None for a job that ended without a result.
    """
    if isinstance(job.network, GpuProgram):
        return job.network.plan.results if job.network.gpu is gpu else {}
    if isinstance(job.result, Result):
        return job.result.places if job.result.memory.allocator is gpu.memory else {}
    return None if job.ended else {}
