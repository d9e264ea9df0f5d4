"""Converts pictures to tensors ``scalar[1,C,H,W]`` with one, three or four channels, and back.

A grey picture is copied to three channels; a colour picture is weighted to grey for one channel.
Alpha becomes the fourth channel of four. With fewer channels a picture must be opaque, or its
alpha must be dropped. Integer samples are scaled to 0 to 1, floats are unchanged. Each file
format has a module of its own; two of them need a package that is not installed with the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from cml_engine.errors import InputError
from cml_engine.io import exr, png, tiff
from cml_engine.io.named_file import NamedFile
from cml_engine.ir.graph import Array, Fact

CHANNELS = (1, 3, 4)
#: the weights of red, green and blue in grey (ITU-R BT.601)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class PictureFormat(Protocol):
    """The interface of a module that reads and writes one picture format.

    Pictures are arrays height x width x channels. ``NEEDS`` is the package that the format needs
    or "", ``BITS`` the sample sizes that it can write, the default first.
    """

    @property
    def NEEDS(self) -> str: ...  # noqa: N802
    @property
    def BITS(self) -> tuple[int, ...]: ...  # noqa: N802
    def size(self, path: Path) -> tuple[int, int]: ...
    def read(self, path: Path) -> Array: ...
    def write(self, planes: Array, file: BinaryIO, bits: int) -> None: ...


KINDS: Mapping[str, PictureFormat] = {".png": png, ".tif": tiff, ".tiff": tiff, ".exr": exr}


def can_hold(fact: Fact) -> bool:
    """Returns True if a picture can hold a tensor of this type and shape.

    The tensor must be ``scalar[1,C,H,W]`` with 1, 3 or 4 channels and not empty.
    """
    shape = fact.shape
    fits = len(shape) == 4 and shape[0] == 1 and shape[1] in CHANNELS and fact.size > 0
    return fits and fact.dtype == "scalar"


def check(file: NamedFile, name: str, fact: Fact, *, written: bool) -> None:
    """Raises :class:`InputError` if a picture file cannot hold the tensor.

    This is the case if the tensor's shape or type does not fit, the format's package is not
    installed, or the format does not support the sample size.
    """
    what, kind = "output" if written else "input", KINDS[file.suffix]
    if not can_hold(fact):
        verb = "wants" if written else "holds"
        npy = f"Write '{file.path.with_suffix('.npy').name}'" if written else "Give an .npy"
        raise InputError(
            f"{what} '{name}' is {fact}; {_format_name(file)} {verb} scalar[1,C,H,W] with 1, 3 or "
            f"4 channels. {npy} instead"
        )
    if kind.NEEDS:
        try:
            import_module(kind.NEEDS)
        except ImportError:
            raise InputError(
                f"{what} '{name}': {file.suffix} needs the package {kind.NEEDS}: "
                "pip install 'cml-engine[images]'"
            ) from None
    if file.bits and file.bits not in kind.BITS:
        known = " or ".join(map(str, kind.BITS))
        raise InputError(f"{what} '{name}': {file.suffix} has samples of {known} bits")


def _format_name(file: NamedFile) -> str:
    kind = file.suffix[1:].upper()
    return f"an {kind}" if kind == "EXR" else f"a {kind}"


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
    kind = KINDS[file.suffix]
    kind.write(array[0].transpose(1, 2, 0), stream, file.bits or kind.BITS[0])


def _to_colour(planes: Array) -> Array:
    return np.repeat(planes, 3, 2) if planes.shape[2] == 1 else planes


def _to_grey(planes: Array) -> Array:
    return planes if planes.shape[2] == 1 else planes @ _LUMA[:, None]
