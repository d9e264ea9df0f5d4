"""Converts pictures to tensors ``scalar[1,C,H,W]`` with one, three or four channels, and back.

A grey picture is copied to three channels; a colour picture is weighted to grey for one channel.
Alpha becomes the fourth channel of four. With fewer channels a picture must be opaque, or its
alpha must be dropped. Integer samples are scaled to 0 to 1, floats are unchanged.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from cml_engine.errors import InputError
from cml_engine.io.named_file import NamedFile
from cml_engine.ir.graph import Array, Fact

CHANNELS = (1, 3, 4)
#: the weights of red, green and blue in grey (ITU-R BT.601)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class PictureFormat:
    """A picture format: the package it needs or "", and its sample sizes, the default first.

    The functions return a file's height and width, and read and write pictures as arrays height x
    width x channels.
    """

    package: str
    bits: tuple[int, ...]
    size: Callable[[Path], tuple[int, int]]
    read: Callable[[Path], Array]
    write: Callable[[Array, BinaryIO, int], None]


def can_hold(fact: Fact) -> bool:
    """Returns True if a picture can hold a tensor of this type and shape.

    The tensor must be ``scalar[1,C,H,W]`` with 1, 3 or 4 channels and not empty.
    """
    shape = fact.shape
    fits = len(shape) == 4 and shape[0] == 1 and shape[1] in CHANNELS and fact.size > 0
    return fits and fact.dtype == "scalar"


def check(file: NamedFile, name: str, fact: Fact, *, is_output: bool) -> None:
    """Raises :class:`InputError` if a picture file cannot hold the tensor.

    This is the case if the tensor's shape or type does not fit, the format's package is not
    installed, or the format does not support the sample size.
    """
    role, picture_format = "output" if is_output else "input", KINDS[file.suffix]
    if not can_hold(fact):
        verb = "wants" if is_output else "holds"
        npy = f"Write '{file.path.with_suffix('.npy').name}'" if is_output else "Give an .npy"
        raise InputError(
            f"{role} '{name}' is {fact}; {_format_name(file)} {verb} scalar[1,C,H,W] with 1, 3 or "
            f"4 channels. {npy} instead"
        )
    if picture_format.package:
        try:
            import_module(picture_format.package)
        except ImportError:
            raise InputError(
                f"{role} '{name}': {file.suffix} needs the package {picture_format.package}: "
                'pip install "cml-engine[images]"'
            ) from None
    if file.bits and file.bits not in picture_format.bits:
        sizes = " or ".join(map(str, picture_format.bits))
        raise InputError(f"{role} '{name}': {file.suffix} has samples of {sizes} bits")


def _format_name(file: NamedFile) -> str:
    suffix = file.suffix[1:].upper()
    return f"an {suffix}" if suffix == "EXR" else f"a {suffix}"


def size(file: NamedFile) -> tuple[int, int]:
    """Returns the height and width of a picture file, from its header."""
    return KINDS[file.suffix].size(file.path)


def read(file: NamedFile, channels: int) -> Array:
    """Returns a picture file as a tensor ``scalar[1,channels,H,W]``.

    Grey and colour are converted into each other. Raises ``ValueError`` if transparent pixels
    would be lost, unless the file's option is ``alpha=drop``.
    """
    planes = KINDS[file.suffix].read(file.path)
    if planes.shape[2] not in (1, 2, 3, 4):
        raise ValueError(f"it has {planes.shape[2]} channels; wanted 1 to 4")
    has_alpha = planes.shape[2] in (2, 4)
    colours, alpha = (planes[..., :-1], planes[..., -1:]) if has_alpha else (planes, None)
    if channels == 4:
        alpha = np.ones_like(colours[..., :1]) if alpha is None else alpha
        colours = np.concatenate([_to_colour(colours), alpha], 2)
    elif alpha is not None and file.alpha != "drop" and not (alpha >= 1).all():
        raise ValueError(
            f"it has transparent pixels and the model takes {channels} channels: put it on a "
            f"background first, or leave alpha out: {file.path.name}:alpha=drop"
        )
    else:
        colours = _to_colour(colours) if channels == 3 else _to_grey(colours)
    return np.ascontiguousarray(colours.transpose(2, 0, 1)[None])


def write(array: Array, file: NamedFile, stream: BinaryIO) -> None:
    """Writes a tensor ``scalar[1,C,H,W]`` to the stream in the format of the file's suffix."""
    picture_format = KINDS[file.suffix]
    picture_format.write(array[0].transpose(1, 2, 0), stream, file.bits or picture_format.bits[0])


def _to_colour(planes: Array) -> Array:
    return np.repeat(planes, 3, 2) if planes.shape[2] == 1 else planes


