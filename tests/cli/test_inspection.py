"""Tests of ``cml run --dump-tensors``, ``cml run --stop-at-nan`` and ``cml validate --passes``."""

import json

import numpy as np
import pytest
from PIL import Image

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


@pytest.fixture
def run(run_cml, tmp_path):
    def run(words, gain="gain", backend="cpu", ends=0):
        name = "cpu" if backend == "cpu" else "gpu"
        inputs = f"-i image={tmp_path}/image.npy -i gain={tmp_path}/{gain}.npy"
        return run_cml(f"run {words} --backend {name} {inputs}", ends=ends)

    return run


def index(folder):
    return {
        row["tensor"]: row for row in json.loads((folder / "index.json").read_text())["tensors"]
    }


def test_dump_tensors_writes_an_index_of_all_tensors(model, tmp_path, backend, run):
    out = tmp_path / "made" / "dump"
    printed = run(f"{model} --dump-tensors {out}", backend=backend).out
    assert f"4 tensors -> {out}/index.json" in printed
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


def test_dump_tensors_filters_by_name(model, tmp_path, run):
    run(f"{model} --dump-tensors {tmp_path}/d --only r* --only y")
    assert list(index(tmp_path / "d")) == ["ratio", "y"]
    notice = run(f"{model} --dump-tensors {tmp_path}/d --only z*", ends=2).err
    assert "--only 'z*': no tensor of 'net' matches; it computes half, dark" in notice
    assert "--only needs --dump-tensors DIR" in run(f"{model} --only y", ends=2).err


def test_a_picture_outside_of_its_range_is_stretched(model, tmp_path, run):
    run(f"{model} --dump-tensors {tmp_path}/d", gain="zero")
    row = index(tmp_path / "d")["ratio"]
    assert row["inf"] == 30 and row["nan"] == 0
    assert row["black"] == 0 or row["black"] == row["min"]
    assert row["white"] == max(row["max"], 1)


def test_stop_at_nan_names_the_first_tensor(model, tmp_path, backend, run):
    out = tmp_path / "d"
    line = f"{model} --stop-at-nan --dump-tensors {out}"
    notice = run(line, gain="zero", backend=backend, ends=1).err
    assert "graph.nnef:8:13: div 'ratio': of 90 values of 'ratio' 30 infinite" in notice
    assert "the first, inf, at [0, 1, 0, 0]" in notice
    there = float(np.load(tmp_path / "image.npy")[0, 1, 0, 0]) / 2
    assert (
        f"there {there:.7g}" in notice
        and "gain [1, 3, 1, 1]: min 0, max 1, 1 zeros; there 0" in notice
    )
    assert list(index(out)) == ["half", "darker", "ratio"]  # and no further


def test_stop_at_nan_passes_finite_results(model, run):
    assert "y: scalar[1,3,6,5]" in run(f"{model} --stop-at-nan").out


def test_the_passes_are_checked_without_a_gpu(model, run_cml, refused):
    assert "all agree: " in run_cml(f"validate --passes {model} --seed 3").out
    assert "--passes compares in NumPy" in refused(f"validate --passes --half {model}")
