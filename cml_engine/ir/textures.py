"""Textures as plain data: formats, views of tensors as pictures, and a host's inputs and
targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ANY_EXTENT, FINITE, check_choice, check_flag, check_instance
from cml_engine.ir.graph import Fact

#: the encoding of a texel's numbers; ``textures/pack.hlsl`` has the same names
Encoding = Literal["unorm8", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class TextureFormat:
    """A texture format: its channels in memory order (``order``) and their encoding.

    With ``srgb``, shaders read decoded colours in linear light. A ``depth`` texture is read-only.
    """

    name: str
    order: str
    encoding: Encoding
    srgb: bool = False
    depth: bool = False

    @property
    def channels(self) -> str:
        """The channels that a shader can read, in the order ``rgba``."""
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


def known_format(name: str, subject: str, *, written: bool = False) -> TextureFormat:
    """Returns the texture format of that name; ``subject`` begins the error message.

    Raises :class:`InputError` if it is not supported, or if it is ``written`` and read-only.
    """
    usable = [n for n, known in FORMATS.items() if not (written and known.depth)]
    if name not in usable:
        hint = " (depth is read only)" if name in FORMATS else ""
        raise InputError(
            f"{subject}: a texture in {name} cannot be taken{hint}; wanted {', '.join(usable)}"
        )
    return FORMATS[name]


#: the position of a tensor's channels: before its rows, or last
ImageLayout = Literal["nchw", "nhwc"]
#: the most channels of a picture
_MAX_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Planes:
    """A tensor viewed as a picture: its size and the strides of its elements.

    ``strides`` are the distances in 32-bit words between neighbouring channels, rows and columns.
    """

    height: int
    width: int
    channels: int
    strides: tuple[int, int, int]

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def interleaved(self) -> bool:
        """True if the channels of a pixel are adjacent in memory."""
        return self.channels == 1 or self.strides[0] == 1


def planes(subject: str, fact: Fact, layout: ImageLayout) -> Planes:
    """Returns a tensor of type and shape ``fact`` viewed as a picture.

    Raises :class:`InputError` if the shape does not fit.
    """
    last = layout == "nhwc"
    shape = fact.shape if fact.rank != 2 else ((*fact.shape, 1) if last else (1, *fact.shape))
    *batch, a, b, c = shape if len(shape) >= 3 else (1, 1, 0)
    height, width, channels = (a, b, c) if last else (b, c, a)
    fits = fact.dtype == "scalar" and fact.rank <= 4 and batch in ([], [1])
    if not (fits and fact.size and 1 <= channels <= _MAX_CHANNELS):
        expected = "scalar[1,H,W,C]" if last else "scalar[1,C,H,W]"
        other_layout = "nchw" if last else "nhwc"
        raise InputError(
            f"{subject} is {fact}: a texture holds {expected} with 1 to {_MAX_CHANNELS} channels. "
            f"Where the channels stand elsewhere, say layout='{other_layout}'"
        )
    strides = (1, width * channels, channels) if last else (height * width, width, 1)
    return Planes(height, width, channels, strides)


#: larger values are a picture's with a high dynamic range: convolutions keep them in their windows
HDR_VALUE = 1e3
#: a number for all channels, or one for each channel
Numbers = float | Iterable[float]


def by_channel(value: Numbers, count: int, argument: str) -> tuple[float, ...]:
    """Returns four numbers, one per channel, from one number for all or from ``count`` numbers.

    Missing channels get 0.
    """
    numbers = numbers_of(value, argument)
    if len(numbers) not in (1, count):
        raise InputError(
            f"{argument}: wanted a number, or {count} for {count} channels, got {value}"
        )
    return ((numbers * _MAX_CHANNELS) if len(numbers) == 1 else (*numbers, 0.0, 0.0, 0.0))[
        :_MAX_CHANNELS
    ]


def numbers_of(value: Numbers, argument: str) -> tuple[float, ...]:
    """Returns one or several numbers as a tuple of floats; raises an error if one is not finite."""
    numbers = np.atleast_1d(np.asarray(value, object))
    return tuple(FINITE.check(number, argument) for number in numbers)


def checked_layout(value: object) -> None:
    check_choice(get_args(ImageLayout), value, "layout")


#: the filter for reading a texture whose size differs from the tensor's
Resize = Literal["nearest", "bilinear", "area"]
#: the letters of ``channels``: a texture's own channels, and ``y``, the weighted grey
LETTERS = "rgbay"


@dataclass(frozen=True)
class TextureInput:
    """A host's texture as an input of ``Session.run`` or ``FrameScheduler.submit``.

    The texture is read on the GPU when the run begins, without a copy on the host. The tensor is
    ``[1, C, H, W]`` (``[C, H, W]``, ``[H, W]``) with one to four channels, or ``[1, H, W, C]``
    with ``layout="nhwc"``. Its values are ``number * scale + shift`` of the numbers that a
    shader reads from the texture: 0 to 1 for ``unorm``, linear light for ``-srgb``.

    Parameters
    ----------
    texture : a 2D ``wgpu.GPUTexture`` of the same device with ``TEXTURE_BINDING``, in one of the
        formats of docs/in_your_engine.md.
    scale, shift : a number, or one for each channel of the tensor.
    channels : the texture's channels in the order of the tensor's, such as ``"rgb"``, ``"bgr"`` or
        ``"a"``; ``"y"`` is the grey value of its colours. By default the first channels; the only
        channel of a texture is used for all.
    srgb : encode the colours after reading, for a network that expects colours as in a PNG.
    resize : ``"nearest"``, ``"bilinear"`` or ``"area"`` (the mean of the area that a pixel covers)
        for a texture of another size; by default another size is an :class:`InputError`.
    layer, mip : the layer of an array texture, and the mip level.
    at_once : read the whole texture in one frame, even if that exceeds the budget. By default a
        large texture may be read over several frames; if it changes meanwhile, the tensor mixes
        both versions.

    Examples
    --------
    >>> outputs = network.run({"image": cml.TextureInput(texture, channels="rgb")})
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
        check_instance(str, self.channels, "channels")
        if not set(self.channels) <= set(LETTERS):
            raise InputError(f"channels: wanted letters of '{LETTERS}', got {self.channels!r}")
        if self.resize is not None:
            check_choice(get_args(Resize), self.resize, "resize")
        checked_layout(self.layout)
        check_flag(self.srgb, "srgb")
        check_flag(self.at_once, "at_once")
        ANY_EXTENT.check(self.layer, "layer")
        ANY_EXTENT.check(self.mip, "mip")
        numbers_of(self.scale, "scale"), numbers_of(self.shift, "shift")

    @property
    def is_wide(self) -> bool:
        """True if the values may be far above 1: a texture of floats that is no depth, or a large
        ``scale`` or ``shift``."""
        name = str(getattr(self.texture, "format", ""))
        numbers = (*numbers_of(self.scale, "scale"), *numbers_of(self.shift, "shift"))
        is_float = name.endswith("float") and not name.startswith("depth")
        return is_float or max(map(abs, numbers)) > HDR_VALUE

    def picked(self, subject: str, texture_format: TextureFormat, count: int) -> tuple[int, ...]:
        """Returns, for each of the tensor's ``count`` channels, the texture channel that it reads.

        Channels are indices into :data:`LETTERS`. Raises :class:`InputError` if the texture
        lacks one.
        """
        name, available = texture_format.name, texture_format.channels
        letters = self.channels or (available * count if len(available) == 1 else available[:count])
        if len(letters) != count:
            raise InputError(
                f"{subject}: the tensor has {count} channels, and "
                + (f"channels='{letters}'" if self.channels else f"{name} has '{available}'")
                + f": name {count} of them, as channels='{(available * count)[:count]}'"
            )
        readable = set(available) | ({"y"} if set("rgb") <= set(available) else set())
        if lacking := set(letters) - readable:
            raise InputError(
                f"{subject}: a texture in {name} has no channel '{min(lacking)}': it has "
                f"'{available}'"
            )
        return tuple(LETTERS.index(letter) for letter in letters)