def _to_grey(planes: Array) -> Array:
    return planes if planes.shape[2] == 1 else planes @ _LUMA[:, None]


# -- samples


def _quantize(planes: Array, bits: int) -> Array:
    """Converts floats in [0, 1] to uint8 or uint16; values outside are clipped, NaN becomes 0."""
    maximum = (1 << bits) - 1
    clipped = np.nan_to_num(np.clip(planes, 0, 1), nan=0.0).astype(np.float64)
    return np.asarray(np.rint(clipped * maximum), np.uint8 if bits == 8 else np.uint16)


def _dequantize(samples: Array) -> Array:
    """Converts unsigned integers to float32 in [0, 1]; floats and booleans keep their values.

    Raises ``ValueError`` for other types.
    """
    if samples.dtype.kind in "fb":
        return samples.astype(np.float32)
    if samples.dtype.kind != "u":
        raise ValueError(f"it has samples of type {samples.dtype}; wanted unsigned ones or floats")
    return (samples / float(np.iinfo(samples.dtype).max)).astype(np.float32)


# -- PNG: the largest sample, 255 of 8 bits or 65535 of 16 bits, is 1.0

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Pillow's raw modes for the high and low bytes of 16-bit samples, by PNG colour type. Pillow keeps
#: only 8 bits per colour, so the two bytes are read separately.
_HIGH_AND_LOW = {2: ("RGB;16B", "RGB;16L"), 6: ("RGBA;16B", "RGBA;16L")}
_GREY, _RGB, _GREY_ALPHA, _RGBA = 0, 2, 4, 6
#: the PNG filter that stores a row as its difference from the row above
_UP = 2


def _png_size(path: Path) -> tuple[int, int]:
    """Returns the height and width from the header; raises ``ValueError`` for an invalid PNG."""
    width, height, _, _ = _head(path.read_bytes())
    return height, width


def read_png(path: Path) -> Array:
    """Reads a PNG as float32 in [0, 1], height x width x channels.

    The channels are grey or colour, optionally with alpha. Raises ``ValueError``, or an
    exception of Pillow's, if the file is damaged.
    """
    data = path.read_bytes()
    for _ in _chunks(data):  # Pillow does not verify the checksums of pixel data
        pass
    _, _, depth, colour = _head(data)
    if depth == 16:
        samples, key = _unfilter_wide(data, colour)
        planes = samples.astype(np.float32) / np.float32(65535)
        if key is not None:
            alpha = np.any(samples != np.asarray(key), 2, keepdims=True)
            planes = np.concatenate([planes, alpha.astype(np.float32)], 2)
        return planes
    with _decompress(data) as image:
        has_alpha = "A" in image.getbands() or "transparency" in image.info
        is_grey = image.mode in ("1", "L", "LA", "I", "I;16")
        mode = ("L" if is_grey else "RGB") + ("A" if has_alpha else "")
        pixels = np.asarray(image.convert(mode), np.float32) / np.float32(255)
    return pixels.reshape(*pixels.shape[:2], -1)


def write_png(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels to the stream as a PNG of 8 or 16 bits.

    Values are clipped to [0, 1], NaN becomes 0.
    """
    if bits == 16:  # Pillow writes 16 bits for grey only
        _write_wide(_quantize(planes, 16), file)
        return
    from PIL import Image

    pixels = _quantize(planes, 8)
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
    for chunk_type, body in (
        (b"IHDR", head), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b""),
    ):  # fmt: skip
        file.write(struct.pack(">I", len(body)) + chunk_type + body)
        file.write(struct.pack(">I", zlib.crc32(chunk_type + body)))


def _head(data: bytes) -> tuple[int, int, int, int]:
    """Returns the width, height, bits per sample and colour type from a PNG's header.

    Raises ``ValueError`` if the data is no PNG.
    """
    if data[: len(_SIGNATURE)] != _SIGNATURE:
        raise ValueError("it is no PNG")
    chunk_type, body = next(_chunks(data))
    if chunk_type != b"IHDR" or len(body) != 13:
        raise ValueError("it is no PNG")
    width, height, depth, colour = struct.unpack_from(">IIBB", body)
    return width, height, depth, colour


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the type and data of every chunk, up to and including IEND.

    Raises ``ValueError`` at a chunk with a wrong checksum, or if the data ends early.
    """
    offset = len(_SIGNATURE)
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "big")
        type_and_body, checksum = (
            data[offset + 4 : offset + 8 + length],
            data[offset + 8 + length : offset + 12 + length],
        )
        if len(checksum) < 4 or zlib.crc32(type_and_body) != int.from_bytes(checksum, "big"):
            raise ValueError("it is damaged: save it again")
        yield type_and_body[:4], type_and_body[4:]
        if type_and_body == b"IEND":
            return
        offset += 12 + length
    raise ValueError("it ends early: save it again")


