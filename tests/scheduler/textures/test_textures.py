"""Tests of textures as inputs and outputs: every format, odd sizes, and the frame budget."""

import gc

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine import InputError
from cml_engine.ir.textures import FORMATS
from cml_engine.ops import Fact
from cml_engine.tools.selftest.transfers import linear_light, random_texels, shader_values
from tests.fixtures.frames.host import Host, creations, native_objects, run_net
from tests.fixtures.texels import create_texture, submitted, texels_of, texture_of, write_texels

pytestmark = pytest.mark.gpu

Usage = wgpu.TextureUsage
WRITTEN = [name for name, form in FORMATS.items() if not form.depth]


def session_of(backend, *shape):
    """Returns a session of y = -x of that shape."""
    builder = cml.GraphBuilder("negative")
    return cml.Session(builder.graph(y=builder.neg(builder.input("x", shape))), backend)


def random_texture(gpu, rng, name, width, height):
    """Returns a texture of random texels in the format ``name``, and the texels as an array."""
    data = random_texels(rng, name, width, height)
    return texture_of(gpu.device, data, name), data


def encoded(value):
    bent = 1.055 * np.maximum(value, 0) ** (1 / 2.4) - 0.055
    return np.where(value <= 0.0031308, value * 12.92, bent)


def planes(picture):
    return picture.transpose(2, 0, 1)[None]


def picture_of(tensor):
    return tensor[0].transpose(1, 2, 0)


def finished(host, job, then):
    """Runs frames until the job is done; in the last one calls ``then`` with the encoder."""

    def record(encoder):
        assert job.state != "failed", job.error
        if job.state == "done":
            then(encoder)

    host.until(lambda: job.state == "done", record)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (67, 3)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_round_trip_is_exact_in_every_format_at_odd_sizes(gpu, host, rng, name, size):
    width, height = size
    source, data = random_texture(gpu, rng, name, width, height)
    target = create_texture(gpu.device, name, width, height)
    session = session_of(gpu, 1, data.shape[2], height, width)
    job = host.submit(session, {"x": cml.TextureInput(source, scale=-1.0)})
    finished(host, job, lambda encoder: job.copy_to_texture(encoder, "y", target))
    assert_array_equal(texels_of(gpu.device, target, data.dtype, data.shape[2]), data)
    assert "load_texture 'x'" in {part.title for r in host.reports for part in r.slices}
    # drivers may decode colours with an error of less than half an 8-bit step
    atol = 0.5 / 255 if FORMATS[name].srgb else 1e-5
    assert_allclose(*host.finish(job), planes(shader_values(data, name)), rtol=1e-5, atol=atol)


def test_depth_is_read(gpu):
    usage = Usage.TEXTURE_BINDING | Usage.RENDER_ATTACHMENT
    depth = create_texture(gpu.device, "depth32float", 5, 3, usage=usage)
    target = {
        "view": depth.create_view(), "depth_clear_value": 0.3,
        "depth_load_op": "clear", "depth_store_op": "store",
    }  # fmt: skip
    with submitted(gpu) as encoder:
        encoder.begin_render_pass(color_attachments=[], depth_stencil_attachment=target).end()
    outputs = session_of(gpu, 1, 1, 3, 5).run({"x": cml.TextureInput(depth, -1.0)})
    assert (outputs["y"] == np.float32(0.3)).all()


def test_channels_colours_and_layouts(gpu, rng):
    source, data = random_texture(gpu, rng, "rgba8unorm", 7, 5)
    value = shader_values(data, "rgba8unorm")
    one, three = (session_of(gpu, 1, c, 5, 7) for c in (1, 3))
    last = session_of(gpu, 1, 5, 7, 3)
    flat = session_of(gpu, 5, 7)
    grey = value[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32)
    cases = [
        (one, {"channels": "a"}, value[None, None, ..., 3]),
        (one, {"channels": "y"}, grey[None, None]),
        (one, {}, value[None, None, ..., 0]),
        (three, {"channels": "bgr"}, planes(value[..., [2, 1, 0]])),
        (three, {"srgb": True}, planes(encoded(value[..., :3]))),
        (three, {"shift": (1, 2, 3), "scale": (-1, -2, -4)}, planes(value[..., :3])),
        (last, {"layout": "nhwc"}, value[None, ..., :3]),
        (flat, {}, value[..., 0]),
    ]
    for session, options, expected in cases:
        result = run_net(session, cml.TextureInput(source, **{"scale": -1.0, **options}))
        if "shift" in options:
            scale, shift = (np.reshape(k, (1, 3, 1, 1)) for k in ([1, 2, 4], [1, 2, 3]))
            expected = expected * scale - shift
        assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=str(options))


