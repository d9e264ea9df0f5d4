"""The GPUs of this machine, and the selection of one of them."""

from __future__ import annotations

import os
from typing import Any

import wgpu

from cml_engine.errors import DeviceError
from cml_engine.gpu.native import limit_instance

NO_GPU_HINT = (
    "Install a Vulkan driver (on Debian: apt install mesa-vulkan-drivers gives a software one), "
    "or use the CPU backend."
)
#: environment variable that selects a device for every command and program
VARIABLE = "CML_ADAPTER"


def adapters() -> list[wgpu.GPUAdapter]:
    """Returns all adapters that Vulkan, D3D12 and Metal offer."""
    limit_instance()
    return list(wgpu.gpu.enumerate_adapters_sync())


def adapter_name(adapter: wgpu.GPUAdapter) -> str:
    """Returns an adapter's name as one text: ``device (driver), graphics API``."""
    info: dict[str, Any] = dict(adapter.info)
    return f"{info.get('device')} ({info.get('description')}), {info.get('backend_type')}"


def request_adapter(name: str | None) -> wgpu.GPUAdapter:
    """Returns the first adapter whose :func:`adapter_name` contains ``name``, ignoring case.

    Without a name, the environment's ``CML_ADAPTER`` applies, else the fastest adapter is returned.
    Raises :class:`DeviceError` if there is none.
    """
    wanted = name or os.environ.get(VARIABLE)
    if wanted:
        return _named(wanted)
    limit_instance()
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        raise DeviceError(f"no GPU: {error}. {NO_GPU_HINT}") from error
    if adapter is None:
        raise DeviceError(f"no GPU. {NO_GPU_HINT}")
    return adapter


def _named(wanted: str) -> wgpu.GPUAdapter:
    found = adapters()
    for adapter in found:
        if wanted.lower() in adapter_name(adapter).lower():
            return adapter
    known = "; ".join(map(adapter_name, found)) or f"none. {NO_GPU_HINT}"
    raise DeviceError(f"no GPU is called '{wanted}': this machine has {known}")


def device_rows() -> list[dict[str, Any]]:
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
