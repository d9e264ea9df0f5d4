"""The profiles: types of devices for which a network is cooked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cml_engine.ir.limits import Limits


@dataclass(frozen=True, slots=True)
class Profile:
    """A type of device: its guaranteed limits, and the device whose tuned kernels it uses.

    Examples
    --------
    >>> PROFILES["portable"].limits.max_storage_buffers
    8
    """

    name: str
    limits: Limits
    tuned_as: str = ""

    @property
    def with_f16(self) -> Profile:
        """The same type of device with the feature ``shader-f16``."""
        limits = replace(self.limits, half_arithmetic=True)
        return replace(self, name=f"{self.name}-f16", limits=limits)


#: profiles by name, in the order in which a player tries them: the most demanding first
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "discrete",
            Limits(
                max_binding_bytes=1 << 30,
                max_buffer_bytes=1 << 31,
                max_group_threads=512,
                max_storage_buffers=16,
            ),
        ),
        # the limits that WebGPU guarantees
        Profile("portable", Limits()),
        # llvmpipe with vectors of at least 256 bits
        Profile(
            "software",
            Limits(
                storage_offset_alignment=32,
                max_buffer_bytes=(1 << 31) - 1,
                max_storage_buffers=16,
                software=True,
                subgroup_size=8,
            ),
            "llvmpipe (LLVM, 256 bits)",
        ),
        # every other driver that runs shaders on the CPU, with subgroups of any size or none, as
        # llvmpipe with vectors of 128 bits and SwiftShader, where "portable" takes 8 to 20 times
        # as long
        Profile("software-portable", Limits(software=True)),
    )
}
