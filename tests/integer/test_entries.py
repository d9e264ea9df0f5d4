"""Tests that the inputs of integer networks are packed bit-identically on every path."""

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.gpu.memory import tensors
from tests.fixtures.frames.host import Host
from tests.fixtures.integer.networks import IntegerNet, line
from tests.fixtures.texels import texture_of

pytestmark = pytest.mark.gpu

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
    values = 40 * np.random.default_rng(0).standard_normal(shape)
    values.reshape(-1)[: len(ODD)] = 0.3 * np.array(ODD)
    return values.astype(np.float32)


def expected_of(graph, x, distinct):
    """Returns the CPU's output; asserts that it has more than ``distinct`` different values."""
    (expected,) = cml.Session(graph, "cpu").run({"x": x}).values()
    assert len(np.unique(expected)) > distinct
    return expected


def in_buffer(gpu, array, usage=wgpu.BufferUsage.STORAGE):
    """Returns a tensor with the array's values in a GPU buffer, at an offset that no device can
    bind."""
    data = np.concatenate([np.full(3, 7, np.float32), array.reshape(-1)])
    usage |= wgpu.BufferUsage.COPY_SRC
    buffer = gpu.device.create_buffer_with_data(data=data, usage=usage)
    return gpu.tensor(buffer, 12, ops.Fact("scalar", array.shape))


@pytest.mark.parametrize("how", [{"signed": False}, {"bits": 16}, {"bits": 16, "signed": False}])
def test_inputs_quantized_by_any_path_are_bit_identical(how, gpu):
    """Inputs packed by the host, by a kernel, by a copy or by a step of the plan give equal
    outputs."""
    graph, x = network(**how), numbers()
    expected = expected_of(graph, x, 50)
    session = cml.Session(graph, gpu)
    assert {step.op for step in session.plan.steps} == {"conv"}
    givens = [x, in_buffer(gpu, x), in_buffer(gpu, x, wgpu.BufferUsage.COPY_DST)]
    by_step = cml.CompileOptions(plan=PlanOptions(packed_inputs=False))
    for tested, given in [*((session, g) for g in givens), (cml.Session(graph, gpu, by_step), x)]:
        assert_array_equal(*tested.run({"x": given}).values(), expected)


@pytest.mark.parametrize(
    "how, dtype",
    [
        ({"signed": False}, np.uint8),
        ({}, np.int8),
        ({"bits": 16}, np.int8),
        ({"bits": 16, "signed": False}, np.uint8),
    ],
)
def test_words_give_the_bits_of_the_numbers_that_round_to_them(how, dtype, gpu, monkeypatch):
    graph, limits = network((1, 8, 8, 4), **how), np.iinfo(dtype)
    words = np.arange(limits.min, limits.max + 1).astype(dtype).reshape(1, 8, 8, 4)
    if how == {}:
        words[words == -128] = -127  # the words of 8 signed bits are symmetric
    x = (words * np.float32(0.3)).astype(np.float32)
    expected = expected_of(graph, x, 250)
    inputs, host = {"x": cml.integer.Words(words)}, Host(gpu)
    by_step = cml.CompileOptions(plan=PlanOptions(packed_inputs=False))
    packed = cml.Session(graph, gpu)
    for session in (cml.Session(graph, "cpu"), cml.Session(graph, gpu, by_step), packed):
        assert_array_equal(*session.run(inputs).values(), expected)
        assert_array_equal(*session.run(inputs, watch=lambda *what: None).values(), expected)
    read = []
    packed.run(inputs, before=lambda node, operands: read.append(operands[0]))
    assert_array_equal(np.rint(read[0] / 0.3), words)  # operands are shown as numbers
    job = host.run(packed, inputs)
    assert_array_equal(job.tensor(packed.graph.outputs[0]).read(), expected)
    monkeypatch.setattr(tensors, "words_of", None)  # packed words are uploaded without rounding
    assert_array_equal(*packed.run(inputs).values(), expected)


def test_words_that_do_not_fit_are_refused(backend):
    session = cml.Session(network(signed=False), backend)
    with pytest.raises(cml.InputError, match="its words are 0 to 255, got -3 to 0"):
        words = np.zeros(SHAPE, np.int8)
        words[0, 0, 0, 0] = -3
        session.run({"x": cml.integer.Words(words)})
    with pytest.raises(cml.InputError, match="input 'x': wanted shape"):
        session.run({"x": cml.integer.Words(np.zeros((2, 6), np.uint8))})
    with pytest.raises(cml.InputError, match="wanted a NumPy array of uint8 or int8, got int32"):
        cml.integer.Words(np.zeros(SHAPE, np.int32))
    with pytest.raises(cml.InputError, match="uint8 or int8, got list"):
        cml.integer.Words([1, 2])


def test_float_networks_take_no_words():
    text = "version 1.0; graph net(x) -> (y) { x = external<scalar>(shape = [2]); y = exp(x); }"
    session = cml.Session(cml.load(cml.nnef.MemoryModel(text)), "cpu")
    with pytest.raises(cml.InputError, match="cml.integer.Words is for inputs of integer networks"):
        session.run({"x": cml.integer.Words(np.zeros(2, np.uint8))})


def test_textures_and_job_outputs_are_quantized_in_frames(gpu):
    shape = (1, 4, 9, 7)
    graph, host = network(shape, signed=False), Host(gpu)
    texels = np.random.default_rng(1).integers(0, 256, (9, 7, 4)).astype(np.uint8)
    x = (texels.astype(np.float32) / 255 * 75).transpose(2, 0, 1)[None]
    expected = expected_of(graph, x, 50)
    first, then = cml.Session(graph, gpu), cml.Session(graph, gpu)
    name = first.graph.outputs[0]
    job = host.submit(first, {"x": cml.TextureInput(texture_of(gpu.device, texels), 75.0)})
    behind = host.run(then, {"x": job.output(name)})
    assert_array_equal(job.tensor(name).read(), expected)
    assert_array_equal(behind.tensor(name).read(), expected)


def test_retained_input_stays_quantized(gpu):
    net = IntegerNet()
    names = [net.input(n, (1, 4, 3, 3), 0.5) for n in ("a", "b")]
    graph = net.graph(net.op("add", *names, to=line(0.5)))
    session = cml.Session(graph, gpu, retain=True)
    ones = np.ones((1, 4, 3, 3), np.float32)
    session.run({"a": in_buffer(gpu, ones), "b": ones})
    (result,) = session.run({"b": 3 * ones}).values()
    assert (result == 4).all()
