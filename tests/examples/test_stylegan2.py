"""Tests that the StyleGAN2 example's files load and that its networks fit the limits of devices."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.limits import Limits
from examples.stylegan2 import __main__ as command
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters

Z = np.random.default_rng(1).standard_normal((1, 512), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small generator that the example's command has written."""
    folder = tmp_path_factory.mktemp("stylegan2") / "small.nnef"
    words = ["write", str(folder), "--resolution", "16", "--channel-base", "512"]
    assert command.main(words) == 0
    return folder


@pytest.fixture(scope="module")
def largest():
    """The paper's 1024 x 1024 network: its graph, the optimized graph, and the plan.

    The plan keeps WebGPU's minimum limits, except for the buffer size. The network takes 120 MB,
    so it is built once.
    """
    built = build(Config(1024), random_parameters(Config(1024), 1))
    graph = optimize(built)
    limits = Limits(max_buffer_bytes=1 << 30)
    return built, graph, lower(graph, limits, choose_layout(graph))


def test_saved_stylegan2_equals_the_built_graph(model):
    config = Config(16, channel_base=512)
    built, loaded = build(config, random_parameters(config, 1)), cml.load(model)
    assert [(n.op, n.attrs) for n in loaded.nodes] == [(n.op, n.attrs) for n in built.nodes]
    assert loaded.facts["image"].shape == (1, 3, 16, 16)
    image, again = (cml.Session(g, "cpu").run({"z": Z})["image"] for g in (built, loaded))
    np.testing.assert_array_equal(image, again)


def test_the_largest_fits_every_device(largest):
    _, graph, plan = largest
    assert graph.facts["image"].shape == (1, 3, 1024, 1024)
    assert sum(n.op in ("conv", "deconv") for n in graph.nodes) == 34
    assert max(b.nbytes for s in plan.steps for b in s.bindings) == Limits().max_binding_bytes
    assert {n: p.count for n, p in plan.parts.items()} == {"synthesis_b1024_conv0_deconv": 2}
    assert plan.memory.ratio <= 1.05
    guaranteed = lower(graph, Limits(), choose_layout(graph))
    assert guaranteed.memory.segment == Limits().max_buffer_bytes > guaranteed.weights_bytes
    variants = {(str(s.path), tuple(sorted(s.defines.items()))) for s in plan.steps}
    assert len(variants) <= 40


def test_oversized_step_is_refused_with_limits(largest):
    _, graph, _ = largest
    small = Limits(max_binding_bytes=16 << 20, max_buffer_bytes=1 << 30)
    with pytest.raises(cml.DeviceError, match=r"in \d+ bindings, .* this device allows 8"):
        lower(graph, small, choose_layout(graph))
