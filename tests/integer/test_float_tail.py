"""Tests of integer networks with a float part at the end: identical integers, messages."""

import json

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.integer import run_digest
from tests.fixtures.graphs import Net
from tests.fixtures.integer.networks import IntegerNet, line
from tests.integer.test_quantize import samples_of


def classifier():
    """Returns a float network with two outputs: features, and a conv of their softmax.

    Quantization keeps everything from the softmax on in floats.
    """
    net = Net(1, 4, 5, 5)
    y = net.op("relu", net.op("conv", "x", net.random(6, 4, 3, 3), net.random(1, 6)))
    p = net.op("softmax", y, axes=[1])
    p = net.op("conv", p, net.random(3, 6, 1, 1), net.constant(0.0))
    return net.graph(y, p)


def test_the_end_may_be_of_floats(tmp_path, run_cml):
    graph = classifier()
    samples = samples_of(graph)
    with pytest.raises(cml.ModelError, match="softmax .* has no integer form.*--float-tail"):
        cml.quantize(graph, samples)
    made, report = cml.quantize(graph, samples, max_error=0.02, float_tail=True)
    features, scores = graph.outputs
    assert report.ok and report.not_identical == (scores,)
    assert f"output '{scores}' is computed in floats: not identical" in str(report)
    network = lower_to_integers(made)
    assert network.first_float.startswith("softmax") and network.not_identical == (scores,)
    outputs = cml.Session(made, "cpu").run(samples[0])
    # the digest is of the words alone
    digest = run_digest(made, outputs)
    assert run_digest(made, {**outputs, scores: outputs[scores] + 1}) == digest
    assert run_digest(made, {**outputs, features: outputs[features] + 1}) != digest
    # the file keeps this, so a network that is read back is the same
    cml.save(made, tmp_path / "net")
    assert "extension CML_float_tail;" in (tmp_path / "net/graph.nnef").read_text()
    again = cml.load(tmp_path / "net")
    assert again.float_tail and run_digest(again, outputs) == digest
    np.save(tmp_path / "x.npy", samples[0]["x"])
    model = str(tmp_path / "net")
    given = f"-i x={tmp_path / 'x.npy'} --backend cpu"
    printed = run_cml(f"run {model} {given} --digest").out.splitlines()
    assert printed[-2:] == [
        f"{scores}: computed in floats, not identical on all machines: not in the digest", digest
    ]  # fmt: skip
    assert f"output '{scores}' is not identical on all machines: from softmax" in (
        run_cml(f"info {model} --integer").out
    )
    info = json.loads(run_cml(f"info {model} --integer --json").out)
    assert info["not_identical"] == [scores]


@pytest.mark.parametrize("op, more", [("avg_pool", {}), ("box", {"normalize": True})])
def test_a_mean_of_windows_of_several_sizes_is_in_the_float_tail(op, more):
    net = Net(1, 4, 5, 5)
    window = {"size": [1, 1, 3, 3], "border": "ignore"}
    padding = [(0, 0), (0, 0), (1, 1), (1, 1)]
    y = net.op(op, net.op("relu", "x"), **window, padding=padding, **more)
    graph = net.graph(y)
    with pytest.raises(cml.ModelError, match="border 'ignore' divides .*--float-tail"):
        cml.quantize(graph, samples_of(graph))
    made, report = cml.quantize(graph, samples_of(graph), float_tail=True)
    assert report.ok and report.not_identical == (y,)
    sample = samples_of(graph)[0]
    expected = cml.Session(graph, "cpu").run(sample)[y]
    np.testing.assert_allclose(cml.Session(made, "cpu").run(sample)[y], expected, atol=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "div(x, exp(neg(x)))",
        "resize(x, output_size=[9, 9], method='linear', coordinates='symmetric')",
        "multilinear_upsample(x, factor=[3, 3])",
        "batch_norm(max(x, random(1, 4, 1, 1)))",
    ],
)
def test_operators_without_an_integer_form_are_in_the_float_tail(text):
    net = Net(1, 4, 5, 5)
    graph = net.graph(text)
    made, report = cml.quantize(graph, samples_of(graph), float_tail=True)
    assert report.ok and report.not_identical == graph.outputs
    cml.Session(made, "cpu").run(samples_of(graph)[0])


def tail(**more):
    net = IntegerNet()
    y = net.op("softmax", net.input("x", (1, 4), 0.5), axes=[1], **more)
    return net.graph(y).with_(float_tail=True)


def test_a_network_of_float_outputs_has_no_digest():
    graph = tail()
    outputs = cml.Session(graph, "cpu").run({"x": np.ones((1, 4), np.float32)})
    with pytest.raises(cml.InputError, match="all of its outputs are computed in floats"):
        run_digest(graph, outputs)


def test_a_rounding_point_after_the_float_tail_is_refused(tmp_path):
    with pytest.raises(cml.ModelError, match=r"softmax 't0' is computed in floats.*take the line"):
        cml.Session(tail(to=line(0.01)), "cpu")
    (tmp_path / "graph.nnef").write_text(
        "version 1.0;\nextension CML_float_tail;\ngraph g(x) -> (y)\n{\n"
        "x = external(shape = [1]);\ny = abs(x);\n}\n"
    )
    with pytest.raises(cml.ModelError, match=r"'CML_float_tail' is for integer networks"):
        cml.load(tmp_path)


@pytest.mark.long
def test_the_gpu_is_compared_before_it(gpu):
    from cml_engine.runtime.node_check import check_bits, random_words

    graph = classifier()
    made, _ = cml.quantize(graph, samples_of(graph), sixteen=[], float_tail=True)
    found = check_bits(made, gpu, random_words(made, 3))
    assert found.ok and found.tensors == 4 and found.not_identical == (graph.outputs[1],)
    assert "computed in floats, not identical on all machines: not compared" in str(found)
