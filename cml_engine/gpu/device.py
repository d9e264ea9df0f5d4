"""A device and its queue, with the pipelines, layouts and allocator created for it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import wgpu

from cml_engine.errors import CmlError, DeviceError, InputError, ShaderCompileError
from cml_engine.errors.arguments import check_flag, check_instance, check_path, check_text
from cml_engine.gpu.driver_functions import has_ieee_functions
from cml_engine.gpu.frames.job_runs import JobRuns
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.native import (
    create_shader_module,
    device_errors,
    dispatch_of,
    dispatch_recorder,
    limit_instance,
    quicken_start,
    raise_if_lost,
    reason_of,
    timestamp_period_ns,
    wait,
)
from cml_engine.gpu.shaders.cache import Code, driver_file
from cml_engine.gpu.shaders.hlsl import ShaderKey, Variant, compile_stage
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.frame_gate import frame_gate
from cml_engine.io.json_files import Json
from cml_engine.ir.limits import Limits

if TYPE_CHECKING:
    from cml_engine.ir.memory import MemorySource


NO_GPU_HINT = (
    "Install the current driver of the graphics card, for Vulkan or D3D12 (on Debian: apt install "
    "mesa-vulkan-drivers gives a software one), "
    'or run without one: cml.Session(graph, "cpu"), --backend cpu.'
)
#: environment variable that selects a device for every command and program
VARIABLE = "CML_ADAPTER"


def adapters() -> list[wgpu.GPUAdapter]:
    """Returns all adapters that Vulkan, D3D12 and Metal offer."""
    limit_instance()
    return list(wgpu.gpu.enumerate_adapters_sync())


def adapter_name(adapter: wgpu.GPUAdapter) -> str:
    """Returns an adapter's name as one text: ``device (driver), graphics API``."""
    info = adapter.info
    return f"{info.get('device')} ({info.get('description')}), {info.get('backend_type')}"


def request_adapter(name: str | None) -> wgpu.GPUAdapter:
    """Returns the first adapter whose :func:`adapter_name` contains ``name``, ignoring case.

    Without a name, the environment's ``CML_ADAPTER`` applies, else the fastest adapter is returned.
    Raises :class:`DeviceError` if there is none.
    """
    requested = name or os.environ.get(VARIABLE)
    if requested:
        return _named(requested)
    limit_instance()
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2].strip()  # wgpu's own words are above it
        raise DeviceError(f"no GPU: {reason}. {NO_GPU_HINT}") from None
    if adapter is None:
        raise DeviceError(f"no GPU. {NO_GPU_HINT}")
    return adapter


def _named(name: str) -> wgpu.GPUAdapter:
    candidates = adapters()
    for adapter in candidates:
        if name.lower() in adapter_name(adapter).lower():
            return adapter
    names = "; ".join(map(adapter_name, candidates)) or f"none. {NO_GPU_HINT}"
    raise DeviceError(f"no GPU is called '{name}': this machine has {names}")


def device_rows() -> list[dict[str, Json]]:
    """Returns one JSON-compatible dict per adapter, with its name, kind, limits and features.

    ``chosen`` is True for the adapter that ``cml.Gpu()`` takes.
    """
    try:
        chosen = adapter_name(request_adapter(None))
    except DeviceError:
        chosen = ""
    rows = []
    for adapter in adapters():
        name, limits = adapter_name(adapter), adapter.limits
        rows.append(
            {
                "name": name,
                "kind": str(adapter.info.get("adapter_type")),
                "backend": str(adapter.info.get("backend_type")),
                "buffer_mib": limits["max-buffer-size"] >> 20,
                "binding_mib": limits["max-storage-buffer-binding-size"] >> 20,
                "timestamps": "timestamp-query" in adapter.features,
                "subgroups": "subgroup" in adapter.features,
                "chosen": name == chosen,
            }
        )
    return rows


#: pipelines kept for later networks; one takes 2 to 5 MB on llvmpipe
_CACHED_PIPELINES = 128


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Pipeline:
    """A kernel variant built for a device: its compute pipeline and bind group layout."""

    label: str
    pipeline: wgpu.GPUComputePipeline
    layout: wgpu.GPUBindGroupLayout


