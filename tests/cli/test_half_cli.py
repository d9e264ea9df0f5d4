"""Tests of the option ``--half`` of the commands."""

import json

import numpy as np
import pytest

from cml_engine.formats.loading import save
from tests.fixtures.graphs import Net


def write(folder, scale=1.0):
    """Writes a model of three convolutions to a folder, and returns the folder's path as text.

    The results of the second convolution are multiplied by ``scale``.
    """
    net = Net(1, 3, 12, 12)
    h = net.op("tanh", net.conv("x", 8))
    h = net.op("mul", net.op("tanh", net.conv(h, 8)), net.constant(scale))
    graph = net.graph(net.conv(h, 3))
    save(graph, folder)
    return str(folder)


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "small.nnef")


def test_info_plans_for_16_bits(model, run_cml):
    told = []
    for half in ("", "--half"):
        told.append(json.loads(run_cml(f"info {model} --json {half}").out))
    full, half = told
    assert (full["storage"], half["storage"]) == ("float", "half")
    for what in ("arena_bytes", "weights_bytes", "moved_bytes"):
        assert half[what] < full[what]
    assert "16 bits" in run_cml(f"info {model} --half").out


def test_run_and_rank(model, tmp_path, gpu, run_cml):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((1, 3, 12, 12), np.float32))
    results = []
    for i, half in enumerate(("", "--half")):
        out = tmp_path / f"{i}.npy"
        given = f"-i x={tmp_path / 'x.npy'} -o t5={out} --backend gpu"
        run_cml(f"run {model} {given} {half}")
        results.append(np.load(out))
    full, half = results
    assert 0 < np.abs(full - half).max() < 1e-2 * np.abs(full).max()
    run_cml(f"rank {model} --half --runs 1 --backend gpu")


def test_validate_reports_half_storage_errors(model, gpu, run_cml):
    said = run_cml(f"validate {model} --half").out
    assert "all operators agree" in said and "16-bit storage against 32 bits" in said
    *_, output = (line.split() for line in said.splitlines() if line.startswith("t5 "))
    assert "outputs on the GPU" in said and 0 < float(output[2]) < 1e-2
    assert "16-bit storage" not in run_cml(f"validate {model}").out


def test_validate_names_the_operator_that_overflows_half(tmp_path, gpu, run_cml):
    said = run_cml("validate", write(tmp_path / "large.nnef", 1e6), "--half", ends=1).out
    assert "first value too large for 16 bits" in said and "graph.nnef:" in said and "mul" in said
    run_cml(f"validate {tmp_path}/large.nnef")


def test_half_storage_is_refused_on_the_cpu(model, tmp_path, refused):
    given = f"-i x={tmp_path / 'x.npy'}"
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    assert "--half needs a GPU" in refused(f"run {model} {given} --half --backend cpu")
