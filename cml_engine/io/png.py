"""Reads PNG files of every colour type and depth, and writes 8 and 16 bits.

The largest sample, 255 of 8 bits or 65535 of 16 bits, is 1.0.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cml_engine.io.pixel_values import quantize_pixels
from cml_engine.ir.graph import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
NEEDS = ""
BITS = (8, 16)
#: Pillow's raw modes for the high and low bytes of 16-bit samples, by PNG colour type. Pillow keeps
#: only 8 bits per colour, so the two bytes are read separately.
_HIGH_AND_LOW = {2: ("RGB;16B", "RGB;16L"), 6: ("RGBA;16B", "RGBA;16L")}
_GREY, _RGB, _GREY_ALPHA, _RGBA = 0, 2, 4, 6
#: the PNG filter that stores a row as its difference from the row above
_UP = 2


def size(path: Path) -> tuple[int, int]:
    """Returns the height and width from the header; raises ``ValueError`` for an invalid PNG."""
    width, height, _, _ = _head(path.read_bytes())
    return height, width


def read(path: Path) -> Array:
    """Reads a PNG as float32 in [0, 1], height x width x channels.

    The channels are grey or colour, optionally with alpha. Raises ``ValueError``, or an
    exception of Pillow's, if the file is damaged.
    """
    return _samples(path.read_bytes())


def write(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels to the stream as a PNG of 8 or 16 bits.

    Values are clipped to [0, 1], NaN becomes 0.
    """
    if bits == 16:  # Pillow writes 16 bits for grey only
        _write_wide(quantize_pixels(planes, 16), file)
        return
    from PIL import Image

    pixels = quantize_pixels(planes, 8)
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")


def _write_wide(samples: Array, file: BinaryIO) -> None:
    height, width, channels = samples.shape
    colour = {1: _GREY, 3: _RGB, 4: _RGBA}[channels]
    rows = np.ascontiguousarray(samples, ">u2").view(np.uint8).reshape(height, -1).astype(np.int16)
    rows[1:] -= rows[:-1].copy()  # the filter ``_UP``
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
    """Returns the width, height, bits per sample and colour type from a PNG's header.

    Raises ``ValueError`` if the data is no PNG.
    """
    if data[: len(_SIGNATURE)] != _SIGNATURE:
        raise ValueError("it is no PNG")
    kind, body = next(_chunks(data))
    if kind != b"IHDR" or len(body) != 13:
        raise ValueError("it is no PNG")
    width, height, depth, colour = struct.unpack_from(">IIBB", body)
    return width, height, depth, colour


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the type and data of every chunk, up to and including IEND.

    Raises ``ValueError`` at a chunk with a wrong checksum, or if the data ends early.
    """
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
    """Decodes a PNG to float32 in [0, 1], height x width x channels.

    The channels are grey or colour, optionally with alpha.
    """
    for _ in _chunks(data):  # Pillow does not verify the checksums of pixel data
        pass
    _, _, depth, colour = _head(data)
    if depth == 16:
        wide, key = _unfilter_wide(data, colour)
        planes = wide.astype(np.float32) / np.float32(65535)
        if key is not None:
            alpha = np.any(wide != np.asarray(key), 2, keepdims=True)
            planes = np.concatenate([planes, alpha.astype(np.float32)], 2)
        return planes
    with _decompress(data) as image:
        has_alpha = "A" in image.getbands() or "transparency" in image.info
        is_grey = image.mode in ("1", "L", "LA", "I", "I;16")
        mode = ("L" if is_grey else "RGB") + ("A" if has_alpha else "")
        pixels = np.asarray(image.convert(mode), np.float32) / np.float32(255)
    return pixels.reshape(*pixels.shape[:2], -1)


def _unfilter_wide(data: bytes, colour: int) -> tuple[Array, Any]:
    """Returns the uint16 samples (height x width x channels), and the transparent sample.

    The second value is the sample that marks transparent pixels, or None.
    """
    with _decompress(data) as image:
        key = image.info.get("transparency")
        if colour == _GREY:
            return np.asarray(image).astype(np.uint16)[..., None], key
    if colour == _GREY_ALPHA:  # four bytes per pixel, like 8-bit RGBA
        four = _raw(data, "RGBA")
        return four[..., ::2] * np.uint16(256) + four[..., 1::2], key
    high, low = (_raw(data, mode) for mode in _HIGH_AND_LOW[colour])
    return high * np.uint16(256) + low, key


def _raw(data: bytes, mode: str) -> Array:
    with _decompress(data) as image:
        image.tile = [(*tile[:3], mode) for tile in image.tile]
        return np.asarray(image).astype(np.uint16)


def _decompress(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=["PNG"])
