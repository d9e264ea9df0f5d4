"""A GPU to compute on: our own device, or the one that the engine renders with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.executor import FrameExecutor
from cml_engine.gpu.memory.tensors import GpuTensor, tensor_in
from cml_engine.gpu.textures.kernels import kernels_of
from cml_engine.gpu.timing.frame_timer import FrameTimer
from cml_engine.ir.graph import Fact


class Gpu(Device):
    """One device and its queue.

    Set ``dump_kernels`` to a folder and every pipeline built from then on leaves its sources
    there (``cml_engine/gpu/shaders/dump.py``); it begins as the environment's ``CML_DUMP_KERNELS``.

    Parameters
    ----------
    device : the host's own ``wgpu.GPUDevice``, which is used as it is, with the features and
        limits it was made with. Without it a device is requested; :class:`DeviceError` if there
        is none.
    memory : the host's own allocator (:class:`cml_engine.ir.memory.MemorySource`); without it our
        heaps.
    budget_bytes : the most memory that everything here may take; :attr:`memory` keeps it.
    adapter : a part of the name of the GPU to take, as ``cml devices`` shows them; without it the
        environment's ``CML_ADAPTER``, else the fastest.
    markers : put every operator into a debug group of its name, for RenderDoc, PIX and Nsight.
    debug_kernels : have ``Session.run`` write to standard error what kernels say with
        ``CML_PRINT("label", value)``, which else is nothing (docs/custom_operators.md). Slow.
    """

    def executor(self) -> FrameExecutor:
        """What a :class:`scheduler.FrameScheduler` runs networks with on this device."""
        return FrameExecutor(self)

    def frame_timer(self, names: Sequence[str], every: int = 1) -> FrameTimer:
        """Times the host's own passes, by these names, without ever waiting, in one frame of
        ``every``."""
        return FrameTimer(self, names, every=every)

    def tensor(self, buffer: Any, offset: int, fact: Fact) -> GpuTensor:
        """A range of the host's own ``wgpu.GPUBuffer`` as an input of ``Session.run`` or
        ``FrameScheduler.submit``: plain row-major 32-bit words from byte ``offset`` on, a multiple
        of 4, in a buffer with ``COPY_SRC``. It is read when the run, or the job, begins, and must
        stay until then. :class:`InputError` where it does not fit."""
        return tensor_in(self.device, buffer, offset, fact)

    def build_texture_kernels(self) -> None:
        """Build now what reads textures and writes them: for a loading screen. Without it the first
        job that reads a texture waits some frames, and the first copy into one takes long."""
        kernels_of(self).build(self)
