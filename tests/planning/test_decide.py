"""Tests that a caller's decisions on a plan take effect and do not change the results."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.runtime.session import random_inputs
from tests.fixtures.graphs import random_maps
from tests.fixtures.models import write_model
from tests.fixtures.operators import declare
from tests.fixtures.results import same_bits

pytestmark = pytest.mark.gpu

MODEL = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 4, 8, 8]);
    one = variable<scalar>(shape = [8, 4, 3, 3], label = 'one');
    two = variable<scalar>(shape = [8, 8, 3, 3], label = 'two');
    conv1 = conv(image, one, 0.0, padding = [(1, 1), (1, 1)]);
    relu1 = relu(conv1);
    result = conv(relu1, two, 0.0, padding = [(1, 1), (1, 1)]);
}
"""


def test_kernels_layouts_and_storage_of_the_caller_run(gpu, tmp_path):
    graph = cml.load(write_model(tmp_path / "net.nnef", MODEL), random_weights=0)
    decide = {
        "conv1": {"kernel": "plain", "storage": "half"},
        "result": {"kernel": "tile"},
    }
    session = cml.Session(graph, gpu, cml.CompileOptions(decide=decide))
    inputs = random_inputs(session.inputs)
    got = session.run(inputs)["result"]
    expected = cml.Session(graph, "cpu").run(inputs)["result"]
    assert np.abs(got - expected).max() < 2e-3 * np.abs(expected).max()
    kernels = {step.title: step.variant for step in session.plan.steps if step.variant}
    assert kernels["conv 'relu1'"].startswith("plain")
    assert kernels["conv 'result'"].startswith("tile ")
    assert session.plan.layouts["relu1"] == "c4h"


BEYOND = """\
version 1.0;
extension KHR_enable_fragment_definitions;
fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>);
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 4, 12, 12]);
    one = variable<scalar>(shape = [8, 4, 3, 3], label = 'one');
    conv1 = conv(image, one, 0.0, padding = [(1, 1), (1, 1)]);
    doubled = twice(conv1);
    result = multilinear_upsample(doubled, factor = [2, 2], method = 'symmetric',
        border = 'replicate');
}
"""
TWICE = "void kernel(uint thread) { y[thread] = x[thread] + x[x_size - 1 - thread]; }"


def test_tensor_bound_in_parts_is_bit_identical(gpu, tmp_path, own_operators):
    """A device that binds 4096 bytes at most, less than a tensor, gives bit-identical results.

    The driver itself enforces the limit.
    """
    limits = {"max-storage-buffer-binding-size": 4096}
    features = [f for f in ("timestamp-query", "subgroup") if f in gpu.device.features]
    device = gpu.device.adapter.request_device_sync(
        required_limits=limits, required_features=features
    )
    small = cml.Gpu(device=device)
    assert small.limits.max_binding_bytes == 4096
    declare(TWICE, "twice")
    graph = cml.load(write_model(tmp_path / "net.nnef", BEYOND), random_weights=0)
    inputs = random_inputs({name: graph.facts[name] for name in graph.inputs})
    expected = cml.Session(graph, gpu).run(inputs)["result"]
    session = cml.Session(graph, small)
    assert_array_equal(session.run(inputs)["result"], expected)
    parts = {name: part.count for name, part in session.plan.parts.items()}
    assert parts == {"conv1": 2, "doubled": 2, "result": 5}
    assert max(b.nbytes for s in session.plan.steps for b in s.bindings) == 4096


def test_arena_of_several_buffers_is_bit_identical(gpu, host, set_limits):
    graph, inputs = random_maps(2, nodes=8)
    session = cml.Session(graph, gpu)
    expected, plan = session.run(inputs), session.plan
    largest = max(b.nbytes for step in plan.steps for b in step.bindings if b.space == "arena")
    limit = max(largest + 512, plan.weights_bytes) // 256 * 256
    set_limits(max_buffer_bytes=limit)
    small = cml.Session(graph, gpu)
    assert small.plan.memory.segment == limit < small.plan.memory.peak
    assert len(small.program.residency.arena.buffers) > 1
    job = host.run(small, inputs)
    same_bits(small.run(inputs), expected)
    same_bits({name: job.tensor(name).read() for name in expected}, expected)
    with pytest.raises(cml.InputError, match="more than one buffer of this device"):
        cml.Session(graph, gpu, arena="shared:small")
    held = gpu.memory.held_bytes
    small.program.evict()
    assert gpu.memory.held_bytes <= held - small.plan.memory.peak
    same_bits(small.run(inputs), expected)
    set_limits(max_buffer_bytes=256)
    with pytest.raises(cml.DeviceError, match="takes .* bytes, .* buffers of 256. Run .* on tiles"):
        cml.Session(graph, gpu)
