"""Reads and writes TIFF pictures, 8-bit or 16-bit integers or floats, with tifffile."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cml_engine.io.pixel_values import dequantize_pixels, quantize_pixels
from cml_engine.ir.graph import Array

NEEDS = "tifffile"
BITS = (32, 16, 8)


def size(path: Path) -> tuple[int, int]:
    """Returns the height and width of a file's first page."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages[0]
        return int(page.imagelength), int(page.imagewidth)


def read(path: Path) -> Array:
    """Reads the first page as float32, height x width x channels; integers become [0, 1]."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages[0]
        samples = np.asarray(page.asarray())
        apart = page.samplesperpixel > 1 and page.planarconfig == 2
    if samples.ndim == 2:
        samples = samples[..., None]
    elif apart:
        samples = np.moveaxis(samples, 0, -1)
    return dequantize_pixels(samples)


def write(planes: Array, file: BinaryIO, bits: int) -> None:
    """Writes an array height x width x channels as one page; ``bits`` 32 means floats."""
    import tifffile

    samples = planes.astype(np.float32) if bits == 32 else quantize_pixels(planes, bits)
    count = samples.shape[2]
    made = io.BytesIO()  # tifffile needs a seekable file
    tifffile.imwrite(
        made,
        samples[..., 0] if count == 1 else samples,
        photometric="minisblack" if count == 1 else "rgb",
        planarconfig=None if count == 1 else "contig",
        extrasamples=("unassalpha",) if count == 4 else None,
        metadata=None,
    )
    file.write(made.getvalue())
