"""Reads and writes OpenEXR pictures, 16-bit and 32-bit floats, with the package OpenEXR."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from cml_engine.ir.graph import Array

NEEDS = "OpenEXR"
BITS = (32, 16)
#: channel names by number of channels; Z is a depth
_NAMES = {1: ("Y",), 3: ("R", "G", "B"), 4: ("R", "G", "B", "A")}
_READ = (("R", "G", "B", "A"), ("R", "G", "B"), ("Y", "A"), ("Y",), ("Z",))


def size(path: Path) -> tuple[int, int]:
    """Returns the height and width of a file's data window."""
    import OpenEXR

    with OpenEXR.File(str(path), header_only=True) as file:
        low, high = file.header()["dataWindow"]
    return int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1


def read(path: Path) -> Array:
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


def write(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels to the stream, as 16-bit or 32-bit floats.

    The file is compressed without loss.
    """
    import OpenEXR

    dtype = np.float16 if bits == 16 else np.float32
    names = _NAMES[planes.shape[2]]
    channels = {name: np.ascontiguousarray(planes[..., k], dtype) for k, name in enumerate(names)}
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with TemporaryDirectory() as folder, OpenEXR.File(header, channels) as made:
        path = Path(folder) / "picture.exr"  # the library writes to paths only
        made.write(str(path))
        file.write(path.read_bytes())