def _unfilter_wide(data: bytes, colour: int) -> tuple[Array, int | tuple[int, ...] | None]:
    """Returns the uint16 samples (height x width x channels), and the transparent sample.

    The second value is the sample that marks transparent pixels, or None.
    """
    with _decompress(data) as image:
        key = image.info.get("transparency")
        if colour == _GREY:
            return np.asarray(image).astype(np.uint16)[..., None], key
    if colour == _GREY_ALPHA:  # four bytes per pixel, like 8-bit RGBA
        bytes_of_pixels = _raw(data, "RGBA")
        return bytes_of_pixels[..., ::2] * np.uint16(256) + bytes_of_pixels[..., 1::2], key
    high, low = (_raw(data, mode) for mode in _HIGH_AND_LOW[colour])
    return high * np.uint16(256) + low, key


def _raw(data: bytes, mode: str) -> Array:
    with _decompress(data) as image:
        image.tile = [(*tile[:3], mode) for tile in image.tile]
        return np.asarray(image).astype(np.uint16)


def _decompress(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=["PNG"])


# -- TIFF, with tifffile


def _tiff_size(path: Path) -> tuple[int, int]:
    """Returns the height and width of a file's first page."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages[0]
        return int(page.imagelength), int(page.imagewidth)


def _read_tiff(path: Path) -> Array:
    """Reads the first page as float32, height x width x channels; integers become [0, 1]."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages[0]
        samples = np.asarray(page.asarray())
        is_planar = page.samplesperpixel > 1 and page.planarconfig == 2
    if samples.ndim == 2:
        samples = samples[..., None]
    elif is_planar:
        samples = np.moveaxis(samples, 0, -1)
    return _dequantize(samples)


def _write_tiff(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels as one page; ``bits`` 32 means floats."""
    import tifffile

    samples = planes.astype(np.float32) if bits == 32 else _quantize(planes, bits)
    count = samples.shape[2]
    buffer = io.BytesIO()  # tifffile needs a seekable file
    tifffile.imwrite(
        buffer,
        samples[..., 0] if count == 1 else samples,
        photometric="minisblack" if count == 1 else "rgb",
        planarconfig=None if count == 1 else "contig",
        extrasamples=("unassalpha",) if count == 4 else None,
        metadata=None,
    )
    file.write(buffer.getvalue())


# -- OpenEXR, with the package OpenEXR

#: channel names by number of channels; Z is a depth
_NAMES = {1: ("Y",), 3: ("R", "G", "B"), 4: ("R", "G", "B", "A")}
_READ = (("R", "G", "B", "A"), ("R", "G", "B"), ("Y", "A"), ("Y",), ("Z",))


def _exr_size(path: Path) -> tuple[int, int]:
    """Returns the height and width of a file's data window."""
    import OpenEXR

    with OpenEXR.File(str(path), header_only=True) as file:
        low, high = file.header()["dataWindow"]
    return int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1


def _read_exr(path: Path) -> Array:
    """Returns the first part of a file as float32, height x width x channels.

    The channels are colour or grey, optionally with alpha. A file with a single channel of any name
    is grey. Raises ``ValueError`` for other channels.
    """
    import OpenEXR

    with OpenEXR.File(str(path), separate_channels=True) as file:
        channels = {name: np.array(channel.pixels) for name, channel in file.channels().items()}
    names = next((names for names in _READ if set(names) <= set(channels)), None)
    if names is None and len(channels) == 1:
        names = tuple(channels)
    if names is None:
        raise ValueError(f"it has the channels {', '.join(channels)}; wanted R, G, B (A), Y or Z")
    return np.stack([channels[name] for name in names], 2).astype(np.float32)


def _write_exr(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels to the stream, as 16-bit or 32-bit floats.

    The file is compressed without loss.
    """
    import OpenEXR

    dtype = np.float16 if bits == 16 else np.float32
    names = _NAMES[planes.shape[2]]
    channels = {name: np.ascontiguousarray(planes[..., k], dtype) for k, name in enumerate(names)}
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with TemporaryDirectory() as folder, OpenEXR.File(header, channels) as picture:
        path = Path(folder) / "picture.exr"  # the library writes to paths only
        picture.write(str(path))
        file.write(path.read_bytes())


_PNG = PictureFormat("", (8, 16), _png_size, read_png, write_png)
_TIFF = PictureFormat("tifffile", (32, 16, 8), _tiff_size, _read_tiff, _write_tiff)
_EXR = PictureFormat("OpenEXR", (32, 16), _exr_size, _read_exr, _write_exr)
KINDS: Mapping[str, PictureFormat] = {".png": _PNG, ".tif": _TIFF, ".tiff": _TIFF, ".exr": _EXR}
