"""Tests that ncnn computes the 8-bit networks that the benchmarks write for it in bytes."""

import numpy as np
import pytest

from benchmarks.contenders import Workload
from benchmarks.ncnn.int8 import Int8Network
from tests.fixtures.ncnn_models import input_line, param_text, weight_bytes

pytest.importorskip("ncnn")

#: the second convolution is given bytes by the first; neither filter fills whole words
LINES = (
    input_line("x", (3, 9, 10)),
    "Convolution a 1 1 x a 0=5 1=3 4=1 5=1 6=135 9=2 -23310=1,0.1",
    "Convolution b 1 1 a b 0=17 1=1 3=2 6=85",
    "PReLU c 1 1 b c 0=17",
    "Convolution d 1 1 c d 0=3 1=3 11=1 2=2 5=1 6=153",
)


@pytest.fixture
def network(tmp_path, rng):
    floats = Workload(tmp_path)
    floats.param.write_text(param_text(LINES), encoding="utf-8")
    floats.weights.write_bytes(weight_bytes("f135 r5 h85 r17 f153 r3", rng))
    return Int8Network(floats, samples(rng))


def samples(rng):
    return [{"x": rng.standard_normal((1, 3, 9, 10), np.float32)} for _ in range(4)]


def test_ncnns_package_computes_in_bytes(network, rng):
    """The first conv passes bytes to the second, and the result differs from floats by 0.1 to 5
    %."""
    assert network.handed == {"a"}
    assert 1e-3 < network.error(samples(rng)[0]) < 0.05
