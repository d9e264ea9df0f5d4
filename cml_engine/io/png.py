"""PNG of every kind and depth: 65535 of 16 bits is 1.0 as 255 of 8 is. Written are 8 or 16 bits."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cml_engine.io.samples import steps_of
from cml_engine.ir.graph import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
NEEDS = ""
BITS = (8, 16)
#: how Pillow is to take 16-bit samples apart, by PNG's number of the kind of picture: it keeps no
#: more than 8 bits of a colour, so high and low bytes are read one after the other
_HIGH_AND_LOW = {2: ("RGB;16B", "RGB;16L"), 6: ("RGBA;16B", "RGBA;16L")}
_GREY, _RGB, _GREY_ALPHA, _RGBA = 0, 2, 4, 6
#: the filter of a row that is a difference to the one above
_UP = 2


def size(path: Path) -> tuple[int, int]:
    """Height and width as the file says; ``ValueError`` where it is no PNG or a damaged one."""
    width, height, _, _ = _head(path.read_bytes())
    return height, width


def read(path: Path) -> Array:
    """Height x width x channels: grey or colours, with alpha or without. ``ValueError`` (or what
    Pillow raises) where it is damaged."""
    return _samples(path.read_bytes())


def write(planes: Array, file: BinaryIO, bits: int) -> None:
    """Height x width x channels; what lies outside [0, 1] becomes its nearest end, NaN 0."""
    if bits == 16:  # which Pillow writes of grey only
        _write_wide(steps_of(planes, 16), file)
        return
    from PIL import Image

    pixels = steps_of(planes, 8)
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")


def _write_wide(samples: Array, file: BinaryIO) -> None:
    height, width, channels = samples.shape
    colour = {1: _GREY, 3: _RGB, 4: _RGBA}[channels]
    rows = np.ascontiguousarray(samples, ">u2").view(np.uint8).reshape(height, -1).astype(np.int16)
    rows[1:] -= rows[:-1].copy()  # each as its difference to the one above
    filtered = np.full((height, rows.shape[1] + 1), _UP, np.uint8)
    filtered[:, 1:] = rows & 255
    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    file.write(_SIGNATURE)
    for kind, body in (
        (b"IHDR", head), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b""),
    ):  # fmt: skip
        file.write(struct.pack(">I", len(body)) + kind + body)
        file.write(struct.pack(">I", zlib.crc32(kind + body)))


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
