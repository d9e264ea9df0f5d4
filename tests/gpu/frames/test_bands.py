"""Tests that networks that are run in bands of rows are bit-identical to whole runs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.errors import CmlError, InputError
from cml_engine.runtime.session import random_inputs
from tests.fixtures.graphs import random_maps
from tests.fixtures.models import write_model
from tests.fixtures.results import same_bits
from tests.pure.planning.test_bands import WIDE

INTEGER = Path(__file__).resolve().parents[3] / "demo_game" / "models" / "integer" / "upres.nnef"
#: residuals, a pixel shuffle as a transpose, an odd height; the third conv can use Winograd
UPSCALER = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 3, 45, 38]);
    one = variable<scalar>(shape = [48, 3, 3, 3], label = 'one');
    two = variable<scalar>(shape = [48, 48, 3, 3], label = 'two');
    three = variable<scalar>(shape = [12, 48, 3, 3], label = 'three');
    conv1 = conv(image, one, 0.0);
    relu1 = relu(conv1);
    conv2 = conv(relu1, two, 0.0);
    sum = add(conv2, relu1);
    conv3 = conv(sum, three, 0.0);
    apart = reshape(conv3, shape = [1, 3, 2, 2, 45, 38]);
    turned = transpose(apart, axes = [0, 1, 4, 2, 5, 3]);
    shuffled = reshape(turned, shape = [1, 3, 90, 76]);
    larger = multilinear_upsample(image, factor = [2, 2], border = 'replicate');
    result = add(shuffled, larger);
}
"""
#: strides, dilation, depthwise and transposed convs, and a skip connection
CODER = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 2, 50, 21]);
    one = variable<scalar>(shape = [8, 2, 5, 3], label = 'one');
    two = variable<scalar>(shape = [13, 8, 3, 3], label = 'two');
    each = variable<scalar>(shape = [13, 1, 3, 3], label = 'each');
    back = variable<scalar>(shape = [13, 8, 4, 3], label = 'back');
    last = variable<scalar>(shape = [1, 16, 3, 1], label = 'last');
    first = conv(image, one, 0.0, border = 'reflect');
    level = sigmoid(first);
    small = max_pool(level, size = [1, 1, 2, 1], stride = [1, 1, 2, 1], border = 'ignore');
    deep = conv(small, two, 0.0, dilation = [2, 1]);
    spread = conv(deep, each, 0.0, groups = 0);
    up = deconv(spread, back, 0.0, stride = [2, 1], output_shape = [1, 8, 50, 21]);
    both = concat([up, level], axis = 1);
    result = conv(both, last, 0.0, padding = [(0, 2), (0, 0)]);
}
"""


def check_bands(graph, gpu, share, **options):
    """Asserts that a session in bands is bit-identical to one of the whole network.

    The bands use at most ``share`` of the whole session's memory. Returns the session in bands, its
    inputs and the outputs.
    """
    unbanded = cml.Session(graph, gpu, cml.CompileOptions(**options))
    limit = int(share * unbanded.plan.memory.peak)
    session = cml.Session(graph, gpu, cml.CompileOptions(arena_limit=limit, **options))
    assert session.plan.memory.peak <= limit and session.plan.bands
    inputs = random_inputs(unbanded.inputs, 3)
    expected = unbanded.run(inputs)
    same_bits(session.run(inputs), expected)
    return session, inputs, expected


@pytest.fixture(scope="module")
def upscaler(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("up") / "net.nnef", UPSCALER)
    return cml.load(folder, random_weights=0)


@pytest.mark.parametrize("storage", ["float", "half"])
def test_an_upscaler_in_bands(upscaler, gpu, storage):
    check_bands(upscaler, gpu, 0.65, storage=storage)


def test_an_encoder_and_decoder_in_bands(gpu, tmp_path):
    graph = cml.load(write_model(tmp_path / "net.nnef", CODER), random_weights=0)
    session, _, _ = check_bands(graph, gpu, 0.7)
    assert any(len(run.operators) > 2 for run in session.plan.bands)


def test_an_integer_network_in_bands(gpu):
    check_bands(cml.load(INTEGER), gpu, 0.85)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000))
def test_random_networks_in_bands(gpu, seed):
    graph, inputs = random_maps(seed)
    unbanded = cml.Session(graph, gpu)
    limit = int(0.8 * unbanded.plan.memory.peak)
    try:
        session = cml.Session(graph, gpu, cml.CompileOptions(arena_limit=max(limit, 1)))
    except CmlError as error:
        assert "at the least" in str(error)
        return
    same_bits(session.run(inputs), unbanded.run(inputs))


def test_banded_session_is_reshaped_and_reloaded(gpu, tmp_path):
    graph = cml.load(write_model(tmp_path / "net.nnef", WIDE), random_weights=0)
    session, inputs, _ = check_bands(graph, gpu, 0.6)
    shapes = {"image": (1, 2, 71, 24)}
    larger, alone = session.reshaped(shapes), cml.Session(graph.reshaped(shapes), gpu)
    assert larger.plan.bands and larger.plan.memory.peak <= session.options.arena_limit
    larger_inputs = random_inputs(alone.inputs, 4)
    assert np.array_equal(larger.run(larger_inputs)["result"], alone.run(larger_inputs)["result"])
    other = cml.load(tmp_path / "net.nnef", random_weights=1)
    session.replace(other)
    session.take_replacement()
    assert session.plan.bands
    expected = cml.Session(other, gpu).run(inputs)["result"]
    assert np.array_equal(session.run(inputs)["result"], expected)


def test_jobs_in_slices_and_no_watching(upscaler, gpu, host):
    session, inputs, expected = check_bands(upscaler, gpu, 0.7)
    (got,) = host.finish(host.submit(session, inputs), name="result")
    assert np.array_equal(got, expected["result"])
    with pytest.raises(InputError, match="is computed in bands of rows"):
        session.run(inputs, watch=lambda node, results: None)
