"""The pictures that the network is trained on and measured on, each of them free to use.

Training sees textures that this module draws and renderings of the demo game. Held out are
textures of sizes that training leaves out, the demo's own world (training renders other worlds),
and photos of the package scikit-image.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from cml_engine import demo_game
from examples.upscale import assets

Array = NDArray[np.float32]
ROOT = Path(__file__).resolve().parents[2]
#: width and height of a texture, in pixels
SIZE = 256
#: textures are drawn this many times larger, and scaled down, so that their edges are smooth
_FINER = 2
#: sizes of bricks, planks, letters, relative to the usual one: training leaves out a band
_SCALES, _HELD_OUT = (0.5, 2.0), (0.85, 1.2)
#: seeds of the worlds that training sees; the demo flies over world 7
_TRAINED_WORLDS, _HELD_OUT_WORLD = range(11, 19), 7
#: public domain (astronaut: NASA, rocket: SpaceX) or CC0
_PHOTOS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "chelsea.png": assets.PHOTO.sha256,
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
}


# ------------------------------------------------------------------ textures


def texture(family: str, rng: np.random.Generator, held_out: bool = False) -> Image.Image:
    """Returns a random texture of SIZE x SIZE pixels, of one of the ``FAMILIES``.

    A held-out one has bricks, planks or letters of a size that training never draws.
    """
    scale = 2.0 ** rng.uniform(*np.log2(_HELD_OUT if held_out else _SCALES))
    while not held_out and _HELD_OUT[0] <= scale <= _HELD_OUT[1]:
        scale = 2.0 ** rng.uniform(*np.log2(_SCALES))
    return FAMILIES[family](rng, float(scale))


def _noise(rng: np.random.Generator, size: int, cell: float, octaves: int = 5) -> Array:
    """Returns smooth random noise [size, size] whose largest absolute value is 1.

    Its largest features are about ``cell`` pixels wide.
    """
    total = np.zeros((size, size), np.float32)
    for octave in range(octaves):
        points = max(2, round(size / cell * 2**octave))
        if points > size:
            break
        grid = Image.fromarray(rng.uniform(-1, 1, (points, points)).astype(np.float32))
        total += np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC)) / 2**octave
    return np.asarray(total / np.abs(total).max())


def _colour(rng: np.random.Generator, low: float = 0.1, high: float = 0.9) -> Array:
    """Returns a random colour [3] near grey, as materials are."""
    colour = rng.uniform(low, high) + rng.uniform(-0.2, 0.2, 3)
    return np.asarray(np.clip(colour, 0, 1), np.float32)


def _mix(low: Array, high: Array, part: Array) -> Array:
    return np.asarray(low + (high - low) * part[..., None])


def _picture(colours: Array) -> Image.Image:
    """Returns colours [H, W, 3] in [0, 1] as a picture, scaled down to SIZE x SIZE pixels."""
    picture = Image.fromarray((np.clip(colours, 0, 1) * 255 + 0.5).astype(np.uint8))
    return picture.resize((SIZE, SIZE), Image.Resampling.BOX)


def _positions(angle: float = 0.0) -> tuple[Array, Array]:
    """Returns x and y of every pixel before a texture is scaled down, turned by ``angle`` radians.

    The unit is a pixel of the final texture.
    """
    y, x = np.mgrid[: SIZE * _FINER, : SIZE * _FINER].astype(np.float32) / _FINER
    return x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)


def bricks(rng: np.random.Generator, scale: float) -> Image.Image:
    x, y = _positions()
    high, long, gap = 16 * scale, 40 * scale, 1 + 1.5 * scale * rng.random()
    row = np.floor(y / high)
    along = x + (row % 2) * long / 2
    column = np.floor(along / long)
    inside = (y % high > gap) & (along % long > gap)
    shades = rng.uniform(-0.15, 0.15, (97, 89)).astype(np.float32)
    shade = shades[row.astype(int) % 97, column.astype(int) % 89]
    grain = 0.12 * _noise(rng, SIZE * _FINER, 12 * scale)
    lit = 0.1 * ((y % high < gap + 1.5) & inside)
    stone, mortar = _colour(rng), _colour(rng)
    return _picture(_mix(mortar, stone, inside.astype(np.float32)) + (
        (shade * inside) + grain + lit
    )[..., None])  # fmt: skip


def planks(rng: np.random.Generator, scale: float) -> Image.Image:
    x, y = _positions(rng.choice([0.0, np.pi / 2]))
    width = 28 * scale
    board = np.floor(y / width)
    warp = 10 * scale * _noise(rng, SIZE * _FINER, 60 * scale, 3)
    offsets = rng.uniform(0, 100, 997).astype(np.float32)[board.astype(int) % 997]
    rings = np.sin((y % width + warp + offsets + 0.02 * x) / (0.6 * scale))
    fine = _noise(rng, SIZE * _FINER, 6 * scale, 2)
    part = 0.5 + 0.3 * rings + 0.15 * fine + 0.002 * (offsets - 50)
    gap = (y % width > 1.5).astype(np.float32)
    dark = _colour(rng, 0.1, 0.5)
    return _picture(_mix(dark, dark + rng.uniform(0.1, 0.4), part) * gap[..., None])


def ground(rng: np.random.Generator, scale: float) -> Image.Image:
    size = SIZE * _FINER
    part = 0.5 + 0.5 * _noise(rng, size, 50 * scale, 7)
    colours = _mix(_colour(rng), _colour(rng), part)
    patches = _noise(rng, size, 30 * scale, 6) > 0.1
    return _picture(np.where(patches[..., None], colours, _mix(_colour(rng), colours, part)))


def tiles(rng: np.random.Generator, scale: float) -> Image.Image:
    x, y = _positions(rng.uniform(0, np.pi))
    width = 14 * scale
    odd = (np.floor(x / width) + np.floor(y / width)) % 2
    seam = (x % width < 1.0) | (y % width < 1.0)
    colours = _mix(_colour(rng), _colour(rng), odd)
    grain = 0.05 * _noise(rng, SIZE * _FINER, 8 * scale)
    return _picture(np.where(seam[..., None], _colour(rng), colours) + grain[..., None])


def _canvas(rng: np.random.Generator) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    picture = Image.new("RGB", (SIZE * _FINER, SIZE * _FINER), _ink(rng))
    return picture, ImageDraw.Draw(picture)


def _ink(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in rng.integers(0, 256, 3))
    return red, green, blue


def foliage(rng: np.random.Generator, scale: float) -> Image.Image:
    picture, draw = _canvas(rng)
    green = _colour(rng, 0.1, 0.5) + np.array([-0.1, 0.15, -0.1])
    for _ in range(int(900 / scale**2)):
        centre, angle = rng.uniform(0, SIZE * _FINER, 2), rng.uniform(0, 2 * np.pi)
        along = 14 * scale * np.array([np.cos(angle), np.sin(angle)]) * rng.uniform(0.5, 1.5)
        across = np.array([-along[1], along[0]]) * 0.25
        leaf = [centre - along, centre + across, centre + along, centre - across]
        shade = np.clip(green + rng.uniform(-0.25, 0.3), 0, 1) * 255
        draw.polygon([(float(px), float(py)) for px, py in leaf], fill=tuple(map(int, shade)))
    return picture.resize((SIZE, SIZE), Image.Resampling.BOX)


def shapes(rng: np.random.Generator, scale: float) -> Image.Image:
    """Returns a texture of flat polygons, discs and lines, like signs and cel shading."""
    picture, draw = _canvas(rng)
    for _ in range(int(40 / scale)):
        points = rng.uniform(0, SIZE * _FINER, 2) + rng.uniform(-90, 90, (4, 2)) * scale
        corners = [(float(px), float(py)) for px, py in points]
        width = int(rng.integers(1, 9) * scale) + 1
        match int(rng.integers(3)):
            case 0:
                draw.polygon(corners[:3], fill=_ink(rng))
            case 1:
                draw.line(corners, fill=_ink(rng), width=width, joint="curve")
            case _:
                draw.circle(corners[0], 30 * scale, fill=_ink(rng), outline=_ink(rng), width=width)
    return picture.resize((SIZE, SIZE), Image.Resampling.BOX)


def interface(rng: np.random.Generator, scale: float) -> Image.Image:
    """Returns a texture of panels with letters, at its final size, as a user interface has them."""
    picture = Image.new("RGB", (SIZE, SIZE), _ink(rng))
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y = (int(v) for v in rng.integers(-30, SIZE - 30, 2))
        width, height = (int(v) for v in rng.integers(40, 160, 2))
        back, ink = _ink(rng), _ink(rng)
        draw.rounded_rectangle((x, y, x + width, y + height), int(rng.integers(0, 12)), back, ink)
        font = ImageFont.load_default(size=round(11 * scale * rng.uniform(0.9, 1.1)))
        step = round(15 * scale)
        for line in range(y + 4, y + height - step, step):
            letters = rng.integers(33, 123, int(rng.integers(3, 24))).astype(np.uint8)
            draw.text((x + 6, line), letters.tobytes().decode("ascii"), ink, font)
    return picture


FAMILIES: Mapping[str, Callable[[np.random.Generator, float], Image.Image]] = {
    "bricks": bricks,
    "planks": planks,
    "ground": ground,
    "tiles": tiles,
    "foliage": foliage,
    "shapes": shapes,
    "interface": interface,
}


# ------------------------------------------------------------------ renderings


def views(held_out: bool) -> Iterator[tuple[int, int, str]]:
    """Yields the world's seed, the second of its flight, and the light of every rendering.

    These are the renderings for training, or the ``held_out`` ones.
    """
    if held_out:
        for second in (5, 35, 65):
            yield from ((_HELD_OUT_WORLD, second, light) for light in ("day", "evening"))
        return
    for seed in _TRAINED_WORLDS:
        yield seed, 3 * seed, "day"
        yield seed, 120 + 3 * seed, "evening"


def renderings(folder: Path, held_out: bool) -> Iterator[Image.Image]:
    """Yields pictures of the demo game from ``folder``; runs the game to make missing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, second, light in views(held_out):
        path = folder / f"world{seed}-{second}s-{light}.png"
        if not path.exists():
            command = [sys.executable, "-m", demo_game.__name__, "--headless", "--clock=virtual"]
            command += ["--frames=1", "--quality=low", "--size=960x540", f"--light={light}"]
            command += [f"--seed={seed}", f"--start={second}", f"--screenshot={path}"]
            subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        yield _opened(path)


