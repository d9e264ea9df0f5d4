"""The shaders, binding layouts and pipelines of the picture."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import wgpu

import cml_engine as cml
from cml_engine.demo_game.render.binding import (
    COLOURS,
    SAMPLER,
    UNIFORM,
    Descriptor,
    make_layout,
    make_pipeline,
    texture_array,
    vertices,
)
from cml_engine.demo_game.render.mesh import GRASS_DEFINES, TILE_BYTES
from cml_engine.demo_game.render.plants import INSTANCE_BYTES
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.world.sun import Light

_SHADERS = Path(__file__).parent / "shaders"
DEPTH_FORMAT = "depth32float"
#: bytes of a vertex of the grid
VERTEX_BYTES = 8

_VERTEX, _FRAGMENT = wgpu.ShaderStage.VERTEX, wgpu.ShaderStage.FRAGMENT
_BOTH = _VERTEX | _FRAGMENT
_GRID = vertices(VERTEX_BYTES, ("uint8x4", 0, 0), ("uint8x4", 4, 1))
_SHAPES = vertices(24, ("float32x3", 0, 0), ("float32x3", 12, 1))
_PLANTS = vertices(
    INSTANCE_BYTES,
    ("unorm16x2", 0, 2), ("float32", 4, 3), ("uint8x4", 8, 4), ("unorm8x4", 12, 5),
    of="instance",
)  # fmt: skip
_TILES = vertices(
    TILE_BYTES, ("float32x4", 0, 2), ("float32x4", 16, 3), ("uint32x3", 32, 4), of="instance"
)
#: all plants, and all tufts of grass, of a draw stand on the same tile
_PLANTS_TILE = vertices(0, ("float32x4", 0, 6), ("uint32", 40, 7), of="instance")
_GRASS_TILE = vertices(0, ("float32x4", 0, 0), ("uint32x2", 32, 1), of="instance")
#: blends over the picture: colours are premultiplied by their alpha
_OVER = {
    "color": {"src_factor": "one", "dst_factor": "one-minus-src-alpha", "operation": "add"},
    "alpha": {"src_factor": "zero", "dst_factor": "one", "operation": "add"},
}


class Pipelines:
    """The render pipelines for one target format and one quality, by name.

    They are terrain, sky, sea, plants and enlarge (of a smaller picture to its target), and with
    ``rich`` mirrored (the ground in the sea's reflection) and grass. ``builders`` compile them on
    threads, in the order in which a picture needs them.
    """

    def __init__(
        self,
        gpu: cml.Gpu,
        target_format: str,
        quality: Quality,
        light: Light,
        builders: Executor,
    ) -> None:
        self._gpu, self._format, self._samples = gpu, target_format, quality.samples
        self._defines: dict[str, int | str] = {
            "ENCODE": int(not target_format.endswith("-srgb")),
            "RICH": int(quality.rich),
            "PLANTS_M": int(quality.plants_m),
            **GRASS_DEFINES,
            **light.defines(),
        }
        texels = _BOTH, texture_array("float")
        sampler, colours = (_FRAGMENT, SAMPLER), (_FRAGMENT, COLOURS)
        self.scene_layout = scene = make_layout(gpu, (_BOTH, UNIFORM), sampler, colours)
        heights = _VERTEX, texture_array("unfilterable-float")
        self.tiles_layout = make_layout(gpu, heights, texels, texels, sampler)
        self.picture_layout = picture = make_layout(gpu, colours, sampler)
        ground = [scene, self.tiles_layout]

        def build(
            source: str, *buffers: Descriptor, **options: Any
        ) -> Future[wgpu.GPURenderPipeline]:
            return builders.submit(self._build, source, list(buffers), **options)

        self._made = {
            "terrain": build("terrain.hlsl", _GRID, _TILES, layouts=ground, cull="back"),
            "sky": build("sky.hlsl", layouts=[scene], compare="greater-equal", write=False),
            "sea": build(
                "sea.hlsl", layouts=[scene, picture] if quality.rich else [scene],
                topology="triangle-strip", write=False, blend=_OVER,
            ),
            "enlarge": build("enlarge.hlsl", layouts=[picture], depth=False),
            "plants": build("plants.hlsl", _SHAPES, _PLANTS, _PLANTS_TILE, layouts=ground),
        }  # fmt: skip
        if quality.rich:
            self._made["mirrored"] = build(
                "terrain.hlsl", _GRID, _TILES, layouts=ground, cull="front", mirror=True
            )
            self._made["grass"] = build("grass.hlsl", _GRASS_TILE, layouts=ground)

    @property
    def ready(self) -> bool:
        """True if the pipelines of land, sky and sea are built, so that a picture needs no waiting.

        The plants' pipeline is ready later.
        """
        return all(self._made[name].done() for name in ("terrain", "sky", "sea"))

    @property
    def complete(self) -> bool:
        """True if all pipelines are built."""
        return all(pipeline.done() for pipeline in self._made.values())

    def __getitem__(self, name: str) -> wgpu.GPURenderPipeline:
        """Returns the pipeline of that name; waits until it is built."""
        return self._made[name].result()

    def built(self, name: str) -> wgpu.GPURenderPipeline | None:
        """Returns the pipeline; None while it is being built, or if the quality has none."""
        pipeline = self._made.get(name)
        return pipeline.result() if pipeline is not None and pipeline.done() else None

    def _build(
        self,
        source: str,
        buffers: list[Descriptor],
        *,
        layouts: list[wgpu.GPUBindGroupLayout],
        depth: bool = True,
        mirror: bool = False,
        topology: str = "triangle-list",
        cull: str = "none",
        compare: str = "greater",
        write: bool = True,
        blend: Descriptor | None = None,
    ) -> wgpu.GPURenderPipeline:
        target: dict[str, object] = {"format": self._format}
        if blend is not None:
            target["blend"] = blend
        testing: Descriptor = {
            "format": DEPTH_FORMAT,
            "depth_write_enabled": write,
            "depth_compare": compare,
        }
        return make_pipeline(
            self._gpu,
            _SHADERS / source,
            {**self._defines, "MIRROR": int(mirror)} if mirror else self._defines,
            layouts,
            buffers,
            target,
            topology=topology,
            cull=cull,
            depth=testing if depth else None,
            samples=self._samples if depth and not mirror else 1,
        )
