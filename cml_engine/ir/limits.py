"""The limits of a device, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device, read from the adapter; the defaults are WebGPU's guarantees."""

    storage_offset_alignment: int = 256
    uniform_offset_alignment: int = 256
    max_binding_bytes: int = 128 << 20
    max_buffer_bytes: int = 256 << 20
    max_groups_per_dimension: int = 65535
    max_group_threads: int = 256
    max_group_storage: int = 16384
    max_storage_buffers: int = 8
    #: True if the driver runs shaders on the CPU, where groupshared memory gains nothing
    software: bool = False
    #: True if the device loads what is the same for all lanes once, as a scalar, as AMD's do; on
    #: NVIDIA's each lane loads it
    scalar_loads: bool = True
    #: the guaranteed number of lanes in a subgroup; 0 if shaders cannot use subgroups
    subgroup_size: int = 0
    #: True if shaders can compute in 16 bits (HLSL's ``half``, the device feature shader-f16)
    half_arithmetic: bool = False
    #: True if shaders have 64-bit integers (the device feature shader-int64)
    int64: bool = False
