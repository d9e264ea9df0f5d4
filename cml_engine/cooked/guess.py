"""The assumed speed of devices before anything is measured, for players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct

from cml_engine.cooked.form import DEVICE, FACTOR, GUESS, MOST_AMOUNT, MOST_DEVICES, MOST_FACTORS
from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.writer import Sections

_COUNTS = Struct("<2I")
#: the least valid rate or factor
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class DeviceGuess:
    """The assumed speed of a type of device.

    ``words`` are joined by ``|``; a device is of this type if one of them occurs in its name.
    """

    words: str
    flops_per_ms: float
    bytes_per_ms: float
    launch_ms: float
    kernels: Mapping[str, float] = field(default_factory=dict)


def check_guess(file: Container) -> None:
    """Raises :class:`CorruptArtifact` if the section ``guess``, which players read, is damaged."""
    if not file.count(GUESS):
        return
    section = file.section(GUESS)
    devices, factors = section.unpack(_COUNTS, 0)
    first = _COUNTS.size + devices * DEVICE.size
    if devices > MOST_DEVICES or factors > MOST_FACTORS:
        raise damaged(f"first guesses of {devices} devices and {factors} factors")
    if len(section) != first + factors * FACTOR.size:
        raise damaged("its first guesses have gaps")
    for i in range(devices):
        at, size, *rates, launch, start, count = section.unpack(
            DEVICE, _COUNTS.size + i * DEVICE.size
        )
        file.string(at, size)
        if (
            not (all(map(_is_rate, rates)) and 0 <= launch <= MOST_AMOUNT)
            or start + count > factors
        ):
            raise damaged(f"first guess {i}")
    for i in range(factors):
        at, size, factor = section.unpack(FACTOR, first + i * FACTOR.size)
        file.string(at, size)
        if not _is_rate(factor):
            raise damaged(f"factor {i} of its first guesses")


def _is_rate(value: float) -> bool:
    return _LEAST <= value <= MOST_AMOUNT


def write_guess(devices: Sequence[DeviceGuess], sections: Sections) -> None:
    """Writes the section ``guess``."""
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
