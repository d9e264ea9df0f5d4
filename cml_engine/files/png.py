"""Pictures as tensors: ``scalar[1,C,H,W]`` in [0, 1] with one, three or four channels.

Read are PNGs of every kind and depth: 65535 of 16 bits is 1.0 as 255 of 8 is. A grey picture fills
three channels, a coloured one is weighted to grey for one. Alpha is the fourth channel where four
are wanted; where fewer are, a picture must be opaque. Written are 8 bits.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from cml_engine.graph import Fact

Array = np.ndarray[Any, Any]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = (1, 3, 4)
#: the weights of red, green and blue in grey (ITU-R BT.601)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
#: how Pillow is to take 16-bit samples apart, by PNG's number of the kind of picture: it keeps no
#: more than 8 bits of a colour, so high and low bytes are read one after the other
_HIGH_AND_LOW = {2: ("RGB;16B", "RGB;16L"), 6: ("RGBA;16B", "RGBA;16L")}
_GREY, _GREY_ALPHA = 0, 4


def can_hold(fact: Fact) -> bool:
    """Whether a tensor of that fact can be a picture."""
    shape = fact.shape
    fits = len(shape) == 4 and shape[0] == 1 and shape[1] in _CHANNELS and fact.size > 0
    return fits and fact.dtype == "scalar"


def size(data: bytes) -> tuple[int, int]:
    """Height and width as the file says; ``ValueError`` where it is no PNG or a damaged one."""
    width, height, _, _ = _head(data)
    return height, width


def decode(data: bytes, channels: int) -> Array:
    """The picture as ``scalar[1,C,H,W]``; ``ValueError`` (or what Pillow raises) where it is
    damaged or transparent."""
    planes = _samples(data)
    has_alpha = planes.shape[2] in (2, 4)
    colours, alpha = (planes[..., :-1], planes[..., -1:]) if has_alpha else (planes, None)
    if channels == 4:
        alpha = np.ones_like(colours[..., :1]) if alpha is None else alpha
        colours = np.concatenate([_in_colour(colours), alpha], 2)
    elif alpha is not None and alpha.min() < 1:
        raise ValueError(
            f"it has transparent pixels and the model takes {channels} channels: put it on a "
            "background first"
        )
    else:
        colours = _in_colour(colours) if channels == 3 else _in_grey(colours)
    return np.ascontiguousarray(colours.transpose(2, 0, 1)[None])


def encode(array: Array, file: BinaryIO) -> None:
    """Write ``scalar[1,C,H,W]``; what lies outside [0, 1] becomes its nearest end, NaN 0."""
    from PIL import Image

    planes = np.nan_to_num(np.clip(array[0], 0, 1))
    pixels = np.rint(planes * 255).astype(np.uint8)
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    image.save(file, format="PNG")


def _head(data: bytes) -> tuple[int, int, int, int]:
    """Width, height, bits of a sample, PNG's number of the kind of picture."""
    if data[: len(_SIGNATURE)] != _SIGNATURE:
        raise ValueError("it is no PNG")
    kind, body = next(_chunks(data))
    if kind != b"IHDR" or len(body) != 13:
        raise ValueError("it is no PNG")
    width, height, depth, colour = struct.unpack_from(">IIBB", body)
    return width, height, depth, colour


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a PNG, each checked by its own checksum."""
    at = len(_SIGNATURE)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        named, sum_ = data[at + 4 : at + 8 + length], data[at + 8 + length : at + 12 + length]
        if len(sum_) < 4 or zlib.crc32(named) != int.from_bytes(sum_, "big"):
            raise ValueError("it is damaged: save it again")
        yield named[:4], named[4:]
        if named == b"IEND":
            return
        at += 12 + length
    raise ValueError("it ends early: save it again")


def _samples(data: bytes) -> Array:
    """Height by width by channels in [0, 1]: grey or colours, with alpha or without."""
    for _ in _chunks(data):  # Pillow checks no sums of the pixels
        pass
    _, _, depth, colour = _head(data)
    if depth == 16:
        wide, key = _wide(data, colour)
        planes = wide.astype(np.float32) / np.float32(65535)
        if key is not None:
            alpha = np.any(wide != np.asarray(key), 2, keepdims=True)
            planes = np.concatenate([planes, alpha.astype(np.float32)], 2)
        return planes
    with _opened(data) as image:
        has_alpha = "A" in image.getbands() or "transparency" in image.info
        is_grey = image.mode in ("1", "L", "LA", "I", "I;16")
        mode = ("L" if is_grey else "RGB") + ("A" if has_alpha else "")
        pixels = np.asarray(image.convert(mode), np.float32) / np.float32(255)
    return pixels.reshape(*pixels.shape[:2], -1)


def _wide(data: bytes, colour: int) -> tuple[Array, Any]:
    """Samples of 16 bits, and the one that stands for transparency, if there is one."""
    with _opened(data) as image:
        key = image.info.get("transparency")
        if colour == _GREY:
            return np.asarray(image).astype(np.uint16)[..., None], key
    if colour == _GREY_ALPHA:  # four bytes a pixel, as 8-bit colours with alpha have
        four = _raw(data, "RGBA")
        return four[..., ::2] * np.uint16(256) + four[..., 1::2], key
    high, low = (_raw(data, mode) for mode in _HIGH_AND_LOW[colour])
    return high * np.uint16(256) + low, key


def _raw(data: bytes, mode: str) -> Array:
    with _opened(data) as image:
        image.tile = [(*tile[:3], mode) for tile in image.tile]
        return np.asarray(image).astype(np.uint16)


def _opened(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=["PNG"])


def _in_colour(planes: Array) -> Array:
    return np.repeat(planes, 3, 2) if planes.shape[2] == 1 else planes


def _in_grey(planes: Array) -> Array:
    return planes if planes.shape[2] == 1 else planes @ _LUMA[:, None]
