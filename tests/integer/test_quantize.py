"""Tests of the quantization of float networks, of its commands, and of integer operators."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.compiler.integer.digest import gas_of
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.cooked.cook import cook
from cml_engine.errors import RangeError
from cml_engine.ir.layout import C4U8
from cml_engine.tools.report.integer_info import IntegerInfo
from tests.fixtures.graphs import Net
from tests.fixtures.integer.calls import CALLS


def block():
    """Returns a float network of common layers.

    It has convs with normalization, a residual, pools, upsampling, a concat and a table activation.
    """
    net = Net(1, 4, 8, 8)
    x = "x"
    for i in range(3):
        y = net(f"conv({x}, random(4, 4, 3, 3), random(1, 4), padding={[(1, 1)] * 2})")
        y = net.batch_norm(y) if i == 1 else y
        y = net(f"prelu({y}, random(1, 4))") if i else net(f"relu({y})")
        x = net(f"add({x}, {y})") if i else y
    small = net(f"avg_pool({x}, size=[1, 1, 2, 2], stride=[1, 1, 2, 2])")
    up = net(f"multilinear_upsample({small}, factor=[2, 2])")
    x = net(f"concat({x}, mul({up}, constant(0.5)), axis=1)")
    x = net(f"deconv({x}, random(8, 2, 2, 2), random(1, 2), stride=[2, 2])")
    return net.graph(f"sigmoid(mul({x}, constant(0.1)))")


def products():
    """Returns a float network of matrix products, a mean, and a chain of functions."""
    net = Net(3, 6)
    y = net("linear(x, random(5, 6), random(1, 5))")
    near = net(f"floor({y})")
    part = net(f"abs(sub(sub({y}, {near}), constant(0.5)))")
    z = net(f"matmul({part}, random(5, 4))")
    z = net(f"mul({z}, {z})")
    w = net(f"matmul({z}, {part}, transposeA=True)")
    return net.graph(f"mean_reduce({w}, axes=[0])")


def samples_of(graph, count=8, seed=1):
    rng = np.random.default_rng(seed)
    return [
        {n: rng.normal(size=graph.facts[n].shape).astype(np.float32) for n in graph.inputs}
        for _ in range(count)
    ]


@pytest.mark.parametrize(("make", "least"), [(block, 0.004), (products, 0.01)])
def test_quantize_meets_the_requested_error(make, least, tmp_path):
    graph = make()
    samples = samples_of(graph)
    sixteens = []
    for expected in (0.05, least):
        made, report = cml.quantize(graph, samples, max_error=expected)
        assert report.ok and report.error <= expected
        sixteens.append(sum(node.bits == 16 for node in report.nodes))
        # and on inputs outside the samples
        fresh = samples_of(graph, 1, seed=7)[0]
        (got,) = cml.Session(made, "cpu").run(fresh).values()
        (exact,) = cml.Session(graph, "cpu").run(fresh).values()
        assert np.sqrt(np.mean((got - exact) ** 2)) < 2 * expected * np.sqrt(np.mean(exact**2))
    assert sixteens[0] < sixteens[1]
    cml.save(made, tmp_path / "net")
    again = cml.Session(cml.load(tmp_path / "net"), "cpu").run(fresh)
    np.testing.assert_array_equal(*again.values(), got)


def test_data_movement_has_no_rounding_point():
    """A pixel shuffle of reshapes has no rounding point and is fused to one operator."""
    net = Net(1, 4, 3, 5)
    y = net("conv(x, random(12, 4, 1, 1), random(1, 12))")
    y = net(f"reshape({y}, shape=[1, 3, 2, 2, 3, 5])")
    y = net(f"transpose({y}, axes=[0, 1, 4, 2, 5, 3])")
    y = net(f"reshape(reshape({y}, shape=[1, 3, 6, 5, 2]), shape=[1, 3, 6, 10])")
    graph = net.graph(f"relu({y})")
    made, report = cml.quantize(graph, samples_of(graph), sixteen=[])
    assert [node.title.split()[0] for node in report.nodes] == ["input", "conv"]
    optimized = optimize(made)
    operators = [node.op for node in optimized.nodes]
    assert operators == ["integer_words", "conv", "pixel_shuffle"]
    assert layouts_for(optimized)[optimized.nodes[1].outputs[0]] == C4U8  # after relu


def difference(largest):
    """Returns a network that adds the tanh of a map and of its small difference to another map.

    Its samples come with it; ``largest`` is the largest value of the maps. The larger it is, the
    fewer bits fit: the words of the difference are finer than those of the maps.
    """
    net = Net(1, 8, 8, 8)
    first, second = net.split("x", axis=1, ratios=[1, 1])
    small = net(f"tanh(sub({first}, {second}))")
    graph = net.graph(f"add(tanh({first}), {small})")
    samples = samples_of(graph)
    rng = np.random.default_rng(3)
    for sample in samples:
        first, second = np.split(sample["x"], 2, axis=1)
        second[:] = first + 1e-5 * rng.normal(size=first.shape)
        first[..., 0], second[..., 0] = largest, largest
    return graph, samples


SMALL_NETWORKS = (
    "max(x, constant(0.25))",
    "min(relu(x), constant(-1.0))",
    "sigmoid(max(relu(x), constant(0.5)))",
    "max(conv(x, 4, 1), random(1, 4, 1, 1))",
    "concat(x, random(1, 3, 8, 8, low=-5, high=5), axis=1)",
    "exp(sub(x, x))",
    "tanh(add(x, x))",
    "sigmoid(leaky_relu(leaky_relu(x, alpha=0.1), alpha=0.5))",
    "leaky_relu(add(x, x), alpha=0.5)",
    "div(constant(1.0), exp(x))",
    "tanh(div(constant(1.0), add(abs(x), constant(1.0))))",
)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("text", SMALL_NETWORKS)
def test_quantized_networks_can_run(text, bits, tmp_path):
    """The quantizer makes no network that the lowering refuses, and its error is as stated."""
    net = Net(1, 4, 8, 8)
    graph = net.graph(text)
    samples = samples_of(graph)
    how = {"bits": 16} if bits == 16 else {"sixteen": []}
    made, report = cml.quantize(graph, samples, max_error=0.02, **how)
    assert report.ok
    cml.save(made, tmp_path / "net")
    sessions = [cml.Session(g, "cpu") for g in (made, cml.load(tmp_path / "net"), graph)]
    runs = [[next(iter(s.run(sample).values())) for sample in samples] for s in sessions]
    np.testing.assert_array_equal(runs[0], runs[1])
    exact = np.array(runs[2], np.float64)
    error = np.sqrt(np.mean((runs[0] - exact) ** 2) / (np.mean(exact**2) or 1.0))
    assert error == pytest.approx(report.error, rel=1e-6, abs=1e-12)


def test_a_scale_may_be_a_power_of_two():
    """The words of pictures of bytes are the bytes: their scale is 1."""
    graph = block()
    rng = np.random.default_rng(1)
    samples = [{"x": rng.integers(0, 256, (1, 4, 8, 8), np.uint8)} for _ in range(8)]
    _, report = cml.quantize(graph, samples, sixteen=[])
    assert (report.nodes[0].scale, report.nodes[0].signed) == (1.0, False)


def test_a_constant_output_is_refused():
    net = Net(1, 4)
    graph = net.graph("relu(x)", "add(random(1, 4), random(1, 4))")
    with pytest.raises(cml.ModelError, match="is the same for all inputs.*leave it out"):
        cml.quantize(graph, samples_of(graph))


def test_quantize_uses_the_requested_bits():
    graph = block()
    samples = samples_of(graph)
    reports = [
        cml.quantize(graph, samples, **how)[1]
        for how in ({"sixteen": []}, {"sixteen": ["t1"]}, {"bits": 16})
    ]
    wide = [{node.name for node in report.nodes if node.bits == 16} for report in reports]
    assert wide[0] == set() and wide[1] == {"t1"} and len(wide[2]) == len(reports[2].nodes)
    assert reports[2].error < 0.002 < reports[0].error
    text = str(reports[1])
    assert "conv 't0', relu" in text and "error of the outputs" in text


def test_bits_that_do_not_fit_are_no_candidates():
    """The search for 16 bits leaves out those that do not fit, and fails only if none do."""
    graph, samples = difference(4.0)
    with pytest.raises(RangeError, match="make its scale larger"):
        cml.quantize(graph, samples, bits=16)
    made, report = cml.quantize(graph, samples, max_error=1e-3)
    bits = {node.title.split()[0]: node.bits for node in report.nodes}
    assert bits["sub"] == 8 and 16 in bits.values()
    assert report.ok and "Infinity" not in json.dumps(report.data)
    cml.Session(made, "cpu").run(samples[0])
    graph, samples = difference(1e4)
    with pytest.raises(RangeError, match="make its scale larger"):
        cml.quantize(graph, samples)


def test_scales_that_do_not_fit_are_no_candidates():
    """Values so small that only words of 8 bits have a scale for them."""
    graph, samples = Net(1, 4, 8, 8).graph("tanh(x)"), samples_times(3e-9)
    with pytest.raises(cml.InputError, match="words of 16 bits want a scale"):
        cml.quantize(graph, samples, bits=16)
    _, report = cml.quantize(graph, samples, max_error=1e-6)
    assert {node.bits for node in report.nodes} == {8} and not report.ok


def wrong_sample(value):
    samples = samples_of(block())
    samples[3]["x"][0, 1, 2, 3] = value
    return samples


def samples_times(factor):
    return [{"x": factor * sample["x"]} for sample in samples_of(block())]


REFUSED = {
    "few samples": (lambda: {"samples": samples_of(block(), 7)}, "7 samples: wanted at least 8"),
    "NaN": (lambda: {"samples": wrong_sample(np.nan)}, r"sample 3: 'x' has .*at \[0, 1, 2, 3\]"),
    "only zeros": (lambda: {"samples": samples_times(0)}, "input 'x' is 0 in all samples"),
    "huge": (lambda: {"samples": samples_times(1e20)}, r"'x' is up to \S+e\+20 in the samples"),
    "tiny": (lambda: {"samples": samples_times(1e-20)}, "'x' is up to .*e-20 in the samples"),
    "another shape": (lambda: {"samples": [{"x": np.zeros((1, 4, 8, 7))}] * 8}, r"8, 7\], wan"),
    "another name": (lambda: {"samples": [{"y": np.zeros(3)}] * 8}, "sample 0: wanted the inputs"),
    "no list": (lambda: {"samples": {"x": np.zeros(3)}}, "wanted a list"),
    "bits": (lambda: {"bits": 4}, "bits: wanted 8 or 16, got 4"),
    "no tensor": (lambda: {"sixteen": ["nowhere"]}, "'nowhere' is no tensor that is rounded"),
    "sixteen of 16": (lambda: {"bits": 16, "sixteen": ["t0"]}, "leave it out, or bits=16"),
    "an error": (lambda: {"max_error": -1.0}, "max_error: wanted a share of 1e-12 to 1,000"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused(case):
    given, message = REFUSED[case]
    graph = block()
    with pytest.raises(cml.InputError, match=message):
        cml.quantize(graph, **{"samples": samples_of(graph), **given()})


def test_integer_and_cooked_networks_are_not_quantized_again():
    net = Net(1, 4)
    graph = net.graph("add(x, x)")
    made, _ = cml.quantize(graph, samples_of(graph), sixteen=[])
    cooked = cml.load_cooked(cook(made, ["portable"], golden=False))
    for network, message in (
        (made, "an integer network already: run it"),
        (cooked, "is cooked"),
    ):
        with pytest.raises(cml.InputError, match=message):
            cml.quantize(network, samples_of(graph))
    with pytest.raises(cml.InputError, match="cooked, and its rounding points are no part"):
        IntegerInfo.of(cooked, points=True, gas=False)
    with pytest.raises(cml.InputError, match="cooked: gas is of the model itself"):
        IntegerInfo.of(cooked, points=False, gas=True)
    assert {plan.gas for plan in cooked.cooked_form.plans} == {gas_of(made)}


def test_gas_depends_only_on_the_graph(tmp_path):
    graph = block()
    gas = gas_of(graph)
    assert isinstance(gas, int) and gas > 2 * 3 * 8 * 8 * 4 * 4 * 9
    cml.save(graph, tmp_path / "net")
    assert gas_of(cml.load(tmp_path / "net", gas_limit=gas)) == gas
    with pytest.raises(cml.ModelError, match=rf"costs {gas:,} gas, wanted at most {gas - 1:,}"):
        cml.load(tmp_path / "net", gas_limit=gas - 1)


def test_commands(tmp_path, run_cml, refused):
    graph = block()
    cml.save(graph, tmp_path / "floats")
    samples = np.concatenate([s["x"] for s in samples_of(graph, 9)])
    np.savez(tmp_path / "samples.npz", x=samples)
    np.save(tmp_path / "x.npy", 100 * samples[:1])
    model, out = str(tmp_path / "floats"), str(tmp_path / "integer")
    given = f"x={tmp_path / 'samples.npz'}"
    assert "within 5 %" in run_cml(f"quantize {model} {out} -i {given} --max-error 0.05").out
    line = f"quantize {model} {out} --overwrite -i {given} --json --sixteen t1 --max-error 1e-9"
    said = run_cml(line, ends=1).out
    assert not json.loads(said)["ok"]
    digests = []
    for _ in range(2):
        printed = run_cml(f"run {out} -i x={tmp_path}/x.npy --backend cpu --digest").out
        assert "values were outside of its range" in printed
        digests.append(printed.splitlines()[-1])
    assert digests[0] == digests[1] and digests[0].startswith("sha256:")
    assert len(digests[0]) == len("sha256:") + 64
    printed = run_cml(f"info {out} --integer").out
    assert "conv 't0', relu" in printed and "int32" in printed and "float32" in printed
    assert f"{gas_of(cml.load(out)):,}" in run_cml(f"info {out} --gas").out
    printed = run_cml(f"run {model} -i x={tmp_path}/x.npy --backend cpu --digest").out
    assert "floats: another machine may compute another digest\nsha" in printed
    refused(f"info {model} --integer")
    assert "network of floats" in refused(f"validate {model} --integer")
    for line in (f"validate {out} --integer --passes", f"info {out} --gas --half"):
        assert line.split()[-1] in refused(line)


@pytest.mark.parametrize("family", CALLS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_bit_differs(family, seed):
    try:
        call = CALLS[family](np.random.default_rng(seed))
        session = cml.Session(call.graph, "cpu")
    except RangeError:
        return  # some scales are too fine for their operands
    words = call.words(session.run(call.inputs))
    np.testing.assert_array_equal(words, call.wanted)
