"""Access to wgpu-native features that wgpu-py does not expose. No other module does this."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, wraps
from typing import Any, ClassVar, ParamSpec, TypeAlias, TypeVar

import wgpu

from cml_engine.errors import DeviceError

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


def create_shader_module(
    device: wgpu.GPUDevice, label: str, code: bytes | str, trusted: bool
) -> wgpu.GPUShaderModule:
    """Returns a shader module of SPIR-V or WGSL; ``trusted`` omits naga's runtime checks.

    By default naga adds a counter to every loop and clamps every access. The engine's kernels are
    tested to stay within bounds, and the checks would make them 2-3x slower
    (docs/design/performance.md). If wgpu-native offers no trusted modules, the checks stay.
    """
    if trusted:
        try:
            return _trusted(device, label, code)
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            _log.warning("trusted shader modules are not available (%s): slower kernels", error)
    return device.create_shader_module(label=label, code=code)


def _trusted(device: wgpu.GPUDevice, label: str, code: bytes | str) -> wgpu.GPUShaderModule:
    from wgpu.backends.wgpu_native import _api

    api: Any = _api
    if isinstance(code, str):
        source = _wgsl_source(api, code)
    else:
        buffer = api.ffi.new("uint8_t[]", code)  # must live until the module is created
        source = _spirv_source(api, buffer, len(code) // 4)
    descriptor = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
        label=api.to_c_string_view(label),
    )
    no_checks = 0
    module = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, no_checks)
    return api.GPUShaderModule(label, module, device)


def _spirv_source(api: Any, buffer: Any, count: int) -> Any:
    code = api.ffi.cast("uint32_t *", buffer)
    source = api.new_struct_p("WGPUShaderSourceSPIRV *", codeSize=count, code=code)
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceSPIRV
    return source


def _wgsl_source(api: Any, text: str) -> Any:
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(text))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
    return source


#: the handles of a pipeline and of bind group 0, the number of its dynamic offsets and a pointer
#: to them, the columns and rows of workgroups, and a label or None; the caller keeps the pipeline
#: and the group alive
Dispatch: TypeAlias = tuple[Any, Any, int, Any, int, int, Any]
#: a source buffer and a byte offset in it, a target buffer and an offset, and a number of bytes
Copy: TypeAlias = tuple[wgpu.GPUBuffer, int, wgpu.GPUBuffer, int, int]


def dispatch_of(
    pipeline: wgpu.GPUComputePipeline,
    bind_group: wgpu.GPUBindGroup,
    offsets: tuple[int, ...],
    columns: int,
    rows: int,
    label: Any = None,
) -> Dispatch:
    """Returns a dispatch for a recorder; ``label`` of :func:`string_view` is a debug group."""
    handles = pipeline._internal, bind_group._internal
    return *handles, len(offsets), _pointer_to(offsets), columns, rows, label


@lru_cache(4096)
def _pointer_to(offsets: tuple[int, ...]) -> Any:
    from wgpu.backends.wgpu_native import ffi

    return ffi.new("uint32_t[]", offsets)


def string_view(text: str) -> Any:
    """Returns a text as wgpu-native takes it."""
    from wgpu.backends.wgpu_native import _api

    return _api.to_c_string_view(text)


@cache
def dispatch_recorder() -> Callable[[wgpu.GPUComputePassEncoder, Iterable[Dispatch]], None]:
    """Returns ``record(compute, dispatches)``, which records dispatches and raises wgpu's errors.

    wgpu-py makes three calls for each dispatch, and looks for errors in each of them.
    """

    def record(compute: wgpu.GPUComputePassEncoder, dispatches: Iterable[Dispatch]) -> None:
        _record(compute._internal, dispatches)

    return _raising(record)


@cache
def pass_recorder() -> Callable[[wgpu.GPUCommandEncoder, Any, Iterable[Dispatch]], None]:
    """Returns ``record(encoder, description, dispatches)``, which records a whole compute pass.

    The description is one of :func:`describe_pass`. wgpu's errors are raised.
    """
    from wgpu.backends.wgpu_native import lib

    begin = lib.wgpuCommandEncoderBeginComputePass
    end, release = lib.wgpuComputePassEncoderEnd, lib.wgpuComputePassEncoderRelease

    def record(
        encoder: wgpu.GPUCommandEncoder, description: Any, dispatches: Iterable[Dispatch]
    ) -> None:
        compute = begin(encoder._internal, description)
        try:
            _record(compute, dispatches)
        finally:  # the host keeps using its encoder after an error here
            end(compute)
            release(compute)

    return _raising(record)


def _record(compute: Any, dispatches: Iterable[Dispatch]) -> None:
    set_pipeline, set_bind_group, dispatch, push, pop = _pass_functions()
    for pipeline, bind_group, n_offsets, offsets, columns, rows, label in dispatches:
        if label is not None:
            push(compute, label)
        set_pipeline(compute, pipeline)
        set_bind_group(compute, 0, bind_group, n_offsets, offsets)
        dispatch(compute, columns, rows, 1)
        if label is not None:
            pop(compute)


@cache
def _pass_functions() -> tuple[Callable[..., None], ...]:
    from wgpu.backends.wgpu_native import lib

    return (
        lib.wgpuComputePassEncoderSetPipeline,
        lib.wgpuComputePassEncoderSetBindGroup,
        lib.wgpuComputePassEncoderDispatchWorkgroups,
        lib.wgpuComputePassEncoderPushDebugGroup,
        lib.wgpuComputePassEncoderPopDebugGroup,
    )


def describe_pass(label: str, timestamp_writes: Mapping[str, Any] | None = None) -> Any:
    """Returns the description of a compute pass for :func:`pass_recorder`."""
    from wgpu.backends.wgpu_native import _api

    api: Any = _api
    writes = api.ffi.NULL
    if timestamp_writes is not None:
        index, none = timestamp_writes.get, api.lib.WGPU_QUERY_SET_INDEX_UNDEFINED
        writes = api.new_struct_p(
            "WGPUPassTimestampWrites *",
            querySet=timestamp_writes["query_set"]._internal,
            beginningOfPassWriteIndex=index("beginning_of_pass_write_index", none),
            endOfPassWriteIndex=index("end_of_pass_write_index", none),
        )
    return api.new_struct_p(
        "WGPUComputePassDescriptor *", label=string_view(label), timestampWrites=writes
    )


@cache
def copy_recorder() -> Callable[[wgpu.GPUCommandEncoder, Iterable[Copy]], None]:
    """Returns ``record(encoder, copies)``, which records copies and raises wgpu's errors.

    Offsets and sizes must be multiples of 4.
    """
    from wgpu.backends.wgpu_native import lib

    copy = lib.wgpuCommandEncoderCopyBufferToBuffer

    def record(encoder: wgpu.GPUCommandEncoder, copies: Iterable[Copy]) -> None:
        handle = encoder._internal
        for source, source_offset, target, offset, nbytes in copies:
            copy(handle, source._internal, source_offset, target._internal, offset, nbytes)

    return _raising(record)


def _raising(record: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that raises the errors of all of wgpu-native's calls in ``record``."""
    from wgpu.backends.wgpu_native import _api

    proxy: Callable[..., None] = _api.libf._make_proxy_func(record.__qualname__, record)
    return proxy


