"""Tests that the StyleGAN2 example's files load, fit device limits, and run alike everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.choose_layout import choose_layout
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.limits import Limits
from cml_engine.tools.report.model_info import model_info
from examples.measure import in_slices
from examples.stylegan2 import __main__ as command
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters

Z = np.random.default_rng(1).standard_normal((1, 512), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a small generator with the example's command and returns its folder."""
    folder = tmp_path_factory.mktemp("stylegan2") / "small.nnef"
    words = ["write", str(folder), "--resolution", "16", "--channel-base", "512"]
    assert command.main(words) == 0
    return folder


@pytest.fixture(scope="module")
def largest():
    """Returns the paper's 1024 x 1024 network as built, optimized, and planned.

    The plan keeps WebGPU's minimum limits, except for the buffer size. The network takes 120 MB,
    so it is built once.
    """
    built = build(Config(1024), random_parameters(Config(1024), 1))
    graph = optimize(built)
    limits = Limits(max_buffer_bytes=1 << 30)
    return built, graph, lower(graph, limits, choose_layout(graph))


def test_the_files_hold_the_graph_that_was_built(model):
    config = Config(16, channel_base=512)
    built, loaded = build(config, random_parameters(config, 1)), cml.load(model)
    assert [(n.op, n.attrs) for n in loaded.nodes] == [(n.op, n.attrs) for n in built.nodes]
    assert loaded.facts["image"].shape == (1, 3, 16, 16)
    image, again = (cml.Session(g, "cpu").run({"z": Z})["image"] for g in (built, loaded))
    np.testing.assert_array_equal(image, again)


def test_cpu_and_gpu_agree(model, gpu):
    graph = cml.load(model)
    images = [cml.Session(graph, backend).run({"z": Z})["image"] for backend in ("cpu", gpu)]
    assert images[0].std() > 0.05
    np.testing.assert_allclose(images[1], images[0], atol=2e-5)


def test_another_latent_is_another_picture(model):
    session = cml.Session(cml.load(model), "cpu")
    images = [session.run({"z": z})["image"] for z in (Z, Z[:, ::-1].copy())]
    assert np.abs(images[0] - images[1]).mean() > 0.01
    scaled = session.run({"z": 3 * Z})["image"]
    np.testing.assert_allclose(scaled, images[0], atol=1e-5)  # the latent is normalised


def test_slices_give_the_same_bits(model, gpu):
    session = cml.Session(cml.load(model), gpu)
    sliced = in_slices(gpu, session, {"z": Z}, budget_ms=0.5)
    np.testing.assert_array_equal(sliced.result, session.run({"z": Z})["image"])
    assert len(sliced.frames) > 1 and "frames" in str(sliced)


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


def test_what_does_not_fit_is_told(largest):
    _, graph, _ = largest
    small = Limits(max_binding_bytes=16 << 20, max_buffer_bytes=1 << 30)
    with pytest.raises(cml.DeviceError, match=r"in \d+ parts, .* this device allows 8"):
        lower(graph, small, choose_layout(graph))


def test_mistakes_are_told(model, tmp_path, capsys):
    for words, said in (
        (["write", str(model)], "is not empty"),
        (["write", str(tmp_path / "x"), "--resolution", "100"], "wanted a power of two"),
        (["run", str(tmp_path / "missing")], "there is no"),
    ):
        assert command.main(words) == 2
        assert said in capsys.readouterr().err


def test_info_tells_of_a_model_larger_than_the_guaranteed_limits(largest):
    built, _, plan = largest
    told = model_info(built)
    assert told.arena_bytes == plan.memory.peak > Limits().max_buffer_bytes
