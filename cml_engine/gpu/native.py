"""What wgpu-native can do and wgpu-py does not expose; reached here, and nowhere else."""

from __future__ import annotations

import logging
import os
from typing import Any

import wgpu

_log = logging.getLogger(__name__)


def create_shader_module(
    device: wgpu.GPUDevice, label: str, spirv: bytes, trusted: bool
) -> wgpu.GPUShaderModule:
    """A shader module from SPIR-V; ``trusted`` leaves naga's runtime checks out.

    By default naga bounds every loop by a counter and clamps every access; on our own kernels,
    whose indices are proven by tests, that costs 2-3x (docs/performance.md).
    """
    if trusted:
        try:
            return _trusted(device, label, spirv)
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            _log.warning("trusted shader modules are not available (%s): slower kernels", error)
    return device.create_shader_module(label=label, code=spirv)


def _trusted(device: wgpu.GPUDevice, label: str, spirv: bytes) -> wgpu.GPUShaderModule:
    from wgpu.backends.wgpu_native import _api

    api: Any = _api
    words = api.ffi.new("uint8_t[]", spirv)
    source = api.new_struct_p(
        "WGPUShaderSourceSPIRV *",
        codeSize=len(spirv) // 4,
        code=api.ffi.cast("uint32_t *", words),
    )
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceSPIRV
    descriptor = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
        label=api.to_c_string_view(label),
    )
    no_checks = 0
    module = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, no_checks)
    return api.GPUShaderModule(label, module, device)


def timestamp_period_ns(queue: wgpu.GPUQueue) -> float:
    """Nanoseconds per timestamp tick of this device; 1.0 where it cannot be asked."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal)) or 1.0
    except (ImportError, AttributeError):
        return 1.0


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