def timestamp_period_ns(queue: wgpu.GPUQueue) -> float:
    """Returns the nanoseconds per timestamp tick of this device; 1.0 if they are not available."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal)) or 1.0
    except (ImportError, AttributeError):
        return 1.0


class PendingMap:
    """An asynchronous mapping of a buffer for reading, which never blocks.

    wgpu-py's own ``map_async`` first submits an empty command buffer and starts a thread that
    blocks until the device is idle; both may delay the frame. Here :func:`poll` runs the
    callback, and :attr:`done` is True afterwards. Until then the class keeps a reference to this
    object, because the driver calls into it.
    """

    _awaited: ClassVar[set[PendingMap]] = set()

    def __init__(self, buffer: wgpu.GPUBuffer, nbytes: int) -> None:
        from wgpu.backends.wgpu_native import _api

        self._api: Any = _api
        self._buffer: Any = buffer
        self._nbytes = nbytes
        self.done = False
        self.failed = False
        self._handle = _api.ffi.new_handle(self)
        info = _api.new_struct(
            "WGPUBufferMapCallbackInfo",
            mode=_api.lib.WGPUCallbackMode_AllowProcessEvents,
            callback=_map_callback(),
            userdata1=self._handle,
        )
        self._awaited.add(self)
        try:
            self._api.libf.wgpuBufferMapAsync(
                buffer._internal, int(wgpu.MapMode.READ), 0, nbytes, info
            )
        except wgpu.GPUError:
            self._awaited.discard(self)
            raise
        buffer._map_state = "pending"

    def arrived(self, succeeded: bool) -> None:
        """Records the result of the mapping; called by the driver's callback."""
        self.failed = not succeeded
        self.done = True
        self._awaited.discard(self)

    def abort(self) -> None:
        """Unmaps the buffer, even if its bytes have not arrived, so that it can be used again."""
        if not (self.done and self.failed):
            try:
                self._api.libf.wgpuBufferUnmap(self._buffer._internal)
            except wgpu.GPUError as error:  # the device is lost: there is nothing to unmap
                _log.debug("unmapping: %s", error)
        self._buffer._map_state = "unmapped"

    def collect(self) -> bytes:
        """Returns a copy of the bytes after :attr:`done` and unmaps the buffer.

        Raises :class:`DeviceError` if the readback failed.
        """
        buffer = self._buffer
        if self.failed:
            buffer._map_state = "unmapped"
            raise DeviceError("a readback failed: the device was lost or the buffer destroyed")
        libf, handle = self._api.libf, buffer._internal
        start = libf.wgpuBufferGetConstMappedRange(handle, 0, self._nbytes)
        if start == self._api.ffi.NULL:
            raise DeviceError("a readback failed: the buffer is not mapped any more")
        data = bytes(self._api.ffi.buffer(start, self._nbytes))
        libf.wgpuBufferUnmap(handle)
        buffer._map_state = "unmapped"
        return data


