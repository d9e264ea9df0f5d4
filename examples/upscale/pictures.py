"""The example's pictures: the input of the network and the pictures to show."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FACTOR = 4
#: the used part of the photo (left, upper, right, lower)
_CROP = (60, 20, 380, 276)
_GAP = 8
_MARGIN = 10


def small_photo(source: Path, size: tuple[int, int]) -> Image.Image:
    """Returns the middle of the photo, scaled down to ``size`` (width, height)."""
    with Image.open(source) as photo:
        cropped = photo.convert("RGB").crop(_CROP)
    return cropped.resize(size, Image.Resampling.LANCZOS)


def enlarge(picture: Image.Image) -> Image.Image:
    """Returns the picture enlarged ``FACTOR`` times by the cubic filter, for comparison."""
    size = (picture.width * FACTOR, picture.height * FACTOR)
    return picture.resize(size, Image.Resampling.BICUBIC)


def side_by_side(left: Image.Image, right: Image.Image, titles: tuple[str, str]) -> Image.Image:
    """Returns one picture with two of equal size side by side, each with its title in a corner."""
    combined = Image.new("RGB", (left.width + _GAP + right.width, left.height), "white")
    for picture, title, x in ((left, titles[0], 0), (right, titles[1], left.width + _GAP)):
        combined.paste(picture, (x, 0))
        _write(ImageDraw.Draw(combined), title, (x + _MARGIN, left.height - 3 * _MARGIN))
    return combined


def _write(draw: ImageDraw.ImageDraw, text: str, at: tuple[int, int]) -> None:
    """Draws white text on a dark plate, which is readable on any picture."""
    font = ImageFont.load_default(size=16)
    left, top, right, bottom = draw.textbbox(at, text, font)
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 3), fill=(24, 24, 24))
    draw.text(at, text, "white", font)
