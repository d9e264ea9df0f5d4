"""Finds drivers whose exp and log are wrong for NaN, for zero or for negative numbers.

SwiftShader's ``exp(NaN)`` is infinite and its ``log(0)`` is -88. Kernels are compiled with
``guarded.hlsli`` there, which changes those that call one of these functions.
"""

from __future__ import annotations

import contextlib

import numpy as np
import wgpu

from cml_engine.gpu.shaders.cache import driver_file
from cml_engine.io.atomic_write import write_atomically
from cml_engine.ir.graph import Array

_PROBE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(1) fn main() { x[0] = exp(x[0]); x[1] = log(x[1]); x[2] = log(x[2]); }
"""
_OPERANDS = np.array([np.nan, 0, -1], np.float32)
_RESULTS = np.array([np.nan, -np.inf, np.nan], np.float32)


def has_ieee_functions(adapter: wgpu.GPUAdapter, name: str) -> bool:
    """Returns True if exp and log of the driver called ``name`` need no guard.

    The cache folder remembers a driver that is right. The probe runs on a device of its own,
    because the host may be submitting to the other one; if it fails, the driver counts as right.
    """
    marker = driver_file(_PROBE, name)
    if marker.exists():
        return True
    try:
        is_right = np.array_equal(_probe(adapter), _RESULTS, equal_nan=True)
    except (wgpu.GPUError, RuntimeError):
        return True
    if is_right:
        with contextlib.suppress(OSError):
            write_atomically(marker, b"")
    return is_right


def _probe(adapter: wgpu.GPUAdapter) -> Array:
    """Returns the driver's results of the functions for ``_OPERANDS``."""
    device = adapter.request_device_sync(label="cml probe")
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer_with_data(data=_OPERANDS, usage=usage)
    module = device.create_shader_module(code=_PROBE)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    binding = {"binding": 0, "resource": {"buffer": buffer}}
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(
        0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=[binding])
    )
    compute.dispatch_workgroups(1)
    compute.end()
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(buffer), np.float32)
