"""Draws the picture of a frame: one pass over terrain, plants, sky and sea."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import wgpu

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.render.binding import Descriptor, GpuMemory, bind
from cml_engine.demo_game.render.camera import Camera, Point
from cml_engine.demo_game.render.mesh import (
    TILE_BYTES,
    draw_grass,
    find_coarser_step,
    grid,
    has_grass,
)
from cml_engine.demo_game.render.pace import EFFORTS, Effort
from cml_engine.demo_game.render.patterns import create_patterns
from cml_engine.demo_game.render.pipelines import Pipelines
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.render.targets import OWNER, Reflection, Targets
from cml_engine.demo_game.render.tiles import TilePool
from cml_engine.demo_game.world.sun import DAY, Light
from cml_engine.demo_game.world.tile import CELLS, TileId

#: threads that build pipelines while the rest of the game is loaded
_BUILDERS = 2
SCENE_BYTES = 144
#: metres after which waves and clouds repeat: a multiple of the periods of all patterns
_REPEAT_M = 16384.0
#: distance in metres at sea level that leaves 1 / e of the light, and the scale height of the air
_CLEAR_M, _THINNING_M = 11_000.0, 1600.0
_Buffers = wgpu.BufferUsage


#: the neighbours of a tile as steps in x and z, in the order of ``VisibleTile.edges``
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (1, -1), (1, 1), (-1, 1))
EDGE_STEPS = 15


@dataclass(frozen=True, slots=True)
class VisibleTile:
    """A tile to draw.

    Its vertices move to the parent's surface between ``near_m`` and ``far_m`` metres from the
    camera. ``fade`` (0 to 1) moves them there at any distance, for a tile that has just come.
    ``edges`` moves those on the edges and corners of :data:`NEIGHBOURS`, each by 0 to
    :data:`EDGE_STEPS` in four bits. If ``parent_slot`` equals ``slot`` there is no parent, and
    nothing moves.

    ``row`` has the numbers for the shader, with a position in the world and not relative to the
    camera: x and z, metres per cell, fade; where the move begins, 1 / its length, and the
    quadrant's corner in the parent's cells.
    """

    tile: TileId
    slot: int
    parent_slot: int
    near_m: float
    far_m: float
    fade: float = 0.0
    edges: int = 0
    row: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", _row(self))


@dataclass(frozen=True, slots=True)
class DrawStats:
    """The numbers of tiles and of tiles with plants that a frame drew."""

    tiles: int
    planted_tiles: int


@dataclass(frozen=True, slots=True)
class _Mesh:
    """A tile's grid in GPU buffers; ``count`` is the number of its indices."""

    vertices: GpuMemory
    indices: GpuMemory
    count: int