class PipelineCache:
    """A cache that builds each pipeline once, even if several threads request it.

    It keeps the ``capacity`` pipelines requested last. Any other lasts as long as a program
    references it.
    """

    def __init__(self, capacity: int = _CACHED_PIPELINES) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._recent: OrderedDict[Variant, Pipeline] = OrderedDict()
        self._alive: WeakValueDictionary[Variant, Pipeline] = WeakValueDictionary()
        self._building: dict[Variant, Future[Pipeline]] = {}
        #: pipelines built so far
        self.built = 0

    def __len__(self) -> int:
        return len(self._alive)

    def get(self, key: Variant, build: Callable[[], Pipeline]) -> Pipeline:
        """Returns the variant's pipeline; calls ``build`` if it does not exist.

        If another thread is building it, the caller waits for that build and its error. After a
        failure the next caller builds it again.
        """
        new_build: Future[Pipeline] = Future()
        with self._lock:
            existing = self._alive.get(key)
            if existing is not None:
                self._keep(key, existing)
                return existing
            current_build = self._building.setdefault(key, new_build)
        if current_build is new_build:
            try:
                pipeline = build()
            except BaseException as error:
                with self._lock:
                    del self._building[key]
                new_build.set_exception(error)
            else:
                with self._lock:
                    del self._building[key]
                    self._alive[key] = pipeline
                    self._keep(key, pipeline)
                    self.built += 1
                new_build.set_result(pipeline)
        return current_build.result()

    def _keep(self, key: Variant, pipeline: Pipeline) -> None:
        self._recent[key] = pipeline
        self._recent.move_to_end(key)
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)


_log = logging.getLogger(__name__)
#: optional features, enabled if the adapter has them
_OPTIONAL_FEATURES = (
    "timestamp-query",
    "timestamp-query-inside-encoders",
    "shader-f16",
    "shader-int64",
    "subgroup",
)
#: NVIDIA's number among vendors of PCI devices
_NVIDIA = 0x10DE
#: limits raised to the adapter's maximum
_RAISED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
    "max-texture-array-layers",
)
#: what wgpu refuses in kernels, by words of its message, and the replacements
_HINTS = {
    "DotProduct": "write the dot() of integers out as a sum",
    "`f16` extension": "the device lacks shader-f16: make half an alternative of a float kernel, "
    "with a cost of None where op.limits.half_arithmetic is False",
    "Int64": "64-bit integers are not available",
    "Float64": "double is not available: use float",
    "f64": "double is not available: use float",
    "missing from the pipeline layout": "a kernel binds its operator's tensors only: make what its "
    "own texture, buffer or sampler holds an input",
    "DrawParameters": "write SV_VulkanVertexID and SV_VulkanInstanceID",
}
#: bytes of the slice uniform: first group, end group, row stride, padding
SLICE_BYTES = 16
#: ranges of workgroups that one submit may hold
RANGE_SLOTS = 256
#: bytes of each tensor in an empty dispatch: more than an element of any type
_EMPTY_DISPATCH_BYTES = 1 << 16
#: returns the slice and the parameters of a dispatch
MakeUniforms = Callable[[], Sequence[bytes]]


