"""Writes and checks the assumed speed of devices, which players use before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.schema import (
    GUESS,
    MOST_AMOUNT,
    MOST_DEVICES,
    MOST_FACTORS,
    DeviceRow,
    FactorRow,
    GuessHead,
)
from cml_engine.cooked.writer import Sections
from cml_engine.errors.arguments import FloatRange, check_mapping, check_text

#: valid rates and factors
_RATE = FloatRange(1e-9, MOST_AMOUNT)


@dataclass(frozen=True, slots=True)
class DeviceGuess:
    """The assumed speed of a type of device.

    ``words`` are joined by ``|``; a device is of this type if one of them occurs in its name.
    ``kernels`` maps a family of kernels to its time, relative to what the speed predicts.

    Examples
    --------
    >>> guess = DeviceGuess("radeon", flops_per_ms=4e9, bytes_per_ms=4e8, launch_ms=0.005)
    >>> data = cook(graph, ["portable"], guesses=[guess])
    """

    words: str
    flops_per_ms: float
    bytes_per_ms: float
    launch_ms: float
    kernels: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text(self.words, "words")
        _RATE.check(self.flops_per_ms, "flops_per_ms")
        _RATE.check(self.bytes_per_ms, "bytes_per_ms")
        FloatRange(0, MOST_AMOUNT).check(self.launch_ms, "launch_ms")
        kernels = check_mapping("factors by kernel, {'winograd': 2.0}", self.kernels, "kernels")
        for kernel, factor in kernels.items():
            _RATE.check(factor, f"the factor of '{kernel}'")


def check_guess(file: Container) -> None:
    """Raises :class:`CorruptArtifact` if the section ``guess``, which players read, is damaged."""
    if not file.count(GUESS):
        return
    section = file.section(GUESS)
    head, subject = section.head(GuessHead), "first guesses"
    if head.devices > MOST_DEVICES or head.factors > MOST_FACTORS:
        raise damaged(f"first guesses of {head.devices} devices and {head.factors} factors")
    first = GuessHead.SIZE + head.devices * DeviceRow.SIZE
    if len(section) != first + head.factors * FactorRow.SIZE:
        raise damaged("its first guesses have gaps")
    for i, device in enumerate(section.rows(DeviceRow, head.devices, GuessHead.SIZE, subject)):
        file.string(device.pattern)
        rates = _is_rate(device.flops_per_ms) and _is_rate(device.bytes_per_ms)
        launch = 0 <= device.launch_ms <= MOST_AMOUNT
        if not (rates and launch) or device.first_factor + device.factors > head.factors:
            raise damaged(f"first guess {i}")
    for i, factor in enumerate(section.rows(FactorRow, head.factors, first, subject)):
        file.string(factor.kernel)
        if not _is_rate(factor.times):
            raise damaged(f"factor {i} of its first guesses")


def _is_rate(value: float) -> bool:
    return _RATE.low <= value <= _RATE.high


def write_guess(devices: Sequence[DeviceGuess], sections: Sections) -> None:
    """Adds the section ``guess`` with the assumed speed of devices to ``sections``."""
    records, factors, count = bytearray(), bytearray(), 0
    for device in devices:
        records += DeviceRow(
            pattern=sections.strings.put(device.words),
            flops_per_ms=device.flops_per_ms,
            bytes_per_ms=device.bytes_per_ms,
            launch_ms=device.launch_ms,
            first_factor=count,
            factors=len(device.kernels),
        ).to_bytes()
        for name, times in device.kernels.items():
            factors += FactorRow(kernel=sections.strings.put(name), times=times).to_bytes()
        count += len(device.kernels)
    head = GuessHead(devices=len(devices), factors=count)
    sections.add(GUESS, head.to_bytes() + records + factors)
