"""SPIR-V -> shader module, with or without naga's runtime checks.

By default naga bounds every loop by a counter and clamps every access; on our own kernels, whose
indices are proven by tests, that costs 2-3x (docs/performance.md). wgpu-native has a call without
the checks which wgpu-py does not expose, so it is reached here, and nowhere else.
"""

from __future__ import annotations

import logging
from typing import Any

import wgpu

_log = logging.getLogger(__name__)


def create_shader_module(
    device: wgpu.GPUDevice, label: str, spirv: bytes, trusted: bool
) -> wgpu.GPUShaderModule:
    """A shader module; ``trusted`` leaves the runtime checks out where wgpu-native lets us."""
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
