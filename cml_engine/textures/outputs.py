"""What a host says of a texture that a network's output is copied into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cml_engine.errors import InputError
from cml_engine.ranges import ANY_EXTENT, flag
from cml_engine.textures.formats import TextureFormat
from cml_engine.textures.images import ImageLayout, Numbers, checked_layout, numbers_of

#: instead of a tensor's channel
ZERO, ONE = 4, 5
#: for each number of a tensor's channels what goes to red, green, blue and alpha
_SPREAD = {
    1: (0, 0, 0, ONE),
    2: (0, 1, ZERO, ONE),
    3: (0, 1, 2, ONE),
    4: (0, 1, 2, 3),
}


@dataclass(frozen=True)
class TextureTarget:
    """The arguments of ``Job.copy_to_texture``, which says what they are."""

    texture: Any
    scale: Numbers = 1.0
    shift: Numbers = 0.0
    srgb: bool = False
    layout: ImageLayout = "nchw"
    origin: tuple[int, int, int] = (0, 0, 0)
    mip: int = 0

    def __post_init__(self) -> None:
        checked_layout(self.layout)
        flag(self.srgb, "srgb")
        ANY_EXTENT.check(self.mip, "mip")
        origin: Any = self.origin
        if not isinstance(origin, tuple | list) or len(origin) != 3:
            raise InputError(f"origin: wanted column, row and layer, got {self.origin!r}")
        for number in self.origin:
            ANY_EXTENT.check(number, "origin")
        numbers_of(self.scale, "scale"), numbers_of(self.shift, "shift")

    @property
    def unchanged(self) -> bool:
        """Whether the tensor's numbers are the texture's."""
        scale, shift = set(numbers_of(self.scale, "scale")), set(numbers_of(self.shift, "shift"))
        return scale == {1.0} and shift == {0.0} and not self.srgb

    def picked(self, what: str, form: TextureFormat, count: int) -> tuple[int, ...]:
        """For each of four channels of a texel the tensor's that goes there. A texture of fewer
        channels than the tensor takes none; one channel is grey."""
        if len(form.order) < count:
            raise InputError(
                f"{what}: a tensor of {count} channels does not go into a texture in {form.name}, "
                f"which has '{form.channels}'"
            )
        return _SPREAD[count]
