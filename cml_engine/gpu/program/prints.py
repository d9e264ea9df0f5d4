"""Runs steps whose kernels use ``CML_PRINT`` and shows the output, with ``debug_kernels``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
import wgpu

from cml_engine.compiler.plan import Plan, Step
from cml_engine.errors import DeviceError
from cml_engine.gpu.device import RANGE_SLOTS, Device, submitted_pass
from cml_engine.gpu.memory.allocator import BufferRange
from cml_engine.gpu.program.memory import TENSOR_USAGE
from cml_engine.gpu.shaders.hlsl import ShaderKey, Variant, print_labels, printing
from cml_engine.gpu.shaders.prints import NBYTES, format_records

#: the most lines shown per step and run
_MOST_LINES = 1024
_log = logging.getLogger(__name__)


class Prints:
    """The buffer into which a program's kernels print; one step at a time uses it.

    The memory is freed with this object.
    """

    def __init__(self, plan: Plan, gpu: Device, labels: Mapping[int, list[str]]) -> None:
        self._name, self._gpu, self._labels = plan.name, gpu, labels
        self._warned = False
        self._memory = gpu.memory.allocate(
            NBYTES, TENSOR_USAGE, owner=plan.name, category="staging"
        )
        self._memory.free_with_owner(self)

    @classmethod
    def of(cls, plan: Plan, gpu: Device, keys: Sequence[Variant]) -> Prints | None:
        """Returns the buffer for the steps whose kernels print; None if no kernel prints."""
        labels = {
            step.index: print_labels(key)
            for step, key in zip(plan.steps, keys, strict=True)
            if isinstance(key, ShaderKey) and key.prints
        }
        if not labels:
            _log.info("'%s': none of its kernels names CML_PRINT", plan.name)
            return None
        return cls(plan, gpu, labels)

    def __contains__(self, step: int) -> bool:
        return step in self._labels

    @property
    def binding(self) -> BufferRange:
        """The buffer as a bind group's resource."""
        return self._memory.binding()

    def run(
        self, step: Step, encode: Callable[[wgpu.GPUComputePassEncoder, int, int, int], None]
    ) -> None:
        """Submits the whole step, waits, and writes the output of its kernel to stderr.

        ``encode(pass, step, first, count)`` records a range of workgroups. The step runs in
        ranges, so that the output of the first workgroups is kept if the buffer overflows.
        """
        self._memory.write(bytes(4))
        count = -(-step.groups // RANGE_SLOTS)
        with submitted_pass(self._gpu.device, self._name) as compute:
            for first in range(0, step.groups, count):
                encode(compute, step.index, first, min(count, step.groups - first))
        data = self._gpu.queue.read_buffer(self._memory.buffer, self._memory.offset, NBYTES)
        self._show(step, np.frombuffer(data, np.uint32))

    def _show(self, step: Step, data: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        location = f" ({step.source})" if step.source else ""
        lines = list(islice(format_records(data, self._labels[step.index]), _MOST_LINES))
        if omitted := int(data[0]) - len(lines):
            lines.append(f"and {omitted:,} more".replace(",", " "))
        sys.stderr.writelines(f"{self._name} {step.title}{location} {line}\n" for line in lines)

    def not_in_frames(self) -> None:
        """Warns once that a program run by a scheduler shows no kernel output."""
        if not self._warned:
            self._warned = True
            _log.warning("'%s': what kernels print is shown of Session.run only", self._name)


def printing_keys(plan: Plan, gpu: Device, keys: Sequence[Variant]) -> list[Variant]:
    """Returns the variants in order, with printing enabled for the kernels that use ``CML_PRINT``.

    Raises :class:`DeviceError` if a printing kernel binds more buffers than the device allows.
    """
    variants = [printing(key) if isinstance(key, ShaderKey) else key for key in keys]
    for step, key in zip(plan.steps, variants, strict=True):
        if key.tensors > gpu.limits.max_storage_buffers:
            raise DeviceError(
                f"{step.title}: its kernel binds {key.tensors - 1} tensors, and CML_PRINT wants a "
                f"buffer more; {gpu.name} binds {gpu.limits.max_storage_buffers} at most. Run it "
                "without debug_kernels",
                step.source,
            )
    return variants
