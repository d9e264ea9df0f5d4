"""Layouts of bindings and of vertices, bind groups and render pipelines, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wgpu

import cml_engine as cml

UNIFORM: dict[str, Any] = {"buffer": {"type": "uniform"}}
SAMPLER: dict[str, Any] = {"sampler": {"type": "filtering"}}
COLOURS: dict[str, Any] = {"texture": {"sample_type": "float"}}


def texture_array(sample_type: str) -> dict[str, Any]:
    """Returns the binding of a texture array whose texels are ``kind``, as WebGPU names it."""
    return {"texture": {"view_dimension": "2d-array", "sample_type": sample_type}}


def make_layout(gpu: cml.Gpu, *bindings: tuple[int, dict[str, Any]]) -> wgpu.GPUBindGroupLayout:
    """Creates the layout of a bind group from the stages that see each binding, and its type."""
    return gpu.device.create_bind_group_layout(
        entries=[
            {"binding": i, "visibility": s, **binding} for i, (s, binding) in enumerate(bindings)
        ]
    )


def bind(gpu: cml.Gpu, layout: wgpu.GPUBindGroupLayout, *resources: Any) -> wgpu.GPUBindGroup:
    """Creates a bind group of these resources, in the order of the layout."""
    return gpu.device.create_bind_group(
        layout=layout, entries=[{"binding": i, "resource": r} for i, r in enumerate(resources)]
    )


def vertices(stride: int, *attributes: tuple[str, int, int], of: str = "vertex") -> dict[str, Any]:
    """Returns the layout of a vertex buffer with a step per vertex or per instance.

    An attribute has a format, an offset in bytes, and the shader's location.
    """
    entries = [{"format": f, "offset": at, "shader_location": n} for f, at, n in attributes]
    return {"array_stride": stride, "step_mode": of, "attributes": entries}


def make_pipeline(
    gpu: cml.Gpu,
    shader: Path,
    defines: Mapping[str, int | str],
    layouts: Sequence[Any],
    buffers: Sequence[Mapping[str, Any]],
    target: Mapping[str, Any],
    *,
    topology: str = "triangle-list",
    cull: str = "none",
    depth: Mapping[str, Any] | None = None,
    samples: int = 1,
) -> wgpu.GPURenderPipeline:
    """Creates the render pipeline of a shader file with the functions ``place`` and ``shade``."""

    def stage(name: str, function: str) -> dict[str, Any]:
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
