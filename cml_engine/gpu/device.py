"""A device, its queue, and what is made once on it: pipelines, layouts, the allocator."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wgpu

from cml_engine.errors import DeviceError, InputError, ShaderCompileError
from cml_engine.errors.arguments import an_object, flag, text
from cml_engine.gpu.adapters import request_adapter
from cml_engine.gpu.frames.job_runs import JobRuns
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.native import (
    create_shader_module,
    device_errors,
    quicken_start,
    raise_if_lost,
    timestamp_period_ns,
    wait,
)
from cml_engine.gpu.pipelines import Pipeline, PipelineCache
from cml_engine.gpu.shaders.hlsl import ShaderKey
from cml_engine.gpu.shaders.stages import StageKey, compile_stage
from cml_engine.gpu.shaders.steps import Variant
from cml_engine.gpu.turns import turns
from cml_engine.ir.limits import Limits

if TYPE_CHECKING:
    from cml_engine.ir.memory import MemorySource

_log = logging.getLogger(__name__)
#: features taken where the adapter has them; none is required
_WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-encoders", "shader-f16", "subgroup")
#: limits raised to what the adapter can do
_WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
    "max-texture-array-layers",
)
#: what naga lacks, and what to write instead
_NAGA_HINTS = {
    "DotProduct": "write the dot() of integers out as a sum",
    "Int64": "64-bit integers are not available",
    "Float64": "double is not available: use float",
    "f64": "double is not available: use float",
    "DrawParameters": "write SV_VulkanVertexID and SV_VulkanInstanceID",
}
#: bytes of the slice uniform: first group, end group, row stride, padding
SLICE_BYTES = 16


class Device:
    """One device and its queue, as all of this package uses it; :class:`cml_engine.Gpu` is the
    one that users hold."""

    def __init__(
        self,
        device: wgpu.GPUDevice | None = None,
        *,
        memory: MemorySource | None = None,
        budget_bytes: int | None = None,
        adapter: str | None = None,
        markers: bool = False,
        debug_kernels: bool = False,
    ) -> None:
        if device is not None:
            an_object(wgpu.GPUDevice, device, "device")
        if adapter is not None:
            text(adapter, "adapter")
        if memory is not None and not callable(getattr(memory, "allocate", None)):
            raise InputError(f"memory: wanted a cml_engine.ir.memory.MemorySource, got {memory!r}")
        if device is not None and adapter is not None:
            raise InputError("a device and an adapter's name: give one of them")
        quicken_start()
        self.device: wgpu.GPUDevice = _request_device(adapter) if device is None else device
        #: whether operators are marked for debuggers of frames
        self.markers = flag(markers, "markers")
        #: whether what kernels print (CML_PRINT) is shown
        self.debug_kernels = flag(debug_kernels, "debug_kernels")
        self.queue: wgpu.GPUQueue = self.device.queue
        self.info: dict[str, Any] = dict(self.device.adapter.info)
        self.limits = _limits(self.device)
        self.has_timestamps = "timestamp-query" in self.device.features
        self.timestamp_period_ns = timestamp_period_ns(self.queue)
        self.dump_kernels: str | Path | None = os.environ.get("CML_DUMP_KERNELS") or None
        #: memory for networks and for the host's renderer (docs/faster.md)
        self.memory = Allocator(self.device, budget_bytes, source=memory)
        #: of frame schedulers
        self.runs = JobRuns()
        self._pipelines = PipelineCache()
        self._layouts: dict[tuple[int, int], wgpu.GPUBindGroupLayout] = {}

    @property
    def name(self) -> str:
        """Adapter and driver, as people know them."""
        return f"{self.info.get('device')} ({self.info.get('description')})"

    @property
    def pipelines_built(self) -> int:
        """The number of kernel variants that have been built on this device."""
        return self._pipelines.built

    def pipeline(self, key: Variant) -> Pipeline:
        """Returns the variant's pipeline, built at its first use. It lasts while the caller holds
        it; see :class:`PipelineCache`."""
        return self._pipelines.get(key, self._build)

    def shader(
        self,
        path: str | Path,
        stage: str,
        entry: str,
        defines: Mapping[str, int | str] | None = None,
        trusted: bool = False,
    ) -> wgpu.GPUShaderModule:
        """A shader of the host's renderer, in HLSL: the function ``entry`` of the file ``path``
        as a ``"vertex"``, ``"fragment"`` or ``"compute"`` stage. In the module the entry point is
        called ``"main"``. Compiled once per machine, as the kernels are.

        Bindings are ``[[vk::binding(binding, group)]]``; the number of a vertex is
        ``SV_VulkanVertexID``, of an instance ``SV_VulkanInstanceID``, and loops are written
        without ``continue``. ``trusted`` leaves out the runtime checks of bounds and loops.
        :class:`ShaderCompileError` says what the compiler, or wgpu, does not take.
        """
        key = StageKey(Path(path), stage, entry, tuple(sorted((defines or {}).items())))
        return self._create_module(key.label, compile_stage(key), trusted, str(path))

    @device_errors()
    def wait(self) -> None:
        """Block until the GPU has done all that was submitted. For tools that measure: a game
        never waits."""
        wait(self.device)
        turns.gpu_is_done()

    @device_errors()
    def _build(self, key: Variant) -> Pipeline:
        start = time.perf_counter()
        if self.dump_kernels is not None:
            from cml_engine.gpu.shaders.dump import dump_kernel

            dump_kernel(key, self.dump_kernels)
        module = self._module(key)
        layout = self._layout(key.tensors, key.params_bytes)
        try:
            built = self.device.create_compute_pipeline(
                label=key.label,
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        except (wgpu.GPUError, RuntimeError) as error:
            raise_if_lost(error)
            raise DeviceError(f"the driver refused kernel '{key.label}': {error}") from error
        _log.debug("kernel '%s' built in %.0f ms", key.label, _ms_since(start))
        return Pipeline(key.label, built, layout)

    def _module(self, key: Variant) -> wgpu.GPUShaderModule:
        named = str(key.path) if isinstance(key, ShaderKey) else key.label
        return self._create_module(key.label, key.code(), key.trusted, named)

    def _create_module(
        self, label: str, code: bytes | str, trusted: bool, path: str
    ) -> wgpu.GPUShaderModule:
        try:
            return create_shader_module(self.device, label, code, trusted)
        except (wgpu.GPUError, RuntimeError) as error:
            raise_if_lost(error)
            hint = next((f"; {h}" for word, h in _NAGA_HINTS.items() if word in str(error)), "")
            raise ShaderCompileError(
                f"kernel '{path}' compiles, but wgpu does not take it: {_reason(error)}{hint}"
            ) from error

    def _layout(self, tensors: int, params_bytes: int) -> wgpu.GPUBindGroupLayout:
        """Bindings of every kernel: slice (dynamic offset), parameters, then the tensors, all
        read-write: one arena may then hold inputs and outputs of the same dispatch."""
        found = self._layouts.get((tensors, params_bytes))
        if found is None:
            uniform = {"type": "uniform", "min_binding_size": SLICE_BYTES}
            entries: list[dict[str, Any]] = [
                _entry(0, {**uniform, "has_dynamic_offset": True}),
                _entry(1, {"type": "uniform", "min_binding_size": params_bytes}),
            ]
            entries += [_entry(i + 2, {"type": "storage"}) for i in range(tensors)]
            found = self.device.create_bind_group_layout(entries=entries)
            self._layouts[tensors, params_bytes] = found
        return found


def _reason(error: Exception) -> str:
    """What an error of wgpu's is about, without the call that it begins with."""
    return str(error).partition("Caused by:")[2].strip() or str(error)


