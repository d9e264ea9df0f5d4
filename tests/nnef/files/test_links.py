"""Tests of models whose files are links, as download caches lay them out."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import CmlError
from cml_engine.nnef.files.tensor_file import write_tensor
from tests.fixtures.ncnn_models import write as write_ncnn

TEXT = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 4]);
    w = variable<scalar>(shape = [1, 4], label = 'layers/w');
    y = add(x, w);
}
"""
VALUES = np.array([[1, 2, 4, 8]], np.float32)


def write_nnef(folder):
    (folder / "graph.nnef").write_text(TEXT)
    write_tensor(folder / "layers" / "w.dat", VALUES)
    return folder / "graph.nnef"


def write_param(folder):
    lines = ["Input i 0 1 in 0=4", "Scale s 1 1 in out 0=4"]
    return write_ncnn(folder, lines, VALUES.astype("<f4").tobytes())


def write_onnx(folder):
    onnx = pytest.importorskip("onnx")
    from tests.fixtures.onnx_models import model

    network = model("y = Add(x, w)", weights={"w": VALUES})
    external = {"save_as_external_data": True, "size_threshold": 0, "location": "m.onnx_data"}
    onnx.save(network, folder / "m.onnx", **external)
    return folder / "m.onnx"


WRITERS = {"nnef": write_nnef, "ncnn": write_param, "onnx": write_onnx}


@pytest.fixture(params=WRITERS)
def cached(request, tmp_path):
    """The path of a model in a cache's layout, where every file is a link to a blob."""
    made, snapshot, blobs = (tmp_path / name for name in ("made", "snapshots/3f2a", "blobs"))
    for folder in (made, snapshot, blobs):
        folder.mkdir(parents=True)
    graph = WRITERS[request.param](made)
    for number, file in enumerate(sorted(path for path in made.rglob("*") if path.is_file())):
        link = snapshot / file.relative_to(made)
        link.parent.mkdir(exist_ok=True)
        file.rename(blobs / f"{number:040x}")
        up = "../" * (len(link.relative_to(tmp_path).parts) - 1)
        link.symlink_to(f"{up}blobs/{number:040x}")
    return snapshot / graph.relative_to(made)


def test_links_to_blobs_are_followed(cached):
    assert cached.is_symlink()
    x = np.full((1, 4), 3, np.float32)
    outputs = cml.Session(cml.load(cached), "cpu").run({cml.load(cached).inputs[0]: x})
    expected = x * VALUES if cached.suffix == ".param" else x + VALUES
    np.testing.assert_array_equal(*outputs.values(), expected)


def test_links_to_missing_blobs_are_named(cached, tmp_path):
    weights = next(p for p in cached.parent.rglob("*") if p.is_symlink() and p.name != cached.name)
    for link in (weights, cached):
        link.resolve().unlink()
        with pytest.raises(CmlError, match=r"is a link to '\S*blobs/0.*download the model again"):
            cml.load(cached)


def test_linked_folders_are_followed(tmp_path):
    """A link may also lead to a folder of weights, or be the model's folder."""
    (tmp_path / "model").mkdir()
    write_nnef(tmp_path / "model")
    (tmp_path / "model" / "layers").rename(tmp_path / "elsewhere")
    (tmp_path / "model" / "layers").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    for path in (tmp_path / "model", tmp_path / "link"):
        np.testing.assert_array_equal(cml.load(path).constants["w"], VALUES)


def test_links_to_what_is_no_file_are_refused(tmp_path):
    """A link to a device, to a folder or to itself is refused without reading."""
    path = write_nnef(tmp_path)
    weights = tmp_path / "layers" / "w.dat"
    for target in ("/dev/zero", tmp_path, weights):
        weights.unlink()
        weights.symlink_to(target)
        with pytest.raises(CmlError, match="No such file|which does not exist"):
            cml.load(path)
