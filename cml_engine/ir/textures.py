"""Textures as data: formats, how a tensor lies in a texture, inputs and targets of a host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ANY_EXTENT, FINITE, an_object, flag, one_of
from cml_engine.ir.graph import Fact

#: how a texel's numbers are stored; the numbers are those of ``textures/pack.hlsl``
Encoding = Literal["unorm8", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class TextureFormat:
    """``order`` are its channels as they lie in memory; ``srgb``: a shader reads colours decoded,
    in linear light; ``depth``: it is read only."""

    name: str
    order: str
    encoding: Encoding
    srgb: bool = False
    depth: bool = False

    @property
    def channels(self) -> str:
        """What a shader can read of it."""
        return "".join(channel for channel in "rgba" if channel in self.order)

    @property
    def texel_bytes(self) -> int:
        return len(self.order) * {"unorm8": 1, "float16": 2, "float32": 4}[self.encoding]


FORMATS = {
    known.name: known
    for known in (
        TextureFormat("rgba8unorm", "rgba", "unorm8"),
        TextureFormat("rgba8unorm-srgb", "rgba", "unorm8", srgb=True),
        TextureFormat("bgra8unorm", "bgra", "unorm8"),
        TextureFormat("bgra8unorm-srgb", "bgra", "unorm8", srgb=True),
        TextureFormat("rgba16float", "rgba", "float16"),
        TextureFormat("r32float", "r", "float32"),
        TextureFormat("rg32float", "rg", "float32"),
        TextureFormat("rgba32float", "rgba", "float32"),
        TextureFormat("depth32float", "r", "float32", depth=True),
    )
}


def known_format(name: str, what: str, *, written: bool = False) -> TextureFormat:
    """The format of that name; :class:`InputError` where it is none of ours, or is to be
    ``written`` and cannot be."""
    usable = [known for known, found in FORMATS.items() if not (written and found.depth)]
    if name not in usable:
        hint = " (depth is read only)" if name in FORMATS else ""
        raise InputError(
            f"{what}: a texture in {name} cannot be taken{hint}; wanted {', '.join(usable)}"
        )
    return FORMATS[name]


#: where a tensor's channels stand: before its rows, or last
ImageLayout = Literal["nchw", "nhwc"]
#: the most channels of a picture
_MOST = 4


@dataclass(frozen=True, slots=True)
class Planes:
    """A tensor as a picture; ``strides`` are words from one channel, row and column to the next."""

    height: int
    width: int
    channels: int
    strides: tuple[int, int, int]

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def interleaved(self) -> bool:
        """Whether a pixel's channels lie side by side."""
        return self.channels == 1 or self.strides[0] == 1


def planes(what: str, fact: Fact, layout: ImageLayout) -> Planes:
    """``fact`` as a picture; :class:`InputError` where it is none."""
    last = layout == "nhwc"
    shape = fact.shape if fact.rank != 2 else ((*fact.shape, 1) if last else (1, *fact.shape))
    *batch, a, b, c = shape if len(shape) >= 3 else (1, 1, 0)
    height, width, channels = (a, b, c) if last else (b, c, a)
    fits = fact.dtype == "scalar" and fact.rank <= 4 and batch in ([], [1])
    if not (fits and fact.size and 1 <= channels <= _MOST):
        wanted = "scalar[1,H,W,C]" if last else "scalar[1,C,H,W]"
        other = "nchw" if last else "nhwc"
        raise InputError(
            f"{what} is {fact}: a texture holds {wanted} with 1 to {_MOST} channels. Where the "
            f"channels stand elsewhere, say layout='{other}'"
        )
    strides = (1, width * channels, channels) if last else (height * width, width, 1)
    return Planes(height, width, channels, strides)


#: a number, or one for each channel
Numbers = float | Iterable[float]


def by_channel(value: Numbers, count: int, what: str) -> tuple[float, ...]:
    """A number for each of four channels: the same for all, or ``count`` that are given."""
    numbers = numbers_of(value, what)
    if len(numbers) not in (1, count):
        raise InputError(f"{what}: wanted a number, or {count} for {count} channels, got {value}")
    return ((numbers * _MOST) if len(numbers) == 1 else (*numbers, 0.0, 0.0, 0.0))[:_MOST]


def numbers_of(value: Numbers, what: str) -> tuple[float, ...]:
    """The number, or the numbers, as a tuple."""
    given: Any = value
    given = given if np.ndim(given) else (given,)
    return tuple(FINITE.check(number, what) for number in given)


def checked_layout(value: Any) -> None:
    one_of(get_args(ImageLayout), value, "layout")


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
        formats of docs/in_your_engine.md.
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