def on_device(value: object) -> bool:
    """Returns True if an input's value is on the GPU: a texture, or a tensor in a buffer."""
    return isinstance(value, TextureInput) or hasattr(value, "buffer")


#: the constants 0 and 1 in place of a tensor's channel
ZERO, ONE = 4, 5
#: the sources of red, green, blue and alpha, by the tensor's number of channels
_SPREAD = {
    1: (0, 0, 0, ONE),
    2: (0, 1, ZERO, ONE),
    3: (0, 1, 2, ONE),
    4: (0, 1, 2, 3),
}


@dataclass(frozen=True)
class TextureTarget:
    """A texture that a tensor is written to, and the conversion of its values.

    The fields are the arguments of ``Job.copy_to_texture``.
    """

    texture: Any
    scale: Numbers = 1.0
    shift: Numbers = 0.0
    srgb: bool = False
    layout: ImageLayout = "nchw"
    origin: tuple[int, int, int] = (0, 0, 0)
    mip: int = 0

    def __post_init__(self) -> None:
        checked_layout(self.layout)
        check_flag(self.srgb, "srgb")
        ANY_EXTENT.check(self.mip, "mip")
        origin: object = self.origin
        if not isinstance(origin, tuple | list) or len(origin) != 3:
            raise InputError(f"origin: wanted column, row and layer, got {self.origin!r}")
        for number in self.origin:
            ANY_EXTENT.check(number, "origin")
        numbers_of(self.scale, "scale"), numbers_of(self.shift, "shift")

    @property
    def unchanged(self) -> bool:
        """True if the tensor's values are written without conversion."""
        scale, shift = set(numbers_of(self.scale, "scale")), set(numbers_of(self.shift, "shift"))
        return scale == {1.0} and shift == {0.0} and not self.srgb

    def picked(self, subject: str, texture_format: TextureFormat, count: int) -> tuple[int, ...]:
        """Returns, for each of a texel's four channels, the tensor channel that is written to it.

        A tensor of one channel is written as grey. Raises :class:`InputError` if the texture has
        fewer channels than the tensor.
        """
        if len(texture_format.order) < count:
            raise InputError(
                f"{subject}: a tensor of {count} channels does not go into a texture in "
                f"{texture_format.name}, which has '{texture_format.channels}'"
            )
        return _SPREAD[count]
