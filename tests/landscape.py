"""Tiles made in NumPy, for pictures without any network: the noise's heights, plain colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import wgpu

import cml_engine as cml
from demo_game.render.renderer import Renderer, VisibleTile
from demo_game.world import noise
from demo_game.world.quadtree import Detail, select
from demo_game.world.sun import SUN
from demo_game.world.tile import FINE, PAINTED, WIDE, WIDE_APRON, TileId

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Made:
    """What the networks would make of a tile."""

    height: Array
    shading: Array
    texels: Array
    instances: Array
    draw: Array


@lru_cache(maxsize=1024)
def make(tile: TileId, seed: int) -> Made:
    """A tile's tensors."""
    first_x, first_z = tile.first_cell
    k = np.arange(WIDE, dtype=np.int32) - WIDE_APRON
    gz, gx = np.meshgrid(k + first_z, k + first_x, indexing="ij")
    heights = noise.height(gx, gz, tile.level, seed)
    heights = heights + tile.cell_m * noise.detail(gx, gz, tile.level, seed)
    fine = slice(WIDE_APRON - 4, WIDE_APRON - 4 + FINE)
    light = _light(heights, tile.cell_m)
    wet = noise.moisture(gx, gz, tile.level, seed)[fine, fine]
    colour = _colour(heights[fine, fine], light[fine, fine], wet, gx[fine, fine], gz[fine, fine])
    instances, count = _plants(heights[fine, fine], light[fine, fine], wet, tile)
    return Made(
        heights[fine, fine].astype(np.float32),
        np.round(light[fine, fine] * 255).astype(np.uint8),
        np.round(colour * 255).astype(np.uint8),
        instances,
        np.array([36, count, 0, 0], np.uint32),
    )


def _light(heights: Array, cell: float) -> Array:
    """Normal x and z, ambient occlusion, sunlight: (96, 96, 4) in [0, 1]."""
    slope_z, slope_x = (s / cell for s in np.gradient(np.maximum(heights, 0)))
    up = 1 / np.sqrt(1 + slope_x**2 + slope_z**2)
    around = sum(np.roll(heights, s, a) for s in (-4, -2, 2, 4) for a in (0, 1)) / 8
    open_sky = np.clip(1 - 0.35 * (around - heights) / (2 * cell), 0.3, 1)
    sun_x, sun_y, sun_z = SUN
    flat = math.hypot(sun_x, sun_z)
    lit = np.ones_like(heights)
    for step in range(1, 17):
        dx, dz = round(step * sun_x / flat), round(step * sun_z / flat)
        ray = heights + step * cell * sun_y / flat
        over = np.roll(heights, (-dz, -dx), (0, 1)) - ray
        lit = np.minimum(lit, np.clip(1 - over / (0.6 * cell), 0, 1))
    nx, nz = -slope_x * up * 0.5 + 0.5, -slope_z * up * 0.5 + 0.5
    return np.stack([nx, nz, open_sky, lit], -1)


def _colour(heights: Array, light: Array, wet: Array, gx: Array, gz: Array) -> Array:
    """(128, 128, 4) sRGB and roughness."""

    def fine(a: Array) -> Array:
        return np.repeat(np.repeat(a, 2, 0), 2, 1)

    up = fine(
        np.sqrt(np.clip(1 - (light[..., 0] * 2 - 1) ** 2 - (light[..., 1] * 2 - 1) ** 2, 0, 1))
    )
    h = fine(heights)
    grains = np.random.default_rng(abs(int(gx[0, 0]) * 7919 + int(gz[0, 0]))).random((PAINTED,) * 2)
    mix = (fine(wet) + 0.25 * (grains - 0.5))[..., None]
    grass = np.array([0.52, 0.53, 0.29]) + np.clip(mix, 0, 1) * np.array([-0.24, -0.11, -0.13])
    forest = np.array([0.18, 0.27, 0.14])
    rock, snow = np.array([0.45, 0.42, 0.39]), np.array([0.93, 0.94, 0.97])
    sand = np.array([0.80, 0.73, 0.56])
    noisy = h + 60 * (grains - 0.5)

    def blend(a: Array, b: Array, t: Array) -> Array:
        return a + (b - a) * np.clip(t, 0, 1)[..., None]

    c = blend(grass, forest, (fine(wet) - 0.5) * 6 * (1 - noisy / 700))
    c = blend(c, rock, (0.86 - up) * 8 + (noisy - 700) / 400)
    c = blend(c, snow, (noisy - 750) / 120 + (up - 0.8) * 4 - 0.6)
    c = blend(c, sand, (6 - h - 3 * grains) / 3)
    c = c * (0.97 + 0.06 * grains[..., None])
    return np.clip(np.concatenate([c, np.full((PAINTED, PAINTED, 1), 0.9)], -1), 0, 1)


