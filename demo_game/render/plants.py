"""The plants' GPU memory, with a slot per tile, and the commands that fill and draw it."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import wgpu

import cml_engine as cml
from cml_engine.demo_game.render.binding import (
    BufferPart,
    Descriptor,
    GpuMemory,
    bind,
    make_layout,
    texture_array,
)
from cml_engine.demo_game.render.mesh import shapes
from cml_engine.demo_game.render.quality import Quality

OWNER = "plants"
#: the largest number of plants on a tile
MOST = 1024
INSTANCE_BYTES = 16
TILE_PLANTS_BYTES = INSTANCE_BYTES * MOST
DRAW_BYTES = 16
#: instances that one workgroup prepares
_GROUP = 64

_Buffers = wgpu.BufferUsage
_COMPUTE = wgpu.ShaderStage.COMPUTE


class Plants:
    """GPU memory for the plants of one tile per slot.

    Instances that :meth:`fill` copies are packed once on the GPU (``prepare.hlsl``) for the vertex
    shader. ``builders`` compile the pipeline for this on a thread.
    """

    def __init__(
        self,
        gpu: cml.Gpu,
        quality: Quality,
        heights: wgpu.GPUTexture,
        shading: wgpu.GPUTexture,
        builders: Executor,
    ) -> None:
        slots = quality.slots

        def allocate(nbytes: int, usage: int) -> GpuMemory:
            return gpu.memory.allocate(
                nbytes, usage | _Buffers.COPY_DST, owner=OWNER, category="render"
            )

        self.instances = allocate(slots * TILE_PLANTS_BYTES, _Buffers.VERTEX | _Buffers.STORAGE)
        # the renderer chooses the number of vertices, so only the number of instances is copied;
        # the last draw is that of a hidden plant
        self.draws = allocate((slots + 1) * DRAW_BYTES, _Buffers.INDIRECT)
        draws = np.zeros((slots + 1, DRAW_BYTES // 4), np.uint32)
        draws[:, 0], draws[-1, 1] = quality.plant_vertices, 1
        self.draws.write(draws)
        self.shapes = allocate(24 * quality.plant_vertices, _Buffers.VERTEX)
        self.shapes.write(shapes(quality.plant_vertices))
        # a plant, and its tile, whose place says that the ground has the coarser level's shape
        self._hidden = allocate(4 * 16, _Buffers.VERTEX)
        self._hidden.write(np.array([0, 0, 0, 1, *[0] * 12], np.float32))
        self._step = int(gpu.device.limits["min-uniform-buffer-offset-alignment"])
        self._numbers = allocate(slots * self._step, _Buffers.UNIFORM)
        numbers = np.zeros((slots, self._step // 4), np.uint32)
        numbers[:, 0] = np.arange(slots)
        self._numbers.write(numbers)
        bindings: list[Descriptor] = [
            {"buffer": {"type": "storage"}},
            {"buffer": {"type": "uniform", "has_dynamic_offset": True}},
            *[texture_array("unfilterable-float")] * 2,
        ]
        layout = make_layout(gpu, *((_COMPUTE, entry) for entry in bindings))
        path = Path(__file__).parent / "shaders" / "prepare.hlsl"

        def build() -> wgpu.GPUComputePipeline:
            defines = {"STEP": quality.mesh_step}
            module = gpu.shader(path, "compute", "prepare", defines, trusted=True)
            return gpu.device.create_compute_pipeline(
                label=path.name,
                layout=gpu.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )

        self._pipeline = builders.submit(build)
        self._group = bind(
            gpu,
            layout,
            self.instances.binding(),
            self._numbers.binding(0, 16),
            *(texture.create_view(dimension="2d-array") for texture in (heights, shading)),
        )

    def fill(
        self, encoder: wgpu.GPUCommandEncoder, slot: int, instances: BufferPart, draw: BufferPart
    ) -> None:
        """Encodes the copy of a tile's instances into a slot, and the pass that packs them.

        The slot's heights and shading must have been copied before.
        """
        to = self.instances.offset + slot * TILE_PLANTS_BYTES
        encoder.copy_buffer_to_buffer(
            instances.buffer, instances.offset, self.instances.buffer, to, TILE_PLANTS_BYTES
        )
        to = self.draws.offset + slot * DRAW_BYTES + 4
        encoder.copy_buffer_to_buffer(draw.buffer, draw.offset + 4, self.draws.buffer, to, 4)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline.result())
        compute.set_bind_group(0, self._group, [slot * self._step])
        compute.dispatch_workgroups(MOST // _GROUP)
        compute.end()

    def draw(self, render: wgpu.GPURenderPassEncoder, slot: int) -> None:
        """Draws the plants of a slot into a render pass; sets the vertex buffers 0 and 1."""
        at = self.instances.offset + slot * TILE_PLANTS_BYTES
        render.set_vertex_buffer(0, self.shapes.buffer, self.shapes.offset, self.shapes.nbytes)
        render.set_vertex_buffer(1, self.instances.buffer, at, TILE_PLANTS_BYTES)
        render.draw_indirect(self.draws.buffer, self.draws.offset + slot * DRAW_BYTES)

    def draw_hidden(self, render: wgpu.GPURenderPassEncoder) -> None:
        """Draws a plant that covers no pixel; sets the vertex buffers 0 to 2.

        llvmpipe compiles the plants' shaders at the first indirect draw, which takes 90 ms.
        """
        render.set_vertex_buffer(0, self.shapes.buffer, self.shapes.offset, self.shapes.nbytes)
        for buffer in (1, 2):
            hidden = self._hidden
            render.set_vertex_buffer(buffer, hidden.buffer, hidden.offset, hidden.nbytes)
        render.draw_indirect(self.draws.buffer, self.draws.offset + self.draws.nbytes - DRAW_BYTES)

    def close(self) -> None:
        """Frees the memory."""
        for allocation in (self.instances, self.draws, self.shapes, self._numbers, self._hidden):
            allocation.free()