class Device:
    """A wgpu device with its queue, its memory allocator and the pipelines built on it.

    Code within this package uses this class. The public subclass is :class:`cml_engine.Gpu`.
    """

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
            check_instance(wgpu.GPUDevice, device, "device")
        if adapter is not None:
            check_text(adapter, "adapter")
        if memory is not None and not callable(getattr(memory, "allocate", None)):
            raise InputError(f"memory: wanted a cml_engine.ir.memory.MemorySource, got {memory!r}")
        if device is not None and adapter is not None:
            raise InputError("a device and an adapter's name: give one of them")
        quicken_start()
        self.device: wgpu.GPUDevice = (
            _request_device(request_adapter(adapter)) if device is None else device
        )
        #: True if every operator is put into a debug group
        self.markers = check_flag(markers, "markers")
        #: True if the output of CML_PRINT in kernels is shown
        self.debug_kernels = check_flag(debug_kernels, "debug_kernels")
        self.queue: wgpu.GPUQueue = self.device.queue
        self.info: dict[str, object] = dict(self.device.adapter.info)
        self.limits = _limits(self.device)
        self.has_timestamps = "timestamp-query" in self.device.features
        self.timestamp_period_ns = timestamp_period_ns(self.queue)
        self.dump_kernels: str | Path | None = os.environ.get("CML_DUMP_KERNELS") or None
        #: memory for networks and for the host's renderer (docs/faster.md)
        self.memory = Allocator(self.device, budget_bytes, source=memory)
        #: the latest runs of the frame schedulers
        self.runs = JobRuns()
        self._pipelines = PipelineCache()
        self._layouts: dict[tuple[int, int], wgpu.GPUBindGroupLayout] = {}
        #: idle devices of :meth:`_compile_in_driver`
        self._compiling_devices: list[Device] = []

    @property
    def name(self) -> str:
        """A text with the names of the adapter and its driver."""
        return f"{self.info.get('device')} ({self.info.get('description')})"

    @property
    def pipelines_built(self) -> int:
        """The number of kernel variants that have been built on this device."""
        return self._pipelines.built

    @cached_property
    def has_ieee_functions(self) -> bool:
        """True if exp and log of the driver are right for NaN, zero and negative numbers."""
        return has_ieee_functions(self.device.adapter, self.name)

    def pipeline(self, key: Variant, make_uniforms: MakeUniforms) -> Pipeline:
        """Returns the compute pipeline of a kernel variant, built at its first use.

        ``make_uniforms`` returns the slice and the parameters of a dispatch: a software driver may
        insert their values into the code. The pipeline lasts while the caller references it; see
        :class:`PipelineCache`.
        """
        return self._pipelines.get(key, lambda: self._build(key, make_uniforms))

    def _compile_in_driver(self, key: Variant, code: Code, uniforms: Sequence[bytes]) -> None:
        """Makes a software driver compile a kernel now, and not at its first dispatch.

        llvmpipe compiles at the first dispatch, in one thread per device, and stores the code on
        disk. An empty dispatch on another device fills that store, in as many threads as call
        this method. Failures are ignored: the first dispatch is only slower then.
        """
        marker = driver_file(code, self.name)
        if marker.exists():
            return
        with contextlib.suppress(wgpu.GPUError, CmlError, OSError):
            try:
                helper = self._compiling_devices.pop()
            except IndexError:
                helper = Device(_request_device(self.device.adapter))
            helper._dispatch_nothing(helper._create_pipeline(key, code), key.tensors, uniforms)
            self._compiling_devices.append(helper)
            write_atomically(marker, b"")

    def _dispatch_nothing(
        self, pipeline: Pipeline, tensors: int, uniforms: Sequence[bytes]
    ) -> None:
        """Submits a dispatch of no workgroups and waits for it."""
        storage = self.device.create_buffer(
            size=_EMPTY_DISPATCH_BYTES, usage=wgpu.BufferUsage.STORAGE
        )
        buffers = [
            self.device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.UNIFORM)
            for data in uniforms
        ]
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate([*buffers, *[storage] * tensors])
        ]
        group = self.device.create_bind_group(layout=pipeline.layout, entries=entries)
        with submitted_pass(self.device) as compute:
            dispatch_recorder()(compute, [dispatch_of(pipeline.pipeline, group, (0,), 0, 1)])
        wait(self.device)

    def shader(
        self,
        path: str | Path,
        stage: str,
        entry: str,
        defines: Mapping[str, int | str] | None = None,
        trusted: bool = False,
    ) -> wgpu.GPUShaderModule:
        """Compiles a shader of the host's renderer from HLSL and returns its module.

        ``entry`` is a function of the file ``path``; ``stage`` is ``"vertex"``, ``"fragment"``
        or ``"compute"``. In the module the entry point is called ``"main"``. The code is
        compiled once per machine, like the kernels.

        Bindings are ``[[vk::binding(binding, group)]]``. The index of a vertex is
        ``SV_VulkanVertexID``, of an instance ``SV_VulkanInstanceID``. Loops must not use
        ``continue``. ``trusted`` omits the runtime checks of bounds and loops. Raises
        :class:`ShaderCompileError` if the compiler or wgpu rejects the shader.
        """
        file = check_path(path, "the file of a shader")
        code = compile_stage(file, stage, check_text(entry, "entry"), defines or {})
        return self._create_module(f"{file.name}:{entry}", code, trusted, str(path))

    @device_errors()
    def wait(self) -> None:
        """Blocks until the GPU has finished all submitted work.

        For tools that measure; a game never waits.
        """
        wait(self.device)
        frame_gate.gpu_is_done()

    @device_errors()
    def _build(self, key: Variant, make_uniforms: MakeUniforms) -> Pipeline:
        start = time.perf_counter()
        if self.dump_kernels is not None:
            from cml_engine.gpu.shaders.dump import dump_kernel

            dump_kernel(key, self.dump_kernels)
        code = key.code()
        pipeline = self._create_pipeline(key, code)
        if self.limits.software:
            self._compile_in_driver(key, code, make_uniforms())
        _log.debug("kernel '%s' built in %.0f ms", key.label, _ms_since(start))
        return pipeline

    def _create_pipeline(self, key: Variant, code: Code) -> Pipeline:
        named = str(key.path) if isinstance(key, ShaderKey) else key.label
        module = self._create_module(key.label, code, key.trusted, named)
        layout = self._layout(key.tensors, key.params_bytes)
        try:
            built = self.device.create_compute_pipeline(
                label=key.label,
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        except (wgpu.GPUError, RuntimeError) as error:
            raise_if_lost(error)
            reason = f"{error}{_hint(error)}"
            raise DeviceError(f"the driver refused kernel '{key.label}': {reason}") from error
        return Pipeline(key.label, built, layout)

    def _create_module(
        self, label: str, code: Code, trusted: bool, path: str
    ) -> wgpu.GPUShaderModule:
        try:
            return create_shader_module(self.device, label, code, trusted)
        except (wgpu.GPUError, RuntimeError) as error:
            raise_if_lost(error)
            raise ShaderCompileError(
                f"kernel '{path}' compiles, but wgpu does not take it: "
                f"{reason_of(error)}{_hint(error)}"
            ) from error

    def _layout(self, tensors: int, params_bytes: int) -> wgpu.GPUBindGroupLayout:
        """Returns the bind group layout of kernels with this number of tensors and parameter bytes.

        The bindings are the slice (dynamic offset), the parameters, then the tensors. All
        tensors are read-write, so that one arena can contain inputs and outputs of the same
        dispatch.
        """
        layout = self._layouts.get((tensors, params_bytes))
        if layout is None:
            uniform = {"type": "uniform", "min_binding_size": SLICE_BYTES}
            entries: list[dict[str, object]] = [
                _entry(0, {**uniform, "has_dynamic_offset": True}),
                _entry(1, {"type": "uniform", "min_binding_size": params_bytes}),
            ]
            entries += [_entry(i + 2, {"type": "storage"}) for i in range(tensors)]
            layout = self.device.create_bind_group_layout(entries=entries)
            self._layouts[tensors, params_bytes] = layout
        return layout


@contextlib.contextmanager
def submitted_pass(device: wgpu.GPUDevice, label: str = "") -> Iterator[wgpu.GPUComputePassEncoder]:
    """A compute pass in an encoder of its own, which is submitted at the end of the block."""
    encoder = device.create_command_encoder(label=label)
    compute = encoder.begin_compute_pass(label=label)
    yield compute
    compute.end()
    device.queue.submit([encoder.finish()])


def _hint(error: Exception) -> str:
    """Returns what to write instead, behind a semicolon; "" if the message is not known."""
    return next((f"; {hint}" for words, hint in _HINTS.items() if words in str(error)), "")


def _ms_since(start: float) -> float:
    return 1e3 * (time.perf_counter() - start)


def _entry(binding: int, buffer: dict[str, object]) -> dict[str, object]:
    return {"binding": binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": buffer}


def _request_device(adapter: wgpu.GPUAdapter) -> wgpu.GPUDevice:
    features = [f for f in _OPTIONAL_FEATURES if f in adapter.features]
    limits = {name: adapter.limits[name] for name in _RAISED_LIMITS if name in adapter.limits}
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
        scalar_loads=device.adapter.info.get("vendor_id") != _NVIDIA,
        subgroup_size=_subgroup_size(device),
        half_arithmetic="shader-f16" in device.features,
        int64="shader-int64" in device.features,
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
    """Returns the minimum subgroup size; 0 if subgroups are not supported.

    llvmpipe reports a range, but always uses the vector width in its name:
    ``llvmpipe (LLVM 15.0.6, 256 bits)`` has eight lanes.
    """
    if "subgroup" not in device.features:
        return 0
    info = device.adapter.info
    vector = re.search(r"llvmpipe.*\b(\d+) bits", str(info.get("device")))
    if vector:
        return int(vector[1]) // 32
    # wgpu-py 0.32 misspells the key
    return int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 0)
