"""The parts ``textures``, ``readbacks`` and ``loss``: transfers, also on a lost device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cml_engine.errors import DeviceError
from cml_engine.formats.graph_builder import GraphBuilder
from cml_engine.gpu.gpu import Gpu
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.textures import FORMATS, TextureInput
from cml_engine.runtime.session import Session, random_inputs
from cml_engine.tools.selftest.context import SelfTest, expect
from cml_engine.tools.selftest.frame_loop import FrameLoop

#: widths and heights of the textures
_SIZES = ((1, 1), (7, 5), (67, 3))
#: a triangle that covers the target; a pixel's depth is (x + 128 y) / 1024, without rounding
_DEPTH_WGSL = """
    @vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
        return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
    }
    @fragment fn pixel(@builtin(position) at: vec4<f32>) -> @builtin(frag_depth) f32 {
        return (floor(at.x) + 128.0 * floor(at.y)) / 1024.0;
    }"""
#: jobs of one session that are read at once
_JOBS = 5


def check_textures(test: SelfTest) -> None:
    """Reads every texture format into a network and writes its output to another texture.

    The network negates; with a scale of -1 at its input the texels must return unchanged. Depth
    is drawn, and read only.
    """
    sizes = _SIZES[1:2] if test.quick else _SIZES
    for name, texture_format in FORMATS.items():
        check = _check_depth if texture_format.depth else _check_round_trip
        for width, height in sizes:
            with test.check(f"{name}, {width}x{height}"):
                check(test.gpu, name, width, height)
    test.part.note = f"{len(FORMATS)} formats, {len(sizes)} sizes"


def _check_depth(gpu: Gpu, name: str, width: int, height: int) -> None:
    usage = "TEXTURE_BINDING|RENDER_ATTACHMENT"
    texture = gpu.device.create_texture(size=(width, height, 1), format=name, usage=usage)
    module = gpu.device.create_shader_module(code=_DEPTH_WGSL)
    pipeline = gpu.device.create_render_pipeline(
        layout="auto",
        vertex={"module": module, "entry_point": "corner", "buffers": []},
        primitive={"topology": "triangle-list"},
        depth_stencil={"format": name, "depth_write_enabled": True, "depth_compare": "always"},
        fragment={"module": module, "entry_point": "pixel", "targets": []},
    )
    target = {
        "view": texture.create_view(), "depth_clear_value": 1.0,
        "depth_load_op": "clear", "depth_store_op": "store",
    }  # fmt: skip
    encoder = gpu.device.create_command_encoder()
    draw = encoder.begin_render_pass(color_attachments=[], depth_stencil_attachment=target)
    draw.set_pipeline(pipeline)
    draw.draw(3)
    draw.end()
    gpu.queue.submit([encoder.finish()])
    (outputs,) = FrameLoop(gpu).run(
        _negative(gpu, (1, 1, height, width)), {"x": TextureInput(texture, scale=-1.0)}
    )
    y, x = np.mgrid[:height, :width]
    np.testing.assert_array_equal(outputs["y"][0, 0], (x + 128 * y) / 1024)


def _negative(gpu: Gpu, shape: tuple[int, ...]) -> Session:
    builder = GraphBuilder("negative")
    return Session(builder.graph(y=builder.neg(builder.input("x", shape))), gpu)


def _check_round_trip(gpu: Gpu, name: str, width: int, height: int) -> None:
    usage = "TEXTURE_BINDING|COPY_DST|COPY_SRC"
    source, target = (
        gpu.device.create_texture(size=(width, height, 1), format=name, usage=usage)
        for _ in range(2)
    )
    texels = random_texels(np.random.default_rng(width), name, width, height)
    row = {"bytes_per_row": texels.strides[0], "rows_per_image": height}
    size = (width, height, 1)
    gpu.queue.write_texture({"texture": source}, texels, row, size)
    (outputs,) = FrameLoop(gpu).run(
        _negative(gpu, (1, texels.shape[2], height, width)),
        {"x": TextureInput(source, scale=-1.0)},
        then=lambda encoder, job: job.copy_to_texture(encoder, "y", target),
    )
    expected = shader_values(texels, name).transpose(2, 0, 1)[None]
    # drivers may decode colours with an error of less than half an 8-bit step
    atol = 0.5 / 255 if FORMATS[name].srgb else 1e-5
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=atol)
    copied = gpu.queue.read_texture({"texture": target}, row, size)
    np.testing.assert_array_equal(np.frombuffer(copied, texels.dtype).reshape(texels.shape), texels)


def random_texels(rng: np.random.Generator, name: str, width: int, height: int) -> Array:
    """Returns random texels (height, width, channels) in the type of the format ``name``."""
    encoding = FORMATS[name].encoding
    shape = (height, width, len(FORMATS[name].order))
    if encoding == "unorm8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    return (100 * rng.standard_normal(shape)).astype(encoding)


def shader_values(texels: Array, name: str) -> Array:
    """Returns the RGBA floats that a shader reads from texels of the format ``name``."""
    texture_format = FORMATS[name]
    values = texels.astype(np.float32) / (255 if texture_format.encoding == "unorm8" else 1)
    if texture_format.order == "bgra":
        values = values[..., [2, 1, 0, 3]]
    if texture_format.srgb:
        values[..., :3] = linear_light(values[..., :3])
    return values


def linear_light(values: Array) -> Array:
    """Returns the intensities that sRGB's values in [0, 1] stand for."""
    linear: Array = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return linear


