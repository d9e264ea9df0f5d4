"""What devices are believed to do before anything is measured, for players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct

from cml_engine.cooked.form import DEVICE, FACTOR, GUESS
from cml_engine.cooked.writer import Sections

_COUNTS = Struct("<2I")


@dataclass(frozen=True, slots=True)
class DeviceGuess:
    """A kind of device: ``words`` of its name, joined by ``|``, and what it does."""

    words: str
    flops_per_ms: float
    bytes_per_ms: float
    launch_ms: float
    kernels: Mapping[str, float] = field(default_factory=dict)


def write_guess(devices: Sequence[DeviceGuess], sections: Sections) -> None:
    """The section ``guess``."""
    records, factors, count = bytearray(), bytearray(), 0
    for device in devices:
        records += DEVICE.pack(
            *sections.strings.put(device.words),
            device.flops_per_ms,
            device.bytes_per_ms,
            device.launch_ms,
            count,
            len(device.kernels),
        )
        for name, factor in device.kernels.items():
            factors += FACTOR.pack(*sections.strings.put(name), factor)
        count += len(device.kernels)
    sections.add(GUESS, _COUNTS.pack(len(devices), count) + records + factors)
