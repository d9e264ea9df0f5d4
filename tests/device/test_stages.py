"""Tests of a host's own vertex and fragment shaders, compiled from HLSL by the engine's
compiler."""

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine.errors import ShaderCompileError
from tests.fixtures.texels import begin_clear, render_target, submitted, texels_of

pytestmark = pytest.mark.gpu

SOURCE = """\
#include "colour.hlsli"
[[vk::binding(0, 0)]] cbuffer Frame { float4x4 turn; float4 tint; };
struct Corner { float4 at : SV_Position; float shade : TEXCOORD0; };
Corner corner(uint i : SV_VulkanVertexID, uint instance : SV_VulkanInstanceID) {
    Corner v;
    v.at = mul(turn, float4((i & 1) * 4.0 - 1.0, (i >> 1) * 4.0 - 1.0, 0.5, 1.0));
    v.shade = LEVEL;
    return v;
}
float4 paint(Corner v) : SV_Target0 { return colour(v.shade, tint); }
"""


@pytest.fixture
def shader(tmp_path, monkeypatch):
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "colour.hlsli").write_text(
        "float4 colour(float shade, float4 tint) { return float4(shade * tint.rgb, 1); }\n"
    )
    path = tmp_path / "sky.hlsl"
    path.write_text(SOURCE)
    return path


def draw(gpu, path, level):
    """Draws with the two shader stages of ``path`` and returns the picture, an (8, 8, 4) array of
    bytes.

    ``level`` is the value of the define ``LEVEL``.
    """
    device, defines = gpu.device, {"LEVEL": level}
    target, view = render_target(device, 8, 8)
    frame = np.zeros((5, 4), np.float32)
    frame[:4] = np.eye(4)
    frame[4] = 1.0, 0.5, 0.25, 1.0
    uniform = device.create_buffer_with_data(data=frame, usage=wgpu.BufferUsage.UNIFORM)
    pipeline = device.create_render_pipeline(
        layout="auto",
        vertex={"module": gpu.shader(path, "vertex", "corner", defines), "entry_point": "main"},
        primitive={"topology": "triangle-list"},
        fragment={
            "module": gpu.shader(path, "fragment", "paint", defines),
            "entry_point": "main",
            "targets": [{"format": "rgba8unorm"}],
        },
    )
    bound = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": uniform, "offset": 0, "size": 80}}],
    )
    with submitted(gpu) as encoder:
        drawing = begin_clear(encoder, view)
        drawing.set_pipeline(pipeline)
        drawing.set_bind_group(0, bound)
        drawing.draw(3, 1)
        drawing.end()
    return texels_of(device, target)


def test_both_stages_draw_and_are_compiled_for_each_define_and_include(gpu, shader):
    def compiled():
        return {file.name for file in (shader.parent / "cache").rglob("*.shader")}

    assert (draw(gpu, shader, "1.0") == (255, 128, 64, 255)).all()
    before = compiled()
    draw(gpu, shader, "1.0")
    assert compiled() == before and len(before) == 2
    assert (draw(gpu, shader, "0.0") == (0, 0, 0, 255)).all()
    include = shader.parent / "colour.hlsli"
    include.write_text(include.read_text().replace("shade *", "(1 - shade) *"))
    assert (draw(gpu, shader, "1.0") == (0, 0, 0, 255)).all()


def test_the_message_names_file_line_and_reason(gpu, shader):
    shader.write_text(SOURCE.replace("colour(v.shade", "color(v.shade"))
    with pytest.raises(ShaderCompileError, match=r"(?s)sky\.hlsl:paint.*sky\.hlsl:10.*color"):
        gpu.shader(shader, "fragment", "paint", {"LEVEL": "1.0"})


def test_wrong_stage_and_missing_file_are_named(gpu, shader):
    with pytest.raises(cml.InputError, match="unknown stage 'pixel'; one of vertex, fragment"):
        gpu.shader(shader, "pixel", "paint")
    with pytest.raises(cml.InputError, match="nowhere.hlsl' not found"):
        gpu.shader(shader.with_name("nowhere.hlsl"), "vertex", "corner")


def test_loop_that_drivers_misread_is_refused(gpu, shader):
    loop = """\
float4 paint(float4 at : SV_Position) : SV_Target0 {
    float sum = 0;
    for (int i = 0; i < int(at.x); i++) {
        if (i % 3 == 1) { continue; }
        sum += i * at.y;
    }
    return float4(sum, 0, 0, 1);
}
"""
    shader.write_text(loop)
    with pytest.raises(ShaderCompileError, match="loop with `continue`"):
        gpu.shader(shader, "fragment", "paint")
