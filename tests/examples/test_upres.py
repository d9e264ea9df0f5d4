"""Tests the trained upscaling network on a photo against ncnn's own run of the same files."""

import numpy as np
import pytest

import cml_engine as cml
from benchmarks.contenders import CONTENDERS, Workload
from benchmarks.models import as_tensor
from examples.upscale import assets, pictures

pytest.importorskip("ncnn")
SIZE = (48, 40)


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """A workload of the benchmark with the network's files and a small version of the photo.

    The files are downloaded if necessary; the test is skipped if that fails.
    """
    try:
        assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO)
    except assets.AssetError as error:
        pytest.skip(str(error).splitlines()[0])
    made = Workload(tmp_path_factory.mktemp("upres"))
    made.param.write_bytes(assets.NETWORK_PARAM.path.read_bytes())
    made.weights.write_bytes(assets.NETWORK_BIN.path.read_bytes())
    made.save_inputs({"data": as_tensor(pictures.small_photo(assets.PHOTO.path, SIZE))})
    return made


@pytest.fixture(scope="module")
def graph(workload):
    cml.save(cml.load(workload.param, shapes=(1, 3, SIZE[1], SIZE[0])), workload.nnef)
    return cml.load(workload.nnef)


@pytest.fixture(scope="module")
def expected(workload):
    (ncnn,) = [c for c in CONTENDERS if c.key == "ncnn-cpu"]
    return ncnn.load(workload).run(workload.load_inputs())


def test_the_network_agrees_with_ncnn(graph, backend, workload, expected):
    (target,) = graph.outputs
    actual = cml.Session(graph, backend).run(workload.load_inputs())[target]
    assert actual.shape == expected.shape == (1, 3, 4 * SIZE[1], 4 * SIZE[0])
    assert np.abs(actual - expected).max() <= 1e-4
