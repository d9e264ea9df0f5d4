"""The GPU to compute on: a device of our own, or the one that the engine renders with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.executor import FrameExecutor
from cml_engine.gpu.memory.tensors import GpuTensor, tensor_in
from cml_engine.gpu.textures.pipelines import kernels_of
from cml_engine.gpu.timing.frame_timer import FrameTimer
from cml_engine.ir.graph import Fact

if TYPE_CHECKING:
    import wgpu


class Gpu(Device):
    """A GPU on which networks run: one wgpu device with its queue and its memory.

    If ``dump_kernels`` is set to a folder, every pipeline built from then on writes its sources
    there (``cml_engine/gpu/shaders/dump.py``). Its initial value is the environment's
    ``CML_DUMP_KERNELS``.

    Parameters
    ----------
    device : the host's own ``wgpu.GPUDevice``, used as it is, with its features and limits. By
        default a device is requested; :class:`DeviceError` if there is none.
    memory : the host's own allocator (:class:`cml_engine.ir.memory.MemorySource`); by default the
        engine's heaps.
    budget_bytes : the limit of all memory on this device, enforced by :attr:`memory`.
    adapter : a part of the name of the GPU to use, as ``cml devices`` lists them; by default the
        environment's ``CML_ADAPTER``, else the fastest GPU.
    markers : put every operator into a debug group of its name, for RenderDoc, PIX and Nsight.
    debug_kernels : make ``Session.run`` write the output of ``CML_PRINT("label", value)`` in
        kernels to standard error; otherwise the macro is empty (docs/custom_operators.md). Slow.

    Examples
    --------
    >>> gpu = cml.Gpu()  # or cml.Gpu(device=engine_device)
    >>> session = cml.Session(graph, gpu)
    """

    def __repr__(self) -> str:
        return f"<Gpu '{self.name}'>"

    def executor(self) -> FrameExecutor:
        """Returns an executor, with which a ``FrameScheduler`` uses this device."""
        return FrameExecutor(self)

    def frame_timer(self, names: Sequence[str], every: int = 1) -> FrameTimer:
        """Returns a new timer of the host's own passes with these names; the timer never blocks.

        It measures one frame in ``every``.
        """
        return FrameTimer(self, names, every=every)

    def tensor(self, buffer: wgpu.GPUBuffer, offset: int, fact: Fact) -> GpuTensor:
        """Returns a range of the host's ``wgpu.GPUBuffer`` as an input for a run or a job.

        The range contains row-major 32-bit elements from byte ``offset`` on, a multiple of 4.
        The buffer needs the usage ``COPY_SRC``. ``Session.run`` or the job of
        ``FrameScheduler.submit`` reads the range when it begins, and the content must stay until
        then. Raises :class:`InputError` if the tensor does not fit.
        """
        return tensor_in(self.device, buffer, offset, fact)

    def build_texture_kernels(self) -> None:
        """Builds the kernels that read and write textures now, for a loading screen; blocks.

        Otherwise the first job that reads a texture waits some frames, and the first copy to a
        texture takes long.
        """
        kernels_of(self).build(self)
