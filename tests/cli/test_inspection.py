"""Tests of ``cml run --dump-tensors``, ``cml run --stop-at-nan`` and ``cml validate --passes``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from cml_engine.tools.cli import main
from tests.fixtures.models import write_model

TEXT = """\
version 1.0;
graph net(image, gain) -> (y)
{
    image = external<scalar>(shape = [1, 3, 6, 5]);
    gain = external<scalar>(shape = [1, 3, 1, 1]);
    half = div(1.0, 2.0);
    darker = mul(image, half);
    ratio = div(darker, gain);
    y = sigmoid(ratio);
}
"""


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "image.npy", rng.random((1, 3, 6, 5)).astype(np.float32))
    gain = np.array([1, 2, 0.5], np.float32).reshape(1, 3, 1, 1)
    np.save(tmp_path / "gain.npy", gain)
    gain[0, 1] = 0
    np.save(tmp_path / "zero.npy", gain)
    return write_model(tmp_path / "net.nnef", TEXT)


def run(model, *more, gain="gain", backend="cpu"):
    here = model.parent
    inputs = ("-i", f"image={here}/image.npy", "-i", f"gain={here}/{gain}.npy")
    return main(["run", str(model), "--backend", backend, *inputs, *more])


def index(folder):
    return {
        row["tensor"]: row for row in json.loads((folder / "index.json").read_text())["tensors"]
    }


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_every_tensor_is_written_with_what_it_is(model, tmp_path, capsys, backend):
    out = tmp_path / "made" / "dump"
    assert run(model, "--dump-tensors", str(out), backend=backend) == 0
    assert f"4 tensors -> {out}/index.json" in capsys.readouterr().out
    rows = index(out)
    assert list(rows) == ["half", "darker", "ratio", "y"]
    image = np.load(tmp_path / "image.npy")
    darker = np.load(out / rows["darker"]["file"])
    np.testing.assert_array_equal(darker, image * np.float32(0.5))
    row = rows["ratio"]
    assert row["line"].endswith("graph.nnef:8:13") and row["text"] == "ratio = div(darker, gain);"
    assert row["operator"] == "div" and row["shape"] == [1, 3, 6, 5] and row["nan"] == 0
    assert row["max"] == pytest.approx(float(np.load(out / row["file"]).max()))
    assert rows["half"]["min"] == 0.5 and "picture" not in rows["half"]
    picture = np.asarray(Image.open(out / rows["darker"]["picture"]))
    np.testing.assert_allclose(picture / 255, darker[0].transpose(1, 2, 0), atol=1 / 255)


def test_only_some_are_written(model, tmp_path, capsys):
    assert run(model, "--dump-tensors", str(tmp_path / "d"), "--only", "r*", "--only", "y") == 0
    assert list(index(tmp_path / "d")) == ["ratio", "y"]
    assert run(model, "--dump-tensors", str(tmp_path / "d"), "--only", "z*") == 2
    assert "--only 'z*': no tensor of 'net' matches; it computes half, dark" in _error(capsys)
    assert run(model, "--only", "y") == 2
    assert "--only needs --dump-tensors DIR" in _error(capsys)


def _error(capsys):
    return capsys.readouterr().err


def test_a_picture_outside_of_its_range_is_stretched(model, tmp_path):
    assert run(model, "--dump-tensors", str(tmp_path / "d"), gain="zero") == 0
    row = index(tmp_path / "d")["ratio"]
    assert row["inf"] == 30 and row["nan"] == 0
    assert row["black"] == 0 or row["black"] == row["min"]
    assert row["white"] == max(row["max"], 1)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_first_result_that_is_not_finite_is_named(model, tmp_path, capsys, backend):
    out = tmp_path / "d"
    args = ("--stop-at-nan", "--dump-tensors", str(out))
    assert run(model, *args, gain="zero", backend=backend) == 1
    said = _error(capsys)
    assert "graph.nnef:8:13: div 'ratio': of 90 values of 'ratio' 30 infinite" in said
    assert "the first, inf, at [0, 1, 0, 0]" in said
    there = float(np.load(tmp_path / "image.npy")[0, 1, 0, 0]) / 2
    assert (
        f"there {there:.7g}" in said and "gain [1, 3, 1, 1]: min 0, max 1, 1 zeros; there 0" in said
    )
    assert list(index(out)) == ["half", "darker", "ratio"]  # and no further


def test_finite_results_stop_nothing(model, capsys):
    assert run(model, "--stop-at-nan") == 0
    assert "y: scalar[1,3,6,5]" in capsys.readouterr().out


def test_the_passes_are_checked_without_a_gpu(model, capsys):
    assert main(["validate", "--passes", str(model), "--seed", "3"]) == 0
    assert "all agree: " in capsys.readouterr().out
    assert main(["validate", "--passes", "--half", str(model)]) == 2
    assert "--passes compares in NumPy" in _error(capsys)
