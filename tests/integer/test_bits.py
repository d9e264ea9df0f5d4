"""Tests that integer networks on the GPU are bit-identical to Python's integers.

This holds for every kernel variant and for any partition of the work.
"""

import contextlib
import re
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.errors import InputError, RangeError
from cml_engine.integer import run_digest
from cml_engine.ir.layout import C4I8
from cml_engine.ops.declaration.choice import TunedChoice, VariantTable
from cml_engine.runtime import node_check
from cml_engine.runtime.node_check import check_bits
from cml_engine.runtime.node_check import random_words as random_inputs
from tests.fixtures.integer.calls import CALLS, STEP
from tests.fixtures.integer.networks import IntegerNet, line, random_words
from tests.fixtures.operators import check_graph
from tests.integer.test_quantize import block, samples_of

pytestmark = pytest.mark.gpu


def proven(family, count):
    """Returns up to ``count`` random networks of a family whose ranges can be proven.

    Each comes with its optimized graph.
    """
    networks = []
    for seed in range(20):
        with contextlib.suppress(RangeError):
            call = CALLS[family](np.random.default_rng(seed))
            networks.append((call, optimize(call.graph)))
        if len(networks) == count:
            break
    return networks


@pytest.mark.parametrize("family", CALLS)
def test_no_bit_differs(family, gpu):
    # a move is a network of one operator
    for call, graph in proven(family, 8 if family == "move" else 2):
        got = call.words(cml.Session(call.graph, gpu).run(call.inputs))
        assert_array_equal(got, call.wanted)
        check_graph(graph, call.inputs, gpu)  # with guard bands and random partitions


def forced(graph, inputs, gpu, kernel):
    """Runs a network with ``kernel`` wherever possible; returns its outputs and the forced
    choices."""
    choices = cml.Session(graph, gpu, deferred=True).plan.choices
    picks = {c.key: TunedChoice(o) for c in choices for o in c.options if o.startswith(kernel)}
    options = PlanOptions(variants=VariantTable(picks), guard=256)
    return cml.Session(graph, gpu, cml.CompileOptions(plan=options)).run(inputs), picks


@pytest.mark.parametrize("signed", [True, False])
def test_products_of_bytes_at_their_extremes(signed, gpu):
    """Convolutions of extreme inputs and weights equal the CPU's, at the border and in groups too.

    The channels fill no block. The first conv's sums fit into floats; the second one's do not.
    """
    rng = np.random.default_rng(signed)
    net, ends = IntegerNet(), [-127, 127] if signed else [0, 255]
    x = net.input("x", (1, 10, 5, 7), STEP, signed=signed)
    zero = net.weight("zero", 0.0, None)
    narrow = net.weight("narrow", rng.choice([-127, 127], (6, 5, 2, 3)), 0.0001)
    how = {"padding": [(1, 0), (1, 1)], "stride": [2, 1], "groups": 2}
    y = net.op("conv", x, narrow, zero, to=line(STEP, signed=signed), **how)
    wide = net.weight("wide", rng.choice([-32767, 32767], (5, 6, 1, 3)), 0.00001, 16)
    y = net.op("conv", y, wide, zero, padding=[(0, 0), (1, 1)], to=line(STEP, 16))
    graph = net.graph(y)
    words = rng.choice(ends, (1, 10, 5, 7))
    inputs = {"x": (words * STEP).astype(np.float32)}
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    assert len(np.unique(expected)) > 9
    got, picks = forced(graph, inputs, gpu, "dot4 tile 4x4")
    assert_array_equal(*got.values(), expected)
    assert len(picks) == 1


#: filters and attributes of convolutions of 32 channels, or 64
WINDOWS = {
    "border": ((10, 32, 3, 2), {"padding": [(1, 1), (0, 1)], "stride": [2, 1]}),
    "inside": ((10, 32, 2, 3), {"padding": [(0, 0), (0, 0)], "dilation": [2, 1]}),
    "groups": ((8, 16, 3, 3), {"padding": [(1, 1), (1, 1)], "groups": 2}),
    "1x1": ((10, 64, 1, 1), {"padding": [(0, 0), (0, 0)]}),
}
#: tiles of windows of bytes, and of filters of 16 bits
TILES = (
    "dot4 window 4x1 by 64",
    "dot4 window 4x1 by 64 in 2 parts",
    "window 4x1 by 64 in 2 parts",
)


@pytest.mark.parametrize(
    ("window", "signed", "tile"),
    [
        *product(WINDOWS, (True, False), TILES),
        ("border", False, "dot4 window 8x2 by 64"),
        ("1x1", False, "dot4 window 16x1 by 64"),
        ("1x1", True, "window 8x2 by 64"),
    ],
)
def test_windows_of_bytes_at_their_extremes(window, signed, tile, gpu, set_limits):
    set_limits(software=False)  # a software driver has the smallest tile alone
    rng = np.random.default_rng(signed)
    shape, attrs = WINDOWS[window]
    bits = 8 if tile.startswith("dot4") else 16
    largest = 2 ** (bits - 1) - 1
    net = IntegerNet()
    x = net.input("x", (2, 4, 7, 9), STEP, signed=signed)
    zero = net.weight("zero", 0.0, None)
    channels = shape[1] * attrs.get("groups", 1)
    first = net.weight("first", rng.integers(-127, 128, (channels, 4, 1, 1)), 0.001)
    y = net.op("conv", x, first, zero, to=line(STEP, signed=signed))
    filter = net.weight("filter", rng.choice([-largest, largest], shape), 0.1 / largest, bits)
    y = net.op("conv", y, filter, zero, to=line(STEP, 16), **attrs)
    graph = net.graph(y)
    words = random_words(rng, (2, 4, 7, 9), signed=signed)
    inputs = {"x": (words * STEP).astype(np.float32)}
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    assert len(np.unique(expected)) > 9
    got, picks = forced(graph, inputs, gpu, tile)
    assert any(f">{shape[0]}" in key for key in picks)
    assert_array_equal(*got.values(), expected)


