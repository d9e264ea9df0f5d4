"""The device, tensors in its memory, and what of its memory is in use."""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu as Gpu
    from cml_engine.gpu.memory.tensors import GpuTensor as GpuTensor
    from cml_engine.ir.memory import (
        HeapStats as HeapStats,
        Holding as Holding,
        MemoryRange as MemoryRange,
        MemorySource as MemorySource,
        MemoryStats as MemoryStats,
        mib as mib,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "cml_engine.gpu.gpu": "Gpu",
            "cml_engine.gpu.memory.tensors": "GpuTensor",
            "cml_engine.ir.memory": "HeapStats Holding MemoryRange MemorySource MemoryStats mib",
        },
    )