def resized(value, width, height, how):
    """Returns a picture resized by the definition of the method ``how``, in double precision."""
    rows, columns, _ = value.shape

    def weights(count, many):
        """Returns the share of each of ``many`` texels in each of ``count`` results."""
        at, k = np.arange(count)[:, None] * many / count, np.arange(many)
        middle, length = at + 0.5 * many / count, many / count
        if how == "nearest":
            return (k == middle.astype(int)).astype(float)
        if how == "bilinear":
            return np.clip(1 - abs(np.clip(middle, 0.5, many - 0.5) - 0.5 - k), 0, 1)
        return np.clip(np.minimum(at + length, k + 1) - np.maximum(at, k), 0, None) / length

    down, across = weights(height, rows), weights(width, columns)
    return np.einsum("ij,jkc,lk->ilc", down, value, across)


@pytest.mark.parametrize("how", ["nearest", "bilinear", "area"])
@pytest.mark.parametrize("size", [(7, 5), (3, 2), (31, 9), (4, 11)], ids=str)
def test_texture_input_is_resized(gpu, rng, how, size):
    width, height = size
    source, data = random_texture(gpu, rng, "rgba32float", 7, 5)
    session = session_of(gpu, 1, 4, height, width)
    result = run_net(session, cml.TextureInput(source, -1.0, resize=how))
    expected = resized(data.astype(float), width, height, how)
    assert_allclose(result, planes(expected), rtol=1e-4, atol=2e-3)


def test_layers_and_mips_of_input_and_output(gpu, host, rng):
    source = create_texture(gpu.device, "r32float", 10, 6, layers=3, mips=2)
    data = rng.standard_normal((3, 5, 1), np.float32)
    write_texels(gpu.device, source, data, layer=2, mip=1)
    target = create_texture(gpu.device, "r32float", 9, 9, layers=2)
    texture_input = cml.TextureInput(source, -1.0, layer=2, mip=1)
    job = host.submit(session_of(gpu, 1, 1, 3, 5), {"x": texture_input})
    finished(host, job, lambda e: job.copy_to_texture(e, "y", target, origin=(4, 5, 1)))
    expected = np.zeros((9, 9, 1), np.float32)
    expected[5:8, 4:] = data
    assert_array_equal(texels_of(gpu.device, target, np.float32, 1, layer=1), expected)


def copied(host, value, name, **options):
    """Returns the content of a texture after a job's output ``value`` is copied into it."""
    gpu, (_, _, height, width) = host.gpu, value.shape
    target = create_texture(gpu.device, name, width, height)
    job = host.submit(session_of(gpu, *value.shape), {"x": -value})
    finished(host, job, lambda e: job.copy_to_texture(e, "y", target, **options))
    return texels_of(gpu.device, target, np.float32 if name == "rgba32float" else np.uint8)


def test_fewer_channels_are_spread(host, rng):
    value = rng.random((1, 3, 3, 5), np.float32)
    red, green, blue = value[0]
    zero, one = np.zeros_like(red), np.ones_like(red)
    spread = ((red, red, red, one), (red, green, zero, one), (red, green, blue, one))
    for count, expected in enumerate(spread, 1):
        assert_array_equal(copied(host, value[:, :count], "rgba32float"), np.stack(expected, -1))


def test_scale_shift_clamp_and_rounding_into_bytes(host):
    value = np.array([-1, 0.1 / 255, 0.6 / 255, 0.5, 1, 7, np.nan, -np.inf], np.float32)
    value = value.reshape(1, 1, 2, 4)
    texels = copied(host, value, "rgba8unorm")[..., 0].ravel()
    assert_array_equal(texels, [0, 0, 1, 128, 255, 255, 0, 0])
    texels = copied(host, value, "rgba8unorm", scale=0.5, shift=0.5)[..., 0].ravel()
    assert_array_equal(texels[:6], [0, 128, 128, 191, 255, 255])


