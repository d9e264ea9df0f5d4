"""The shaders, binding layouts and pipelines of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import wgpu

import cml_engine as cml
from demo_game.render.grass import DEFINES, ONE_TILE
from demo_game.render.mesh import TILE_BYTES
from demo_game.render.plants import INSTANCE_BYTES
from demo_game.render.quality import Quality
from demo_game.world.sun import Light

_SHADERS = Path(__file__).parent / "shaders"
DEPTH_FORMAT = "depth32float"
#: bytes of a vertex of the grid
VERTEX_BYTES = 8

_VERTEX, _FRAGMENT = wgpu.ShaderStage.VERTEX, wgpu.ShaderStage.FRAGMENT
_GRID = {
    "array_stride": VERTEX_BYTES,
    "step_mode": "vertex",
    "attributes": [
        {"format": "uint8x4", "offset": 0, "shader_location": 0},
        {"format": "uint8x4", "offset": 4, "shader_location": 1},
    ],
}
_SHAPES = {
    "array_stride": 24,
    "step_mode": "vertex",
    "attributes": [
        {"format": "float32x3", "offset": 0, "shader_location": 0},
        {"format": "float32x3", "offset": 12, "shader_location": 1},
    ],
}
_PLANTS = {
    "array_stride": INSTANCE_BYTES,
    "step_mode": "instance",
    "attributes": [
        {"format": "unorm16x2", "offset": 0, "shader_location": 2},
        {"format": "float32", "offset": 4, "shader_location": 3},
        {"format": "uint8x4", "offset": 8, "shader_location": 4},
        {"format": "unorm8x4", "offset": 12, "shader_location": 5},
    ],
}
_TILES = {
    "array_stride": TILE_BYTES,
    "step_mode": "instance",
    "attributes": [
        {"format": "float32x4", "offset": 0, "shader_location": 2},
        {"format": "float32x4", "offset": 16, "shader_location": 3},
        {"format": "uint32x3", "offset": 32, "shader_location": 4},
    ],
}
#: all plants of a draw stand on the same tile
_ONE_TILE = {
    "array_stride": 0,
    "step_mode": "instance",
    "attributes": [
        {"format": "float32x4", "offset": 0, "shader_location": 6},
        {"format": "uint32", "offset": 40, "shader_location": 7},
    ],
}
#: blends over the picture: colours are premultiplied by their alpha
_OVER = {
    "color": {"src_factor": "one", "dst_factor": "one-minus-src-alpha", "operation": "add"},
    "alpha": {"src_factor": "zero", "dst_factor": "one", "operation": "add"},
}


class Pipelines:
    """The render pipelines for one target format and one quality.

    ``builders`` compile them on threads, in the order in which a picture needs them.
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
            **DEFINES,
            **light.defines(),
        }
        layout = gpu.device.create_bind_group_layout
        self.scene_layout = layout(
            entries=[
                {"binding": 0, "visibility": _VERTEX | _FRAGMENT, "buffer": {"type": "uniform"}},
                {"binding": 1, "visibility": _FRAGMENT, "sampler": {"type": "filtering"}},
                {"binding": 2, "visibility": _FRAGMENT, "texture": {"sample_type": "float"}},
            ]
        )
        heights, texels = (
            {"texture": {"view_dimension": "2d-array", "sample_type": kind}}
            for kind in ("unfilterable-float", "float")
        )
        self.tiles_layout = layout(
            entries=[
                {"binding": 0, "visibility": _VERTEX, **heights},
                {"binding": 1, "visibility": _VERTEX | _FRAGMENT, **texels},
                {"binding": 2, "visibility": _VERTEX | _FRAGMENT, **texels},
                {"binding": 3, "visibility": _FRAGMENT, "sampler": {"type": "filtering"}},
            ]
        )
        self.enlarge_layout = layout(
            entries=[
                {"binding": 0, "visibility": _FRAGMENT, "sampler": {"type": "filtering"}},
                {"binding": 1, "visibility": _FRAGMENT, "texture": {"sample_type": "float"}},
            ]
        )

        self.reflection_layout = layout(
            entries=[
                {"binding": 0, "visibility": _FRAGMENT, "texture": {"sample_type": "float"}},
                {"binding": 1, "visibility": _FRAGMENT, "sampler": {"type": "filtering"}},
            ]
        )

        def build(source: str, *buffers: Any, **options: Any) -> Future[wgpu.GPURenderPipeline]:
            return builders.submit(self._build, source, list(buffers), **options)

        self._terrain = build("terrain.hlsl", _GRID, _TILES, tiles=True, cull="back")
        self._sky = build("sky.hlsl", compare="greater-equal", write=False)
        mirror = [self.reflection_layout] if quality.rich else []
        self._sea = build(
            "sea.hlsl", more=mirror, topology="triangle-strip", write=False, blend=_OVER
        )
        self._enlarge = builders.submit(self._build_enlarge)
        self._plants = build("plants.hlsl", _SHAPES, _PLANTS, _ONE_TILE, tiles=True)
        self._mirrored = self._grass = None
        if quality.rich:
            ground = {"tiles": True, "cull": "front", "mirror": True}
            self._mirrored = build("terrain.hlsl", _GRID, _TILES, **ground)
            self._grass = build("grass.hlsl", ONE_TILE, tiles=True)

    @property
    def ready(self) -> bool:
        """True if the pipelines of land, sky and sea are built, so that a picture needs no waiting.

        The plants' pipeline is ready later.
        """
        return all(made.done() for made in (self._terrain, self._sky, self._sea))

    @property
    def terrain(self) -> wgpu.GPURenderPipeline:
        """The pipeline of the ground; waits until it is built."""
        return self._terrain.result()

    @property
    def enlarge(self) -> wgpu.GPURenderPipeline | None:
        """The pipeline that enlarges a smaller picture to its target.

        None while it is being built.
        """
        return self._enlarge.result() if self._enlarge.done() else None

    @property
    def mirrored(self) -> wgpu.GPURenderPipeline | None:
        """The pipeline of the ground in the sea's reflection.

        None without reflections or while it is built.
        """
        made = self._mirrored
        return made.result() if made is not None and made.done() else None

    @property
    def grass(self) -> wgpu.GPURenderPipeline | None:
        """The pipeline of the grass; None if the quality has none or while it is being built."""
        made = self._grass
        return made.result() if made is not None and made.done() else None

    @property
    def plants(self) -> wgpu.GPURenderPipeline:
        """The pipeline of the plants; waits until it is built."""
        return self._plants.result()

    @property
    def sky(self) -> wgpu.GPURenderPipeline:
        """The pipeline of the sky; waits until it is built."""
        return self._sky.result()

    @property
    def sea(self) -> wgpu.GPURenderPipeline:
        """The pipeline of the sea; waits until it is built."""
        return self._sea.result()

    def _build(
        self,
        source: str,
        buffers: list[dict[str, Any]],
        *,
        tiles: bool = False,
        more: Sequence[Any] = (),
        mirror: bool = False,
        topology: str = "triangle-list",
        cull: str = "none",
        compare: str = "greater",
        write: bool = True,
        blend: dict[str, Any] | None = None,
    ) -> wgpu.GPURenderPipeline:
        gpu, path = self._gpu, _SHADERS / source
        target: dict[str, Any] = {"format": self._format}
        if blend is not None:
            target["blend"] = blend
        layouts = [self.scene_layout, *([self.tiles_layout] if tiles else []), *more]
        defines = {**self._defines, "MIRROR": int(mirror)} if mirror else self._defines
        return gpu.device.create_render_pipeline(
            label=source,
            layout=gpu.device.create_pipeline_layout(bind_group_layouts=layouts),
            vertex={
                "module": gpu.shader(path, "vertex", "place", defines, trusted=True),
                "entry_point": "main",
                "buffers": buffers,
            },
            primitive={"topology": topology, "cull_mode": cull, "front_face": "ccw"},
            depth_stencil={
                "format": DEPTH_FORMAT,
                "depth_write_enabled": write,
                "depth_compare": compare,
            },
            multisample={"count": 1 if mirror else self._samples},
            fragment={
                "module": gpu.shader(path, "fragment", "shade", defines, trusted=True),
                "entry_point": "main",
                "targets": [target],
            },
        )

    def _build_enlarge(self) -> wgpu.GPURenderPipeline:
        gpu, path = self._gpu, _SHADERS / "enlarge.hlsl"
        layout = gpu.device.create_pipeline_layout(bind_group_layouts=[self.enlarge_layout])
        return gpu.device.create_render_pipeline(
            label=path.name,
            layout=layout,
            vertex={
                "module": gpu.shader(path, "vertex", "place", trusted=True),
                "entry_point": "main",
            },
            primitive={"topology": "triangle-list"},
            fragment={
                "module": gpu.shader(path, "fragment", "shade", trusted=True),
                "entry_point": "main",
                "targets": [{"format": self._format}],
            },
        )