def _ms_since(start: float) -> float:
    return 1e3 * (time.perf_counter() - start)


def _entry(binding: int, buffer: dict[str, Any]) -> dict[str, Any]:
    return {"binding": binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": buffer}


def _request_device(name: str | None) -> wgpu.GPUDevice:
    adapter = request_adapter(name)
    features = [f for f in _WANTED_FEATURES if f in adapter.features]
    limits = {name: adapter.limits[name] for name in _WANTED_LIMITS if name in adapter.limits}
    try:
        return adapter.request_device_sync(
            label="cml", required_features=features, required_limits=limits
        )
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"the GPU gave no device: {error}") from error


def _limits(device: wgpu.GPUDevice) -> Limits:
    limits = device.limits
    software = str(device.adapter.info.get("adapter_type")) == "CPU"
    return Limits(
        software=software,
        subgroup_size=_subgroup_size(device),
        storage_offset_alignment=limits["min-storage-buffer-offset-alignment"],
        uniform_offset_alignment=limits["min-uniform-buffer-offset-alignment"],
        max_binding_bytes=limits["max-storage-buffer-binding-size"],
        max_buffer_bytes=limits["max-buffer-size"],
        max_groups_per_dimension=limits["max-compute-workgroups-per-dimension"],
        max_group_threads=limits["max-compute-invocations-per-workgroup"],
        max_group_storage=limits["max-compute-workgroup-storage-size"],
        max_storage_buffers=limits["max-storage-buffers-per-shader-stage"],
    )


def _subgroup_size(device: wgpu.GPUDevice) -> int:
    """The least size that a subgroup has. llvmpipe states a range, yet always takes the vectors
    that its name tells: ``llvmpipe (LLVM 15.0.6, 256 bits)`` is eight lanes."""
    if "subgroup" not in device.features:
        return 0
    info = device.adapter.info
    vector = re.search(r"llvmpipe.*\b(\d+) bits", str(info.get("device")))
    if vector:
        return int(vector[1]) // 32
    # wgpu-py 0.32 misspells the key
    return int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 0)