@cache
def _map_callback() -> Any:
    """Returns the callback that all mappings share, because creating one is slow."""
    from wgpu.backends.wgpu_native import _api

    api: Any = _api

    def arrived(status: int, message: Any, handle: Any, _: Any) -> None:
        api.ffi.from_handle(handle).arrived(status == api.lib.WGPUMapAsyncStatus_Success)

    return api.ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", arrived)


def device_error(error: Exception) -> DeviceError:
    """Returns a :class:`DeviceError` with the cause of a wgpu error.

    If the device is lost, the message says what to do.
    """
    if _is_lost(error):
        return DeviceError(
            "the GPU's device was lost (destroyed, reset or unplugged): make a new device, and "
            "cml.Gpu, sessions and scheduler with it, and submit again"
        )
    return DeviceError(f"the GPU refused: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Returns the cause from a wgpu error's message, or the whole message if it names no cause."""
    return str(error).partition("Caused by:")[2].strip() or str(error)


def _is_lost(error: Exception) -> bool:
    return "is lost" in str(error)


def raise_if_lost(error: Exception) -> None:
    """Raises :class:`DeviceError` if the error says that the device is lost."""
    if _is_lost(error):
        raise device_error(error) from error


class _ErrorConversion:
    # a class: contextlib's decorators take four times as long, and frames enter many
    def __init__(self, error_types: tuple[type[Exception], ...]) -> None:
        self._error_types = error_types

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def converted(*args: P.args, **options: P.kwargs) -> T:
            try:
                return function(*args, **options)
            except self._error_types as error:
                raise device_error(error) from error

        return converted

    def __enter__(self) -> None: ...

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None and isinstance(error, self._error_types):
            raise device_error(error) from error


#: the conversion of wgpu's errors alone, which frames enter many times
_WGPU_ERRORS = _ErrorConversion((wgpu.GPUError,))


def device_errors(*error_types: type[Exception]) -> _ErrorConversion:
    """Converts wgpu's errors, and the types ``error_types``, to :class:`DeviceError`.

    It works as a ``with`` block and as a decorator. Every call that reaches the driver on behalf
    of a user of this package is inside one.
    """
    return _ErrorConversion((wgpu.GPUError, *error_types)) if error_types else _WGPU_ERRORS


def poll(device: wgpu.GPUDevice) -> None:
    """Runs the callbacks of finished work, such as mappings; returns at once."""
    device._poll(False)


def wait(device: wgpu.GPUDevice) -> None:
    """Blocks until all submitted work is done."""
    device._poll(True)


def quicken_start() -> None:
    """Patches cffi's parser to parse wgpu-py's C types faster, which takes a second at every start.

    For each of some fifty types that a program uses, cffi parses a text that declares every type
    name that precedes it in the header. This patch keeps only the names that occur in the type
    itself.
    """
    from wgpu.backends.wgpu_native import ffi

    parser = getattr(ffi, "_parser", None)
    if parser is None or not hasattr(parser, "_declarations") or "_parse" in vars(parser):
        return
    parse = parser._parse

    def parse_cached(csource: str) -> Any:
        names = set(re.findall(r"\w+", csource))
        declarations = parser._declarations
        parser._declarations = {
            name: declaration
            for name, declaration in declarations.items()
            if not name.startswith("typedef ") or name[8:] in names
        }
        try:
            return parse(csource)
        finally:
            parser._declarations = declarations

    parser._parse = parse_cached


def limit_instance() -> None:
    """Excludes OpenGL from the process's wgpu instance, because no kernel runs on it.

    Does nothing to an existing instance. Without a desktop session, it also disables Mesa's device
    selection layer, which asks Wayland for its GPU and prints an error per call.
    """
    from wgpu.backends.wgpu_native import _helpers
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ.setdefault("NODEVICE_SELECT", "1")
    if _helpers._the_instance is None:
        set_instance_extras(backends=["Vulkan", "DX12", "Metal"])