@pytest.mark.parametrize("name", ["rgba8unorm", "rgba8unorm-srgb"])
@pytest.mark.parametrize("srgb", [False, True])
def test_output_is_copied_to_linear_and_srgb_textures(host, rng, name, srgb):
    value = rng.random((1, 3, 3, 5), np.float32)
    texels = copied(host, value, name, srgb=srgb)[..., :3]
    light = linear_light(value) if srgb else value
    expected = picture_of(encoded(light) if name.endswith("srgb") else light) * 255
    assert np.abs(texels - expected).max() <= 0.501


def test_run_reads_a_range_of_a_host_buffer(gpu, host, rng):
    fact = Fact("scalar", (1, 2, 3, 5))
    value = rng.standard_normal(fact.shape, np.float32)
    data = np.concatenate([np.zeros(3, np.float32), value.ravel()])
    buffer = gpu.device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.COPY_SRC)
    session = session_of(gpu, *fact.shape)
    inputs = {"x": gpu.tensor(buffer, 12, fact)}
    assert_array_equal(session.run(inputs)["y"], -value)
    job = host.submit(session, inputs)
    assert_array_equal(*host.finish(job), -value)


def test_a_range_of_a_buffer_is_checked(gpu):
    fact = Fact("scalar", (4,))
    usage = wgpu.BufferUsage.COPY_SRC
    buffer = gpu.device.create_buffer(size=32, usage=usage)
    unread = gpu.device.create_buffer(size=32, usage=wgpu.BufferUsage.COPY_DST)
    other = cml.Gpu().device.create_buffer(size=32, usage=usage)
    for arguments, says in [
        ((buffer, 2, fact), "multiple of 4"),
        ((buffer, 20, fact), "ends at 36; the buffer has 32"),
        ((buffer, -4, fact), "offset"),
        ((unread, 0, fact), "COPY_SRC"),
        ((other, 0, fact), "another device"),
        ((b"", 0, fact), "buffer"),
        ((buffer, 0, (4,)), "fact"),
    ]:
        with pytest.raises(InputError, match=says):
            gpu.tensor(*arguments)
    session = session_of(gpu, 1, 1, 3, 5)
    with pytest.raises(InputError, match=r"wanted scalar\[1,1,3,5\], got a GPU tensor scalar\[4\]"):
        session.run({"x": gpu.tensor(buffer, 0, fact)})


def test_mismatched_texture_inputs_are_refused_at_submit(gpu, host):
    session = session_of(gpu, 1, 3, 5, 7)
    good = create_texture(gpu.device, "rgba8unorm", 7, 5)
    cases = [
        (good, {"channels": "rg"}, "3 channels, and channels='rg'"),
        (create_texture(gpu.device, "rg32float", 7, 5), {}, "rg32float has 'rg'"),
        (create_texture(gpu.device, "r32float", 7, 5), {"channels": "ggg"}, "no channel 'g'"),
        (
            create_texture(gpu.device, "rgba8unorm", 8, 5),
            {},
            "8 x 5, the tensor 7 x 5: say resize=",
        ),
        (
            create_texture(gpu.device, "rgba8unorm", 7, 5, usage=Usage.COPY_DST),
            {},
            "TEXTURE_BINDING",
        ),
        (create_texture(gpu.device, "rgba8uint", 7, 5), {}, "rgba8uint cannot be taken"),
        (good, {"layer": 1}, "has 1 layers"),
        (good, {"scale": (1, 2)}, "3 for 3 channels"),
        (good, {"layout": "nhwc"}, "wanted|holds"),
        (create_texture(cml.Gpu().device, "rgba8unorm", 7, 5), {}, "another device"),
        (object(), {}, "wanted a wgpu.GPUTexture"),
    ]
    for texture, options, says in cases:
        for call in (session.run, lambda inputs: host.submit(session, inputs)):
            with pytest.raises(InputError, match=says):
                call({"x": cml.TextureInput(texture, **options)})
    assert host.scheduler.jobs == []
    with pytest.raises(InputError, match="runs on the CPU"):
        session_of("cpu", 1, 3, 5, 7).run({"x": cml.TextureInput(good)})


@pytest.mark.parametrize(
    "options, says",
    [
        ({"channels": "rgx"}, "letters of"),
        ({"resize": "cubic"}, "'nearest' or 'bilinear' or 'area'"),
        ({"scale": float("nan")}, "scale"),
        ({"layout": "chw"}, "layout"),
        ({"layer": -1}, "layer"),
    ],
)
def test_invalid_texture_input_is_refused_on_construction(options, says):
    with pytest.raises(InputError, match=says):
        cml.TextureInput(None, **options)


