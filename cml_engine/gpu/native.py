"""What wgpu-native can do and wgpu-py does not expose; reached here, and nowhere else."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import wgpu

from cml_engine.errors import DeviceError

_log = logging.getLogger(__name__)


def create_shader_module(
    device: wgpu.GPUDevice, label: str, code: bytes | str, trusted: bool
) -> wgpu.GPUShaderModule:
    """A shader module from SPIR-V or WGSL; ``trusted`` leaves naga's runtime checks out.

    By default naga bounds every loop by a counter and clamps every access; on our own kernels,
    whose indices are proven by tests, that costs 2-3x (docs/design/performance.md).
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
        words = api.ffi.new("uint8_t[]", code)  # lives until the module is made
        source = _spirv_source(api, words, len(code) // 4)
    descriptor = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
        label=api.to_c_string_view(label),
    )
    no_checks = 0
    module = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, no_checks)
    return api.GPUShaderModule(label, module, device)


def _spirv_source(api: Any, words: Any, count: int) -> Any:
    code = api.ffi.cast("uint32_t *", words)
    source = api.new_struct_p("WGPUShaderSourceSPIRV *", codeSize=count, code=code)
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceSPIRV
    return source


def _wgsl_source(api: Any, text: str) -> Any:
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(text))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
    return source


def timestamp_period_ns(queue: wgpu.GPUQueue) -> float:
    """Nanoseconds per timestamp tick of this device; 1.0 where it cannot be asked."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal)) or 1.0
    except (ImportError, AttributeError):
        return 1.0


class PendingMap:
    """A buffer's mapping for reading that is asked for and never waited for.

    wgpu-py's own ``map_async`` submits an empty command buffer first and starts a thread that
    blocks until the device is idle; both may hold up the frame. Here the callback comes with
    :func:`poll`, and :attr:`done` says whether it has. Until then this object stays alive, whoever
    forgets it: the driver calls into it.
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
        """The driver has called back."""
        self.failed = not succeeded
        self.done = True
        self._awaited.discard(self)

    def abort(self) -> None:
        """Not wanted any more: the buffer is unmapped, whether its bytes have arrived or not."""
        if not (self.done and self.failed):
            try:
                self._api.libf.wgpuBufferUnmap(self._buffer._internal)
            except wgpu.GPUError as error:  # the device is lost: there is nothing to unmap
                _log.debug("unmapping: %s", error)
        self._buffer._map_state = "unmapped"

    def take(self) -> bytes:
        """The bytes, once :attr:`done`; the buffer is unmapped."""
        buffer = self._buffer
        if self.failed:
            buffer._map_state = "unmapped"
            raise DeviceError("a readback failed: the device was lost or the buffer destroyed")
        libf, place = self._api.libf, buffer._internal
        start = libf.wgpuBufferGetConstMappedRange(place, 0, self._nbytes)
        if start == self._api.ffi.NULL:
            raise DeviceError("a readback failed: the buffer is not mapped any more")
        data = bytes(self._api.ffi.buffer(start, self._nbytes))
        libf.wgpuBufferUnmap(place)
        buffer._map_state = "unmapped"
        return data


@cache
def _map_callback() -> Any:
    """One callback for all mappings: to make one takes longer than all else of a mapping."""
    from wgpu.backends.wgpu_native import _api

    api: Any = _api

    def arrived(status: int, message: Any, handle: Any, _: Any) -> None:
        api.ffi.from_handle(handle).arrived(status == api.lib.WGPUMapAsyncStatus_Success)

    return api.ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", arrived)


def device_error(error: Exception) -> DeviceError:
    """wgpu's error in our words: what to do where the device is lost, else its reason."""
    reason = str(error).partition("Caused by:")[2].strip() or str(error)
    if _is_lost(error):
        return DeviceError(
            "the GPU's device was lost (destroyed, reset or unplugged): make a new device, and "
            "cml.Gpu, sessions and scheduler with it, and submit again"
        )
    return DeviceError(f"the GPU refused: {reason}")


def _is_lost(error: Exception) -> bool:
    return "is lost" in str(error)


def raise_if_lost(error: Exception) -> None:
    """Raises :class:`DeviceError` where a call failed because the device is lost, and not for what
    it was given."""
    if _is_lost(error):
        raise device_error(error) from error


@contextmanager
def device_errors(*others: type[Exception]) -> Iterator[None]:
    """Turns wgpu's errors, and those of ``others``, into :class:`DeviceError`: in a ``with`` block,
    or in the function that it decorates. Whatever reaches the driver for a caller of this package
    does so in one of these."""
    try:
        yield
    except (wgpu.GPUError, *others) as error:
        raise device_error(error) from error


def poll(device: wgpu.GPUDevice) -> None:
    """Let the callbacks of finished work run; returns at once."""
    device._poll(False)


def wait(device: wgpu.GPUDevice) -> None:
    """Block until all that was submitted is done."""
    device._poll(True)


def quicken_start() -> None:
    """Let cffi parse wgpu-py's C types one by one without the names of all the others.

    For each of some fifty types that a program uses, cffi parses a text that declares every type
    name of the header before it: a second at every start. Only names that occur in the type itself
    matter to the parser.
    """
    from wgpu.backends.wgpu_native import ffi

    parser = getattr(ffi, "_parser", None)
    if parser is None or not hasattr(parser, "_declarations") or "_parse" in vars(parser):
        return
    parse = parser._parse

    def parse_alone(csource: str) -> Any:
        words = set(re.findall(r"\w+", csource))
        everything = parser._declarations
        parser._declarations = {
            name: declared
            for name, declared in everything.items()
            if not name.startswith("typedef ") or name[8:] in words
        }
        try:
            return parse(csource)
        finally:
            parser._declarations = everything

    parser._parse = parse_alone


def limit_instance() -> None:
    """Leave OpenGL out of the process's wgpu instance, if there is none yet: no kernel of ours
    runs on it. Without a desktop session, leave out Mesa's layer that asks Wayland for its GPU
    too: it prints an error per call."""
    from wgpu.backends.wgpu_native import _helpers
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ.setdefault("NODEVICE_SELECT", "1")
    if _helpers._the_instance is None:
        set_instance_extras(backends=["Vulkan", "DX12", "Metal"])
