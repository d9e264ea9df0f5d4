"""What the caller decides is what runs, and computes the same."""

import numpy as np

import cml_engine as cml
from cml_engine.session import random_inputs
from tests.fixtures.models import write_model

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
    wanted = cml.Session(graph, "cpu").run(inputs)["result"]
    assert np.abs(got - wanted).max() < 2e-3 * np.abs(wanted).max()
    kernels = {step.title: step.variant for step in session.plan.steps if step.variant}
    assert kernels["conv 'relu1'"].startswith("plain")
    assert kernels["conv 'result'"].startswith("tile ")
    assert session.plan.layouts["relu1"] == "c4h"