@pytest.mark.parametrize("op", ["conv", "deconv"])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("stride", [[1, 1], [2, 1], [3, 2]])
def test_products_of_bytes_where_a_result_reads_some_taps(op, signed, stride, gpu):
    """A strided deconv of unsigned inputs has no kernel of bytes: its correction sums all taps."""
    rng = np.random.default_rng(signed)
    net = IntegerNet()
    x = net.input("x", (1, 6, 5, 7), STEP, signed=signed)
    weights = rng.integers(-127, 128, (6, 6, 3, 2))
    filter = net.weight("filter", weights, 0.0001)
    y = net.op(op, x, filter, net.weight("zero", 0.0, None), to=line(STEP), stride=stride)
    graph = net.graph(y)
    inputs = {"x": (random_words(rng, (1, 6, 5, 7), signed=signed) * STEP).astype(np.float32)}
    session = cml.Session(graph, gpu)
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    assert_array_equal(*session.run(inputs).values(), expected)
    got, picks = forced(graph, inputs, gpu, "dot4 tile 4x4")
    assert_array_equal(*got.values(), expected)
    assert bool(picks) == (op == "conv" or signed or stride == [1, 1])


def net_of(bits):
    """Returns a network of two 3x3 convs with prelu, and inputs for it.

    The maps have ``bits`` bits and are stored in blocks.
    """
    rng = np.random.default_rng(bits)
    net = IntegerNet()
    x = net.input("x", (1, 16, 12, 12), STEP, bits=bits)
    zero = net.weight("zero", 0.0, None)
    for i in range(2):
        w = net.weight(f"w{i}", rng.integers(-127, 128, (16, 16, 3, 3)), 0.001)
        t = net.op("conv", x, w, zero, padding=[(1, 1)] * 2)
        slopes = net.weight(f"s{i}", rng.uniform(0, 0.5, (1, 16)), None)
        x = net.op("prelu", t, slopes, to=line(STEP, bits))
    words = random_words(rng, (1, 16, 12, 12), bits=bits)
    return net.graph(x), {"x": (words * STEP).astype(np.float32)}


@pytest.mark.parametrize(
    ("bits", "step"), [(8, 9), *(pytest.param(b, 1, marks=pytest.mark.long) for b in (8, 16))]
)
def test_every_variant_gives_the_same_bits(bits, step, gpu):
    """Kernel variants give the CPU's bits: every ninth in the suite, all in the long suite."""
    graph, inputs = net_of(bits)
    session = cml.Session(graph, gpu)
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    assert_array_equal(*session.run(inputs).values(), expected)
    choices = session.plan.choices
    options = {(choice.key, option) for choice in choices for option in choice.options}
    assert len(options) > 2 and not any("winograd" in option for _, option in options)
    for key, option in sorted(options)[::step]:
        plan = PlanOptions(variants=VariantTable.forcing(key, option))
        forced = cml.Session(graph, gpu, cml.CompileOptions(plan=plan))
        assert option in {choice.chosen for choice in forced.plan.choices}
        assert_array_equal(*forced.run(inputs).values(), expected, err_msg=option)


def test_rounding_is_done_by_the_conv(gpu):
    """Requantization is an epilogue of the conv, whose maps are stored in packed blocks."""
    graph, _ = net_of(8)
    plan = cml.Session(graph, gpu).plan
    fused = {step.title: step.fused for step in plan.steps if step.op == "conv"}
    assert [ops[0] for ops in fused.values()] == ["requantize_signed"] * 2
    assert {step.op for step in plan.steps} == {"conv"}
    assert set(plan.layouts.values()) == {C4I8}


def test_half_storage_is_refused(gpu):
    graph, _ = net_of(8)
    with pytest.raises(InputError, match="integer network"):
        cml.Session(graph, gpu, cml.CompileOptions(storage="half"))


# --- whole networks: their digests, and where a difference begins

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
    digests = {run_digest(graph, cml.Session(graph, b).run(inputs)) for b in ("cpu", gpu)}
    assert digests == {DIGESTS[bits]}


def test_no_bit_of_a_quantized_network_differs(network, gpu):
    check = check_bits(network, gpu, random_inputs(network, 5))
    assert check.ok and check.tensors > 8
    assert "no bit differs" in str(check)


def test_integer_check_names_the_first_different_node(network, gpu, monkeypatch):
    """If NumPy uses another multiplier, the check names the node where the results first differ."""
    real = node_check.CpuProgram

    def changed(graph):
        name = next(n for n in graph.constants if "multiplier" in n)
        constants = {**graph.constants, name: graph.constants[name] + 64 * 99}
        return real(graph.with_(constants=constants))

    monkeypatch.setattr(node_check, "CpuProgram", changed)
    check = check_bits(network, gpu, random_inputs(network, 5))
    assert not check.ok and re.match(r"conv 't\d+' differs first: \d+ of 256 ", check.first)


def test_every_intermediate_value_is_a_whole_number(network):
    """Every intermediate value is a whole number that a float32 holds exactly."""
    graph = optimize(network)
    values = {}
    run = node_check.CpuProgram(graph).run
    run(random_inputs(network, 1), lambda n, r: values.update(zip(n.outputs, r, strict=True)))
    for name, value in values.items():
        if name not in graph.outputs:
            assert np.array_equal(value, np.rint(value)) and np.abs(value).max() < 2**24, name
