"""Tests that integer networks have equal digests on both backends and that a difference is
located."""

import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.integer.digest import run_digest
from cml_engine.compiler.optimize import optimize
from cml_engine.runtime import node_check as check
from cml_engine.runtime.node_check import check_bits, random_words
from tests.cpu.integer.test_quantize import block, samples_of
from tests.gpu.integer.test_bits import net_of

DIGESTS = {
    8: "sha256:f2324df153ec1b74b6c9f5dee5da52501af2221c2a29fe6216b73ddc20c4d486",
    16: "sha256:5cfc274acc2b61490f8b595eb6cfc6b59cf40c2fb5bc9d978ac9a607cec9b45a",
}


@pytest.fixture(scope="module")
def network():
    graph = block()
    return cml.quantize(graph, samples_of(graph), max_error=0.01)[0]


@pytest.mark.parametrize("bits", [8, 16])
def test_one_digest_everywhere(bits, gpu):
    """The outputs on the CPU and on the GPU have the digest in ``DIGESTS``."""
    graph, inputs = net_of(bits)
    found = {run_digest(graph, cml.Session(graph, b).run(inputs)) for b in ("cpu", gpu)}
    assert found == {DIGESTS[bits]}


def test_no_bit_differs(network, gpu):
    found = check_bits(network, gpu, random_words(network, 5))
    assert found.ok and found.tensors > 8
    assert "no bit differs" in str(found)


def test_integer_check_names_the_first_different_node(network, gpu, monkeypatch):
    """If NumPy uses another multiplier, the check names the node where the results first differ."""
    real = check.CpuProgram

    def changed(graph):
        name = next(n for n in graph.constants if "multiplier" in n)
        constants = {**graph.constants, name: graph.constants[name] + 64 * 99}
        return real(graph.with_(constants=constants))

    monkeypatch.setattr(check, "CpuProgram", changed)
    found = check_bits(network, gpu, random_words(network, 5))
    assert not found.ok and re.match(r"conv 't\d+' differs first: \d+ of 256 ", found.first)


def test_every_intermediate_value_is_a_whole_number(network):
    """Every intermediate value is a whole number that a float32 holds exactly."""
    graph = optimize(network)
    values = {}
    run = check.CpuProgram(graph).run
    run(random_words(network, 1), lambda n, r: values.update(zip(n.outputs, r, strict=True)))
    for name, value in values.items():
        if name not in graph.outputs:
            assert np.array_equal(value, np.rint(value)) and np.abs(value).max() < 2**24, name
