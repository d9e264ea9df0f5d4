"""A texture that repeats without a seam, for details finer than tiles: waves, clouds and grain."""

from __future__ import annotations

import numpy as np
import wgpu

import cml_engine as cml
from cml_engine.demo_game.arrays import Array

SIDE = 256
LEVELS = 9


def patterns() -> Array:
    """Returns the values (256, 256, 4) in [0, 1]: slope of waves in x and z, clouds, grain."""
    random = np.random.default_rng(1)
    waves = _noise(random, 0.2, 12, 90)
    east = np.roll(waves, -1, 1) - np.roll(waves, 1, 1)
    south = np.roll(waves, -1, 0) - np.roll(waves, 1, 0)
    scale = 0.2 / float(np.std(east))
    clouds = 0.5 + 0.2 * _noise(random, 1.6, 2, 100)
    grain = 0.5 + 0.13 * _noise(random, 0.7, 4, 128)
    channels = [0.5 + scale * east, 0.5 + scale * south, clouds, grain]
    return np.clip(np.stack(channels, -1), 0, 1)


def _noise(random: np.random.Generator, fall: float, low: float, high: float) -> Array:
    """Returns periodic noise (256, 256) of mean 0 and standard deviation 1.

    It has between ``low`` and ``high`` waves per side, whose amplitudes fall with the frequency
    to the power ``fall``.
    """
    frequency = np.fft.fftfreq(SIDE, 1 / SIDE)
    radius = np.hypot(frequency[:, None], frequency[None, :])
    weight = np.where((radius >= low) & (radius <= high), np.maximum(radius, 1) ** -(fall + 0.5), 0)
    phase = np.fft.fft2(random.standard_normal((SIDE, SIDE)))
    noise = np.fft.ifft2(phase * weight).real
    result: Array = noise / noise.std()
    return result


def create_patterns(gpu: cml.Gpu) -> wgpu.GPUTexture:
    """Creates the texture with all its mip levels and uploads the patterns."""
    texture = gpu.memory.create_texture(
        size=(SIDE, SIDE, 1),
        format="rgba8unorm",
        mip_level_count=LEVELS,
        usage=wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_DST,
        owner="patterns",
    )
    texels = patterns()
    for level in range(LEVELS):
        side = len(texels)
        gpu.queue.write_texture(
            {"texture": texture, "mip_level": level},
            np.round(texels * 255).astype(np.uint8),
            {"bytes_per_row": 4 * side, "rows_per_image": side},
            (side, side, 1),
        )
        texels = texels.reshape(max(side // 2, 1), -1, max(side // 2, 1), min(side, 2), 4)
        texels = texels.mean((1, 3))
    return texture