def test_mismatched_texture_copy_is_refused(gpu, host, set_limits):
    session = session_of(gpu, 1, 3, 5, 7)
    job = host.submit(session, {"x": np.zeros((1, 3, 5, 7), np.float32)})
    good = create_texture(gpu.device, "rgba8unorm", 7, 5)
    encoder = gpu.device.create_command_encoder()

    def refuses(says, target=good, name="y", **options):
        with pytest.raises(InputError, match=says):
            job.copy_to_texture(encoder, name, target, **options)

    refuses("state is 'queued'")
    finished(host, job, lambda _: None)
    usage = Usage.TEXTURE_BINDING | Usage.RENDER_ATTACHMENT
    refuses(
        "does not go into a texture in rg32float", create_texture(gpu.device, "rg32float", 7, 5)
    )
    refuses("does not fit", origin=(1, 0, 0))
    refuses("depth is read only", create_texture(gpu.device, "depth32float", 7, 5, usage=usage))
    refuses("COPY_DST", create_texture(gpu.device, "rgba8unorm", 7, 5, usage=usage))
    refuses("no output 'z'", name="z")
    set_limits(max_binding_bytes=256)
    too_large = r"takes \d+ bytes .* binds at most 256 at once: "
    refuses(too_large)
    with pytest.raises(InputError, match=too_large):
        session.run({"x": cml.TextureInput(good)})


def test_destroyed_texture_fails_only_its_job(gpu, host):
    gone = create_texture(gpu.device, "rgba8unorm", 7, 5)
    job, beside = (
        host.submit(session_of(gpu, 1, 4, 5, 7), {"x": x})
        for x in (cml.TextureInput(gone), np.zeros((1, 4, 5, 7), np.float32))
    )
    gone.destroy()
    host.until(lambda: job.ended and beside.ended)
    assert job.state == "failed" and "destroyed" in job.error and beside.state == "done"


@pytest.mark.parametrize("at_once", [False, True])
def test_large_texture_is_read_over_frames_by_default(gpu, rng, at_once):
    """After an abandoned frame the texture is read again."""
    source, data = random_texture(gpu, rng, "rgba8unorm", 67, 33)
    gpu.build_texture_kernels()
    host = Host(gpu, budget_ms=0.002)
    texture_input = cml.TextureInput(source, -1.0, at_once=at_once)
    job = host.submit(session_of(gpu, 1, 4, 33, 67), {"x": texture_input})
    _, abandoned = host.encode()
    host.scheduler.abandon_frame()
    assert_allclose(*host.finish(job), planes(shader_values(data, "rgba8unorm")), rtol=1e-5)
    loads = [report for report in host.reports if any(p.step is None for p in report.slices)]
    assert loads[0] is abandoned and (len(loads) == 2) == at_once


def test_steady_state_with_textures_creates_nothing(gpu, host, rng, monkeypatch):
    source, _ = random_texture(gpu, rng, "rgba8unorm", 33, 17)
    target = create_texture(gpu.device, "rgba16float", 33, 17)
    session = session_of(gpu, 1, 4, 17, 33)

    def work(count):
        for _ in range(count):
            job = host.submit(session, {"x": cml.TextureInput(source)})
            finished(host, job, lambda encoder, job=job: job.copy_to_texture(encoder, "y", target))
            job.release()

    work(20)
    gc.collect()
    objects, created = native_objects(), creations(gpu, monkeypatch)
    work(150)
    assert created == []
    gc.collect()
    assert {k: n for k, n in native_objects().items() if n > objects.get(k, 0)} == {}


def test_copies_are_timed_and_charged_to_the_next_frame(timed_gpu, host):
    target = create_texture(timed_gpu.device, "rgba8unorm", 129, 65)
    session = session_of(timed_gpu, 1, 4, 65, 129)
    for _ in range(4):
        job = host.submit(session, {"x": np.zeros((1, 4, 65, 129), np.float32)})
        finished(host, job, lambda encoder, job=job: job.copy_to_texture(encoder, "y", target))
        reports = [host.frame() for _ in range(3)]
        assert reports[0].copied_ms > 0 == reports[-1].copied_ms
    model = host.scheduler.lifecycle.copy_costs._model

    def samples():
        """Returns the number of copies whose times have arrived; a slow device's arrive late."""
        curves = model._curves.values()
        return sum(size.samples for curve in curves for size in curve.sizes.values())

    # measured, and not only guessed
    host.until(lambda: samples() >= 2)
    assert len(model._curves) == 1
