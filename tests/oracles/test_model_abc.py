"""Tests of the CML blog's network on both backends against the Khronos interpreter."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from tests.fixtures.models import MODEL_ABC, inputs_abc, write_model_abc

if importlib.util.find_spec("nnef") is None:
    pytest.skip("the nnef package is not installed", allow_module_level=True)

CHILD = Path(__file__).with_name("khronos_child.py")
LOWERED = "mean_reduce,max"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of the model with the inputs and the Khronos interpreter's results as ``.npy``
    files.

    The model has the version line that Khronos's parser demands.
    """
    folder = write_model_abc(tmp_path_factory.mktemp("abc") / "model_abc.nnef")
    (folder / "graph.nnef").write_text("version 1.0;\n" + MODEL_ABC)
    for i, array in enumerate(inputs_abc().values()):
        np.save(folder / f"input_{i}.npy", array)
    said = subprocess.run(
        [sys.executable, CHILD, LOWERED],
        input=f"{folder}\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.stdout == "done 2\n", said.stdout + said.stderr
    return folder


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_model_abc_agrees_with_khronos(model, backend, request):
    where = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    outputs = cml.Session(cml.load(model), where).run(inputs_abc())
    for i, name in enumerate(("output1", "output2")):
        theirs = np.load(model / f"result_{i}.npy")
        np.testing.assert_allclose(outputs[name], theirs, rtol=0, atol=1e-5)