def photos() -> Iterator[Image.Image]:
    """Yields the photos of the test set as RGB pictures; downloads missing ones."""
    photo_assets = [
        assets.Asset(assets.PICTURES, f"skimage/data/{n}", h) for n, h in _PHOTOS.items()
    ]
    for credit in assets.fetch(*photo_assets):
        print(credit, file=sys.stderr)
    for asset in photo_assets:
        yield _opened(asset.path)


def _opened(path: Path) -> Image.Image:
    """Returns the picture of a file in RGB, cut to even width and height."""
    with Image.open(path) as picture:
        return picture.convert("RGB").crop((0, 0, picture.width & ~1, picture.height & ~1))


# ------------------------------------------------------------------ pairs and their distance


def halved(picture: Image.Image) -> Image.Image:
    """Returns the picture at half its size, by the antialiased cubic filter (a = -0.5)."""
    half = (picture.width // 2, picture.height // 2)
    return picture.resize(half, Image.Resampling.BICUBIC)


def doubled(picture: Image.Image) -> Image.Image:
    """Returns the picture at twice its size, by the cubic filter (a = -0.5)."""
    size = (picture.width * 2, picture.height * 2)
    return picture.resize(size, Image.Resampling.BICUBIC)


def as_planes(picture: Image.Image) -> Array:
    """Returns a picture as float32 [3, H, W] with values from 0 to 1."""
    return np.asarray(picture, np.float32).transpose(2, 0, 1) / np.float32(255)


def psnr(picture: Image.Image, truth: Image.Image) -> float:
    """Returns the peak signal-to-noise ratio of two pictures over all pixels and colours, in dB."""
    wrong = np.asarray(picture, np.float64) - np.asarray(truth, np.float64)
    return float(10 * np.log10(255**2 / np.mean(wrong**2)))