def _plants(heights: Array, light: Array, wet: Array, tile: TileId) -> tuple[Array, int]:
    """Instances (1024, 4), and how many."""
    random = np.random.default_rng(abs(hash((tile.level, tile.x, tile.z))))
    at = random.random((1024, 2)) * 56
    cell = (at + 4).astype(int)
    h, w = heights[cell[:, 1], cell[:, 0]], wet[cell[:, 1], cell[:, 0]]
    keep = (h > 4) & (h < 700) & (w + 0.4 * random.random(1024) > 0.62)
    kind = random.choice(3, 1024, p=[0.8, 0.15, 0.05])
    placed = np.zeros((1024, 4), np.float32)
    placed[:, :2], placed[:, 2] = at, h
    size, turn, tint = (random.integers(0, top, 1024) for top in (64, 256, 256))
    placed[:, 3] = kind | size << 2 | turn << 8 | tint << 16
    count = int(keep.sum())
    placed[:count] = placed[keep]
    return placed, count


@dataclass
class OnGpu:
    """Like a job's tensor."""

    buffer: Any
    offset: int
    nbytes: int


class Landscape:
    """Tiles of a renderer that come when they are wanted."""

    def __init__(
        self,
        gpu: cml.Gpu,
        renderer: Renderer,
        seed: int,
        maker: Callable[[TileId, int], Made] = make,
    ) -> None:
        self.gpu, self.renderer, self.seed, self.maker = gpu, renderer, seed, maker
        self.slots: dict[TileId, int] = {}

    def add(self, tiles: Iterable[TileId]) -> None:
        """Upload tiles."""
        for tile in tiles:
            slot = self.renderer.tiles.acquire()
            assert slot is not None
            self.slots[tile] = slot
            made = self.maker(tile, self.seed)
            names = ["height", "shading", "texels"] + ["instances", "draw"] * (tile.level < 2)
            usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
            held, tensors = [], {}
            for name in names:
                data = np.ascontiguousarray(getattr(made, name))
                memory = self.gpu.memory.allocate(
                    data.nbytes, usage, owner="test", category="output"
                )
                memory.write(data)
                held.append(memory)
                tensors[name] = OnGpu(memory.buffer, memory.offset, data.nbytes)
            encoder = self.gpu.device.create_command_encoder()
            self.renderer.tiles.fill(encoder, slot, **tensors)
            self.gpu.queue.submit([encoder.finish()])
            for memory in held:
                memory.free()

    def complete(self, eye: tuple[float, float, float], detail: Detail) -> list[TileId]:
        """Upload all that a view needs; the tiles to draw."""
        while True:
            found = select(eye, self.seed, detail, self.slots.__contains__)
            if not found.wanted:
                return found.draw
            self.add(found.wanted)

    def visible(self, tiles: Iterable[TileId], detail: Detail, camera: Any) -> list[VisibleTile]:
        """As the game does it."""
        found = []
        for tile in tiles:
            (x, z), span = tile.origin, tile.span_m
            if camera.sees((x, -50, z), (x + span, 6000, z + span)):
                slot = self.slots[tile]
                parent = self.slots.get(tile.parent, slot)
                found.append(VisibleTile(tile, slot, parent, *detail.range_m(tile.level)))
        return found
