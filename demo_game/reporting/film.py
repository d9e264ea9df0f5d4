"""Writes a short film of a flight as an animated GIF."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cml_engine.io.atomic_write import write_atomically

Array = np.ndarray[Any, Any]
#: pictures per second, and the film's length in seconds
RATE, SECONDS = 10, 8
#: the film's width in pixels, and its number of colours, at most
_WIDTH, _COLOURS = 400, 128


def write_film(path: Path, pictures: Iterable[Array]) -> None:
    """Writes pictures, uint8 (height, width, 3), as the frames of a smaller animated GIF."""
    frames = [_frame(Image.fromarray(picture)) for picture in pictures]

    def save(file: Any) -> None:
        frames[0].save(
            file, "GIF", save_all=True, append_images=frames[1:], duration=1000 // RATE, loop=0
        )

    write_atomically(path, save)


def _frame(picture: Image.Image) -> Image.Image:
    width = min(_WIDTH, picture.width)
    height = max(1, round(picture.height * width / picture.width))
    return picture.resize((width, height), Image.Resampling.BOX).quantize(_COLOURS)