class Renderer:
    """Encodes the drawing of a frame into the host's encoder.

    ``target_format`` is the format of the views that :meth:`draw` is given; for formats that do
    not convert to sRGB, the shaders do it. All memory is taken from ``gpu.memory``. If the
    device's texture arrays have fewer layers than ``quality.slots``, there are fewer slots.
    """

    def __init__(
        self, gpu: cml.Gpu, target_format: str, quality: Quality, light: Light = DAY
    ) -> None:
        layers = int(gpu.device.limits["max-texture-array-layers"])
        quality = replace(quality, slots=min(quality.slots, layers))
        self.gpu, self.quality, self._light = gpu, quality, light
        self.target_format = target_format
        #: metres of view, which end in haze
        self.view_m = quality.detail.view_m
        builders = ThreadPoolExecutor(_BUILDERS, "demo-pipelines")
        self._pipelines = Pipelines(gpu, target_format, quality, light, builders)
        self.tiles = TilePool(gpu, quality, builders)
        builders.shutdown(wait=False)
        self._meshes = [
            _mesh(gpu, step) for step in (quality.mesh_step, find_coarser_step(quality.mesh_step))
        ]
        self._scene_data = np.zeros((SCENE_BYTES // 16, 4), np.float32)
        self._scene = _buffer(gpu, self._scene_data, _Buffers.UNIFORM)
        self._tile_data = np.zeros((quality.slots, TILE_BYTES // 4), np.float32)
        self._tile_words = self._tile_data.view(np.uint32)
        self._tile_buffer = _buffer(gpu, self._tile_data, _Buffers.VERTEX)
        self._patterns = create_patterns(gpu)
        self._make_bind_groups()
        self._targets = Targets(gpu, target_format, quality.samples)
        self._reflection = (
            Reflection(gpu, target_format, self._pipelines, self._clamped) if quality.rich else None
        )
        self._effort = EFFORTS[0]
        self._has_drawn = self._has_drawn_plants = False
        self.resize(quality.width, quality.height)

    @property
    def ready(self) -> bool:
        """True if :meth:`draw` can begin at once, without waiting for pipelines."""
        return self._pipelines.ready

    @property
    def complete(self) -> bool:
        """True if all pipelines are built, those of plants too."""
        return self._pipelines.complete

    def _make_bind_groups(self) -> None:
        device, pipelines = self.gpu.device, self._pipelines
        linear = {"mag_filter": "linear", "min_filter": "linear"}
        repeat = {"address_mode_u": "repeat", "address_mode_v": "repeat"}
        repeating = device.create_sampler(**linear, **repeat, mipmap_filter="linear")
        self._clamped = device.create_sampler(**linear)
        self._scene_group = bind(
            self.gpu,
            pipelines.scene_layout,
            self._scene.binding(0, SCENE_BYTES),
            repeating,
            self._patterns.create_view(),
        )
        arrays = [self.tiles.textures[name] for name in ("height", "shading", "texels")]
        views = [array.create_view(dimension="2d-array") for array in arrays]
        self._tiles_group = bind(self.gpu, pipelines.tiles_layout, *views, self._clamped)

    def resize(self, width: int, height: int) -> None:
        """Changes the size of the target, in pixels, and creates textures of the new size."""
        self.width, self.height = width, height
        self._make_targets()

    def _make_targets(self) -> None:
        smaller = self._effort.scale < 1
        self._targets.make(self.inner_size, smaller)
        if self._reflection is not None:
            self._reflection.make(self.inner_size)
        if smaller:
            self._enlarge_group = bind(
                self.gpu, self._pipelines.picture_layout, self._targets.smaller, self._clamped
            )

    @property
    def effort(self) -> Effort:
        """The effort that pictures are drawn with."""
        return self._effort

    @effort.setter
    def effort(self, effort: Effort) -> None:
        if effort.scale < 1 and self._pipelines.built("enlarge") is None:
            return  # asked for again in the next frame
        if effort != self._effort:
            self._effort = effort
            self._make_targets()

    @property
    def inner_size(self) -> tuple[int, int]:
        """The size in pixels of the picture before it is enlarged to the target's size."""
        scale = self._effort.scale
        return max(1, round(scale * self.width)), max(1, round(scale * self.height))

    def close(self) -> None:
        """Frees all memory; the renderer must not be used afterwards."""
        self.tiles.close()
        self._targets.close()
        if self._reflection is not None:
            self._reflection.close()
        self._patterns.destroy()
        meshes = [
            allocation for mesh in self._meshes for allocation in (mesh.vertices, mesh.indices)
        ]
        for allocation in (*meshes, self._scene, self._tile_buffer):
            allocation.free()

    def camera(self, position: Point, yaw: float, pitch: float) -> Camera:
        """Returns a camera with the target's aspect and the preset's distance of view."""
        far_m = self.view_m * 1.2
        return Camera(position, yaw, pitch, far=far_m, aspect=self.width / self.height)

    def draw(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        camera: Camera,
        visible: Sequence[VisibleTile],
        time_s: float,
        timed: Callable[[], Descriptor | None] = lambda: None,
    ) -> DrawStats:
        """Encodes the passes that draw the whole picture to ``target_view``.

        Returns counts of what they draw. There is one pass, one more if the picture is drawn
        smaller and enlarged, and one for the sea's reflection. ``visible`` are the tiles in view
        and in the reflection, at most as many as there are slots. ``timed()`` returns a pass's
        ``timestamp_writes``.
        """
        self._write_scene(camera, time_s)
        nearest = self._write_tiles(camera, visible)
        if self._reflection is not None:
            mirrored = self._reflection.begin(encoder, timed())
            if (upside_down := self._pipelines.built("mirrored")) is not None:
                self._bind(mirrored)
                self._draw_terrain(mirrored, upside_down, len(nearest))
            mirrored.end()
        smaller = self._effort.scale < 1
        drawn_to = self._targets.smaller if smaller else target_view
        render = self._targets.begin(encoder, drawn_to, timed())
        self._bind(render)
        self._draw_terrain(render, self._pipelines["terrain"], len(nearest))
        planted = self._draw_plants(render, nearest)
        if (grass := self._pipelines.built("grass")) is not None:
            render.set_pipeline(grass)
            grassy = [
                i for i, (distance_m, v) in enumerate(nearest) if has_grass(v.tile, distance_m)
            ]
            draw_grass(render, self._tile_buffer, grassy)
        render.set_pipeline(self._pipelines["sky"])
        render.draw(3)
        render.set_pipeline(self._pipelines["sea"])
        if self._reflection is not None:
            render.set_bind_group(1, self._reflection.group)
        render.draw(4)
        render.end()
        if smaller:
            self._fill(encoder, target_view, timed())
        self._has_drawn = True
        return DrawStats(len(nearest), planted)

    def _fill(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        timestamp_writes: Descriptor | None,
    ) -> None:
        """Encodes the pass that enlarges the smaller picture to the target."""
        enlarge = encoder.begin_render_pass(
            color_attachments=[{"view": target_view, "load_op": "clear", "store_op": "store"}],
            timestamp_writes=timestamp_writes,
        )
        enlarge.set_pipeline(self._pipelines["enlarge"])
        enlarge.set_bind_group(0, self._enlarge_group)
        enlarge.draw(3)
        enlarge.end()

    @property
    def _drawn_mesh(self) -> _Mesh:
        return self._meshes[0 if self._effort.fine else 1]

    def clear(self, encoder: wgpu.GPUCommandEncoder, target_view: wgpu.GPUTextureView) -> None:
        """Encodes a render pass that clears ``target_view``."""
        encoder.begin_render_pass(
            color_attachments=[{"view": target_view, "load_op": "clear", "store_op": "store"}]
        ).end()

    def _bind(self, render: wgpu.GPURenderPassEncoder) -> None:
        render.set_bind_group(0, self._scene_group)
        render.set_bind_group(1, self._tiles_group)

    def _draw_terrain(
        self, render: wgpu.GPURenderPassEncoder, pipeline: wgpu.GPURenderPipeline, count: int
    ) -> None:
        if count == 0:
            return
        mesh, tiles = self._drawn_mesh, self._tile_buffer
        vertices, indices = mesh.vertices, mesh.indices
        render.set_pipeline(pipeline)
        render.set_vertex_buffer(0, vertices.buffer, vertices.offset, vertices.nbytes)
        render.set_vertex_buffer(1, tiles.buffer, tiles.offset, count * TILE_BYTES)
        render.set_index_buffer(indices.buffer, "uint16", indices.offset, indices.nbytes)
        render.draw_indexed(mesh.count, count)

    def _draw_plants(
        self, render: wgpu.GPURenderPassEncoder, nearest: list[tuple[float, VisibleTile]]
    ) -> int:
        """Draws the plants of each tile that is near enough; returns the number of these tiles.

        Their pipeline is used once the first picture is drawn: its first draw takes long on a
        software driver, and must not delay a frame of a flight.
        """
        pool, tiles = self.tiles, self._tile_buffer
        planted, furthest = 0, self._effort.plants * self.quality.plants_m
        for i, (away, visible) in enumerate(nearest):
            if away > furthest or not pool.has_plants(visible.slot):
                continue
            if planted == 0:
                render.set_pipeline(self._pipelines["plants"])
            planted += 1
            at = tiles.offset + i * TILE_BYTES
            render.set_vertex_buffer(2, tiles.buffer, at, TILE_BYTES)
            pool.plants.draw(render, visible.slot)
        if self._has_drawn and not self._has_drawn_plants:
            pipeline = self._pipelines.built("plants")
            self._has_drawn_plants = pipeline is not None
            if pipeline is not None:  # the tiles above may have no plant
                render.set_pipeline(pipeline)
                pool.plants.draw_hidden(render)
        return planted

    def _write_scene(self, camera: Camera, time_s: float) -> None:
        x, y, z = camera.position
        data = self._scene_data
        data[0:4] = camera.view_projection
        data[4:7, :3] = camera.rays(*self.inner_size)
        density = math.exp(-y / _THINNING_M) / _CLEAR_M
        data[4:7, 3] = (density, 1 / self.view_m, time_s)
        data[7] = (*self._light.sun, y)
        data[8, :2] = (x % _REPEAT_M, z % _REPEAT_M)
        self._scene.write(data)

    def _write_tiles(
        self, camera: Camera, visible: Sequence[VisibleTile]
    ) -> list[tuple[float, VisibleTile]]:
        """Uploads the tiles for the shader, nearest first.

        Returns (metres away, tile) pairs in this order.
        """
        if not visible:
            return []
        rows = np.array([tile.row for tile in visible])
        rows[:, 0] -= camera.position[0]
        rows[:, 1] -= camera.position[2]
        corner, span = rows[:, :2], CELLS * rows[:, 2:3]
        distances_m = np.hypot(*np.maximum(np.maximum(corner, -corner - span), 0.0).T)
        order = np.argsort(distances_m, kind="stable")
        nearest = [visible[i] for i in order]
        self._tile_data[: len(rows), :8] = rows[order]
        integers = [(v.slot, v.parent_slot, v.edges) for v in nearest]
        self._tile_words[: len(rows), 8:11] = integers
        self._tile_buffer.write(self._tile_data[: len(rows)])
        return list(zip(distances_m[order].tolist(), nearest, strict=True))


def _mesh(gpu: cml.Gpu, step: int) -> _Mesh:
    vertices, indices = grid(step)
    return _Mesh(
        _buffer(gpu, vertices, _Buffers.VERTEX),
        _buffer(gpu, indices, _Buffers.INDEX),
        indices.size,
    )


def _buffer(gpu: cml.Gpu, data: Array, usage: int) -> GpuMemory:
    allocation = gpu.memory.allocate(
        data.nbytes, usage | _Buffers.COPY_DST, owner=OWNER, category="render"
    )
    allocation.write(np.ascontiguousarray(data))
    return allocation


def _row(visible: VisibleTile) -> tuple[float, ...]:
    tile = visible.tile
    start = (*tile.origin, tile.cell_m)
    if visible.parent_slot == visible.slot:
        return (*start, 0.0, 0.0, 0.0, 0.0, 0.0)
    half = CELLS // 2
    corner = ((tile.x & 1) * half, (tile.z & 1) * half)
    if not math.isfinite(visible.far_m):
        return (*start, visible.fade, 0.0, 0.0, *corner)
    return (*start, visible.fade, visible.near_m, 1 / (visible.far_m - visible.near_m), *corner)