# -- readbacks ------------------------------------------------------------------------------------


def check_readbacks(test: SelfTest) -> None:
    """Compares the outputs that jobs of one session read back with those of runs, in every type."""
    rng = np.random.default_rng(3)
    session = Session(_three_types(257), test.gpu)
    inputs = [{"x": rng.standard_normal((1, 3, 17, 257), np.float32)} for _ in range(_JOBS)]
    loop = FrameLoop(test.gpu)
    read = loop.run(session, *inputs)
    for number, (outputs, given) in enumerate(zip(read, inputs, strict=True)):
        with test.check(f"job {number} of {_JOBS}"):
            _assert_same(outputs, session.run(given))
            _assert_same(outputs, Session(session.source_graph, "cpu").run(given))
    width = 2**10 + 1 if test.quick else 2**20 + 1
    with test.check(f"a tensor of {48 * width} bytes"):
        values = rng.standard_normal((1, 3, 4, width), np.float32)
        (outputs,) = loop.run(_negative(test.gpu, values.shape), {"x": values})
        np.testing.assert_array_equal(outputs["y"], -values)


def _three_types(width: int) -> Graph:
    """Returns a graph with an output of each type: floats, logicals and integers."""
    builder = GraphBuilder("types")
    x = builder.input("x", (1, 3, 17, width))
    return builder.graph(
        number=builder.neg(x), truth=builder.gt(x, 0.0), place=builder.argmax_reduce(x, axes=[3])
    )


def _assert_same(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, values in expected.items():
        np.testing.assert_array_equal(outputs[name], values, err_msg=name)
        expect(outputs[name].dtype == values.dtype, f"'{name}' is {outputs[name].dtype}")


# -- a lost device --------------------------------------------------------------------------------


def check_loss(test: SelfTest) -> None:
    """Destroys a device of its own: calls must raise, and a new device must compute the same."""
    graph = _three_types(33)
    gpu = Gpu()
    session = Session(graph, gpu)
    inputs = random_inputs(session.inputs)
    before = session.run(inputs)
    loop = FrameLoop(gpu)
    gpu.device.destroy()
    calls: dict[str, Callable[[], object]] = {
        "Session": lambda: Session(_three_types(35), gpu),
        "Session.run": lambda: session.run(inputs),
        "FrameScheduler.submit": lambda: loop.run(session, inputs),
    }
    for name, call in calls.items():
        with test.check(f"{name} on a lost device"):
            try:
                call()
            except DeviceError as error:
                expect("device was lost" in str(error), f"it raises another error: {error}")
            else:
                raise AssertionError("it raises no error")
    test.part.note = "a device was destroyed on purpose"
    with test.check("a new device after a loss"):
        _assert_same(Session(graph, Gpu()).run(inputs), before)
