"""Layouts of bindings and of vertices, bind groups and render pipelines, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import wgpu

import cml_engine as cml
from cml_engine.demo_game.arrays import Array

#: a description of a WebGPU object, as wgpu takes it
Descriptor: TypeAlias = Mapping[str, object]

UNIFORM: Descriptor = {"buffer": {"type": "uniform"}}
SAMPLER: Descriptor = {"sampler": {"type": "filtering"}}
COLOURS: Descriptor = {"texture": {"sample_type": "float"}}


class BufferPart(Protocol):
    """A part of a GPU buffer: a tensor of the networks, or memory of the game's own."""

    @property
    def buffer(self) -> wgpu.GPUBuffer: ...
    @property
    def offset(self) -> int: ...


class GpuMemory(BufferPart, Protocol):
    """Memory that belongs to the game until :meth:`free`."""

    @property
    def nbytes(self) -> int: ...
    def binding(self, offset: int = 0, nbytes: int | None = None) -> Descriptor: ...
    def write(self, data: bytes | Array) -> None: ...
    def free(self) -> None: ...


def texture_array(sample_type: str) -> Descriptor:
    """Returns the binding of a texture array with a ``sample_type`` of WebGPU."""
    return {"texture": {"view_dimension": "2d-array", "sample_type": sample_type}}


def make_layout(gpu: cml.Gpu, *bindings: tuple[int, Descriptor]) -> wgpu.GPUBindGroupLayout:
    """Creates the layout of a bind group from the stages that see each binding, and its type."""
    return gpu.device.create_bind_group_layout(
        entries=[
            {"binding": i, "visibility": s, **binding} for i, (s, binding) in enumerate(bindings)
        ]
    )


def bind(gpu: cml.Gpu, layout: wgpu.GPUBindGroupLayout, *resources: object) -> wgpu.GPUBindGroup:
    """Creates a bind group of these resources, in the order of the layout."""
    return gpu.device.create_bind_group(
        layout=layout, entries=[{"binding": i, "resource": r} for i, r in enumerate(resources)]
    )


def vertices(stride: int, *attributes: tuple[str, int, int], of: str = "vertex") -> Descriptor:
    """Returns the layout of a vertex buffer with a step per vertex or per instance.

    An attribute has a format, an offset in bytes, and the shader's location.
    """
    entries = [{"format": f, "offset": at, "shader_location": n} for f, at, n in attributes]
    return {"array_stride": stride, "step_mode": of, "attributes": entries}


def make_pipeline(
    gpu: cml.Gpu,
    shader: Path,
    defines: Mapping[str, int | str],
    layouts: Sequence[wgpu.GPUBindGroupLayout],
    buffers: Sequence[Descriptor],
    target: Descriptor,
    *,
    topology: str = "triangle-list",
    cull: str = "none",
    depth: Descriptor | None = None,
    samples: int = 1,
) -> wgpu.GPURenderPipeline:
    """Creates the render pipeline of a shader file with the functions ``place`` and ``shade``."""

    def stage(name: str, function: str) -> Descriptor:
        module = gpu.shader(shader, name, function, defines, trusted=True)
        return {"module": module, "entry_point": "main"}

    return gpu.device.create_render_pipeline(
        label=shader.name,
        layout=gpu.device.create_pipeline_layout(bind_group_layouts=layouts),
        vertex={**stage("vertex", "place"), "buffers": buffers},
        primitive={"topology": topology, "cull_mode": cull},
        depth_stencil=depth,
        multisample={"count": samples},
        fragment={**stage("fragment", "shade"), "targets": [target]},
    )
