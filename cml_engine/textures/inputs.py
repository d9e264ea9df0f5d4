"""What a host says of a texture that a network reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from cml_engine.errors import InputError
from cml_engine.ranges import ANY_EXTENT, an_object, flag, one_of
from cml_engine.textures.formats import TextureFormat
from cml_engine.textures.images import ImageLayout, Numbers, checked_layout, numbers_of

#: how a texture of another size than the tensor is read
Resize = Literal["nearest", "bilinear", "area"]
#: what ``channels`` may name: a texture's own, and the weighted grey of its colours
LETTERS = "rgbay"


@dataclass(frozen=True)
class TextureInput:
    """A texture of the host's as an input of ``Session.run`` or ``FrameScheduler.submit``: read
    on the GPU when the run begins, without a copy on the host.

    The tensor is ``[1, C, H, W]`` (``[C, H, W]``, ``[H, W]``) with one to four channels, or with
    ``layout="nhwc"`` ``[1, H, W, C]``. It gets ``number * scale + shift``, where the numbers are
    what a shader reads of the texture: 0 to 1 of ``unorm``, linear light of ``-srgb``.

    Parameters
    ----------
    texture : a 2D ``wgpu.GPUTexture`` of the same device with ``TEXTURE_BINDING``, in one of the
        formats of docs/textures.md.
    scale, shift : a number, or one for each channel of the tensor.
    channels : which of the texture's go to the tensor's, as ``"rgb"``, ``"bgr"`` or ``"a"``;
        ``"y"`` is the grey of its colours. Without it the first ones; where it has one only, that
        for all.
    srgb : the network wants colours as a PNG holds them: encode them after reading.
    resize : ``"nearest"``, ``"bilinear"`` or ``"area"`` (the mean of what a pixel covers) where the
        texture has another size; without it that is an :class:`InputError`.
    layer, mip : of an array texture, of a texture with mip levels.
    at_once : read all of it in one frame, even where that exceeds the budget. Without it a large
        texture may be read over several frames; one that changes meanwhile is then mixed.
    """

    texture: Any
    scale: Numbers = 1.0
    shift: Numbers = 0.0
    channels: str = ""
    srgb: bool = False
    resize: Resize | None = None
    layout: ImageLayout = "nchw"
    layer: int = 0
    mip: int = 0
    at_once: bool = False

    def __post_init__(self) -> None:
        an_object(str, self.channels, "channels")
        if not set(self.channels) <= set(LETTERS):
            raise InputError(f"channels: wanted letters of '{LETTERS}', got {self.channels!r}")
        if self.resize is not None:
            one_of(get_args(Resize), self.resize, "resize")
        checked_layout(self.layout)
        flag(self.srgb, "srgb")
        flag(self.at_once, "at_once")
        ANY_EXTENT.check(self.layer, "layer")
        ANY_EXTENT.check(self.mip, "mip")
        numbers_of(self.scale, "scale"), numbers_of(self.shift, "shift")

    def picked(self, what: str, form: TextureFormat, count: int) -> tuple[int, ...]:
        """For each of ``count`` channels of the tensor its letter's number in :data:`LETTERS`."""
        there = form.channels
        letters = self.channels or (there * count if len(there) == 1 else there[:count])
        if len(letters) != count:
            raise InputError(
                f"{what}: the tensor has {count} channels, and "
                + (f"channels='{letters}'" if self.channels else f"{form.name} has '{there}'")
                + f": name {count} of them, as channels='{(there * count)[:count]}'"
            )
        readable = set(there) | ({"y"} if set("rgb") <= set(there) else set())
        if lacking := set(letters) - readable:
            raise InputError(
                f"{what}: a texture in {form.name} has no channel '{min(lacking)}': it has "
                f"'{there}'"
            )
        return tuple(LETTERS.index(letter) for letter in letters)


def on_device(value: Any) -> bool:
    """Whether an input lies on the GPU: a texture, or a tensor in a buffer."""
    return isinstance(value, TextureInput) or hasattr(value, "buffer")
