"""A cooked file gives the bits of the session that it was cooked from, and compiles nothing."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook

TEXT = """version 1.0;
graph small(image) -> (scaled, sums)
{
image = external<scalar>(shape = [1, 3, 6, 6]);
filter1 = variable<scalar>(shape = [8, 3, 3, 3], label = 'filter1');
filter2 = variable<scalar>(shape = [4, 8, 1, 1], label = 'filter2');
first = conv(image, filter1, 0.5);
active = relu(first);
second = conv(active, filter2, 0.0);
scaled = mul(second, 2.0);
sums = sum_reduce(active, axes = [2, 3]);
}
"""


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    filters = {f"filter{i + 1}": rng.standard_normal(shape).astype(np.float32)
               for i, shape in enumerate([(8, 3, 3, 3), (4, 8, 1, 1)])}  # fmt: skip
    return cml.load(cml.MemoryModel(TEXT, filters))


@pytest.fixture(scope="module")
def cooked(model):
    return cook(model)


def inputs():
    return {"image": np.random.default_rng(1).standard_normal((1, 3, 6, 6)).astype(np.float32)}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].view(np.uint32), b[name].view(np.uint32))


def test_the_bits_are_those_of_the_model(model, cooked, gpu):
    graph = cml.load_cooked(cooked)
    for backend in (gpu, "cpu"):
        wanted = cml.Session(model, backend).run(inputs())
        same(cml.Session(graph, backend).run(inputs()), wanted)


def test_cooking_twice_gives_the_same_bytes(model, cooked):
    assert cook(model) == cooked
