"""Tests that the inputs of integer networks are packed bit-identically on every path."""

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.compiler.planning.dispatches import PlanOptions
from tests.fixtures.frames.host import Host
from tests.fixtures.integer.networks import IntegerNet, line

SHAPE = (2, 6, 3, 5)
#: halves, range ends, values beyond them, and NaN
ODD = [0.5, -0.5, 1.5, 254.5, 255.5, 1e9, -1e9, np.nan, np.inf, -np.inf, -0.0, 1e-42, 65535.5]


def network(shape=SHAPE, **how):
    """Returns a 1x1 conv whose output equals its quantized input."""
    net = IntegerNet()
    x = net.input("x", shape, 0.3, **how)
    one = net.weight("one", np.eye(shape[1]).reshape(shape[1], shape[1], 1, 1), 1.0)
    zero = net.weight("zero", 0.0, None)
    return net.graph(net.op("conv", x, one, zero, padding=[(0, 0)] * 2, to=line(0.3, **how)))


def numbers(shape=SHAPE):
    given = 40 * np.random.default_rng(0).standard_normal(shape)
    given.reshape(-1)[: len(ODD)] = 0.3 * np.array(ODD)
    return given.astype(np.float32)


def in_buffer(gpu, array, usage=wgpu.BufferUsage.STORAGE):
    """Returns a tensor with the array's values in a GPU buffer, at an offset that no device can
    bind."""
    data = np.concatenate([np.full(3, 7, np.float32), array.reshape(-1)])
    usage |= wgpu.BufferUsage.COPY_SRC
    buffer = gpu.device.create_buffer_with_data(data=data, usage=usage)
    return gpu.tensor(buffer, 12, cml.Fact("scalar", array.shape))


@pytest.mark.parametrize("how", [{"signed": False}, {"bits": 16}, {"bits": 16, "signed": False}])
def test_inputs_quantized_by_any_path_are_bit_identical(how, gpu):
    """Inputs packed by the host, by a kernel, by a copy or by a step of the plan give equal
    outputs."""
    graph, x = network(**how), numbers()
    (wanted,) = cml.Session(graph, "cpu").run({"x": x}).values()
    assert len(np.unique(wanted)) > 50
    session = cml.Session(graph, gpu)
    assert {step.op for step in session.plan.steps} == {"conv"}
    givens = [x, in_buffer(gpu, x), in_buffer(gpu, x, wgpu.BufferUsage.COPY_DST)]
    by_step = cml.CompileOptions(plan=PlanOptions(packed_inputs=False))
    for made, given in [*((session, g) for g in givens), (cml.Session(graph, gpu, by_step), x)]:
        assert_array_equal(*made.run({"x": given}).values(), wanted)


def test_textures_and_job_outputs_are_quantized_in_frames(gpu):
    shape = (1, 4, 9, 7)
    graph, host = network(shape, signed=False), Host(gpu)
    texels = np.random.default_rng(1).integers(0, 256, (9, 7, 4)).astype(np.uint8)
    texture = gpu.device.create_texture(
        size=(7, 9, 1), format="rgba8unorm",
        usage=wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_DST,
    )  # fmt: skip
    gpu.queue.write_texture({"texture": texture}, texels, {"bytes_per_row": 28}, (7, 9, 1))
    x = (texels.astype(np.float32) / 255 * 75).transpose(2, 0, 1)[None]
    (wanted,) = cml.Session(graph, "cpu").run({"x": x}).values()
    first, then = cml.Session(graph, gpu), cml.Session(graph, gpu)
    name = first.graph.outputs[0]
    job = host.scheduler.submit(first, {"x": cml.TextureInput(texture, 75.0)})
    behind = host.run(then, {"x": job.output(name)})
    assert_array_equal(job.tensor(name).read(), wanted)
    assert_array_equal(behind.tensor(name).read(), wanted)


def test_retained_input_stays_quantized(gpu):
    net = IntegerNet()
    names = [net.input(n, (1, 4, 3, 3), 0.5) for n in ("a", "b")]
    graph = net.graph(net.op("add", *names, to=line(0.5)))
    session = cml.Session(graph, gpu, retain=True)
    ones = np.ones((1, 4, 3, 3), np.float32)
    session.run({"a": in_buffer(gpu, ones), "b": ones})
    (found,) = session.run({"b": 3 * ones}).values()
    assert (found == 4).all()
