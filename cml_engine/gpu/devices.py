"""What ``cml devices`` says of the GPUs of this machine."""

from __future__ import annotations

from typing import Any

from cml_engine.errors import DeviceError
from cml_engine.gpu.adapters import adapter_name, adapters, request_adapter


def device_rows() -> list[dict[str, Any]]:
    """A row for each, as JSON; ``chosen`` is true of the one that ``cml.Gpu()`` takes."""
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
