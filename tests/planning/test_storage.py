"""Tests of tensors stored in 16 bits, or in the fewest bits of integers: selection and size."""

import numpy as np
import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.compiler.planning.layouts import (
    half_of,
    layouts_for,
    rounded_weights,
)
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.errors import InputError
from cml_engine.gpu.memory.tensors import from_words, to_words
from cml_engine.ir.graph import Fact, Node
from cml_engine.ir.layout import (
    C4,
    C4H,
    C4I8,
    C4I16,
    C4U8,
    C4U16,
    HALF,
    STORED,
    WHOLE,
    to_half,
    whole_layout,
    words,
)
from cml_engine.ir.limits import Limits
from cml_engine.ops.conv.kernels.winograd import in_steps, transformed_filter
from cml_engine.runtime.node_check import (
    MeasuredErrors,
    StorageError,
    round_to_half,
    storage_errors,
)
from cml_engine.testing import full_attrs
from cml_engine.tools.report.validation import StorageReport
from tests.fixtures.graphs import Net, unet_block
from tests.fixtures.integer.networks import IntegerNet, line
from tests.fixtures.texts import operator_call


def convs(net, *channels, source="x"):
    for count in channels:
        source = net.conv(source, count)
    return source


def test_a_reader_of_32_bits_keeps_a_tensor_in_32_bits():
    net = Net(1, 3, 8, 8)
    first = convs(net, 8)
    share = net.conv(net(f"softmax({first}, axes=[2, 3])"), 8, 1)
    second = convs(net, 8, source=first)
    graph = net.graph(share, convs(net, 4, source=second))
    assert layouts_for(graph, "half") == {first: C4, "t1": C4, second: C4H}


def test_reductions_read_halves_and_write_32_bits():
    net = Net(1, 3, 8, 8)
    first = convs(net, 8)
    mean = net(f"mean_reduce({first}, axes=[2, 3])")
    graph = net.graph(net.conv(mean, 8, 1))
    assert layouts_for(graph, "half") == {first: C4H, mean: C4}


def test_tensors_joined_by_a_copy_have_one_storage():
    net = Net(1, 3, 8, 8)
    left, right = net.conv("x", 8), net.conv("x", 8)
    joined = net(f"concat({left}, {right}, axis=1)")
    last = convs(net, 4, source=joined)
    assert layouts_for(net.graph(last), "half") == dict.fromkeys((left, right, joined), C4H)
    share = net(f"softmax({right}, axes=[2, 3])")
    both = net.graph(last, net.conv(share, 4, 1))
    assert layouts_for(both, "half") == dict.fromkeys((left, right, joined, share), C4)


POOL = "border='ignore', padding=[(0, 0)] * 4"


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("relu(f[2, 8, 3, 4])", "each"),
        ("mul(f[2, 8, 3, 4], f[1, 8])", "each"),
        ("mul(f[2, 8, 3, 4], f[2, 1, 3, 4])", "each"),
        ("mul(f[2, 8, 3, 4], f[()])", "each"),
        # an operand per channel and row: its four channels are not adjacent
        ("mul(f[2, 8, 3, 4], f[1, 8, 3])", "none"),
        ("slice(f[1, 12, 4, 4], axes=[1], begin=[4], end=[8], stride=[])", "alike"),
        ("slice(f[1, 12, 4, 4], axes=[1], begin=[2], end=[6], stride=[])", "none"),
        # windows within one block of channels
        (f"max_pool(f[1, 8, 9, 9], size=[1, 1, 3, 3], {POOL})", "each"),
        (f"max_pool(f[1, 8, 9, 9], size=[1, 4, 1, 1], {POOL})", "none"),
        (f"max_pool(f[1, 8, 9, 9], size=[1, 1, 9, 9], {POOL})", "none"),
    ],
)
def test_operators_read_16_bits_in_blocks_of_four_channels(text, half):
    op, operands, attrs = operator_call(text)
    facts = {f"x{i}": fact for i, fact in enumerate(operands)}
    node = Node(op, tuple(facts), ("y",), full_attrs(op, attrs))
    (facts["y"],) = infer_node(node, facts)
    assert half_of(node, facts) == half


def test_weight_matrices_are_half_if_read_by_one_operator():
    net = Net(6, 8)
    weights, shared, short = net.random(12, 8), net.random(12, 12), net.random(8, 6)
    bias = net.random(1, 12)
    first = net(f"linear(x, {weights}, {bias})")
    second = net(f"matmul({first}, {shared}, transposeA=False, transposeB=False)")
    third = net(f"matmul({short}, {second}, transposeA=False, transposeB=False)")
    graph = net.graph(third, f"relu({shared})")
    assert layouts_for(graph, "half") == {weights: HALF}
    assert rounded_weights(graph.nodes[0], graph, {weights: HALF}) == (weights,)
    assert layouts_for(graph) == {}
    odd = Net(6, 6)
    product = odd("matmul(x, random(6, 4), transposeA=False, transposeB=False)")
    assert layouts_for(odd.graph(product), "half") == {}  # six terms are no vectors of four


def test_half_is_ieee_and_row_major():
    values = np.array([[1 + 2**-11, 65519.0], [65520.0, 2**-25]], np.float32).T
    got = to_half(values)
    assert got.flags.c_contiguous
    assert np.array_equal(got, np.array([[1, np.inf], [65504, 0]], np.float16))


def test_only_filters_of_half_inputs_are_half():
    net = Net(1, 3, 8, 8)
    graph = net.graph(convs(net, 8, 8))
    layouts = layouts_for(graph, "half")
    first, second = graph.nodes
    assert rounded_weights(first, graph, layouts) == (first.inputs[1],)
    assert rounded_weights(second, graph, layouts) == (second.inputs[1],)
    assert rounded_weights(second, graph, {}) == ()
    kinds = {
        name: array.dtype for name, (_, array) in lower(graph, Limits(), layouts).weights.items()
    }
    assert {str(kind) for name, kind in kinds.items() if "bias" not in name} == {"float16"}
    assert {str(kind) for name, kind in kinds.items() if "bias" in name} == {"float32"}


def test_a_winograd_filter_in_steps_is_right_to_half_a_step(rng):
    value = rng.standard_normal((10, 8, 9), np.float32)
    value[3] = 0
    filter = np.asarray(transformed_filter(value, 0, 1).array()).reshape(36, 2, 1, 8, 8)
    counts, step = in_steps(filter)
    assert counts.dtype == np.int16 and step.shape == (*filter.shape[:2], 8)
    back = counts * step[:, :, None, None, :]
    # half a step, plus the float rounding of up to 32767 steps
    assert (np.abs(back - filter) <= 0.505 * step[:, :, None, None, :]).all()
    assert np.abs(counts).max() == 32767
    assert not back[:, 0, :, :, 3].any()  # an all-zero channel causes no division by zero


def errors_of(graph, inputs):
    return list(storage_errors(graph, layouts_for(graph, "half"), inputs))


def test_reported_half_errors_equal_one_rounding():
    """The reported largest and RMS error of tensors stored in 16 bits are those of one rounding."""
    net = Net(1, 4, 8, 8)
    first = net("relu(x)")
    graph = net.graph(f"abs({first})")
    inputs = net.input()
    (relu, absolute) = storage_errors(graph, {first: C4H}, inputs)
    expected = np.maximum(inputs["x"], 0)
    error = (round_to_half(expected) - expected) / expected.max()
    for told in (relu, absolute):
        assert np.isclose(told.largest, np.abs(error).max())
        assert np.isclose(told.rms, np.sqrt(np.mean(error**2)))
    assert relu.largest > 0


def test_a_value_too_large_for_16_bits_is_named():
    net = Net(1, 4, 8, 8)
    far = net("mul(conv(x, 8), constant(1000000.0))")
    graph = net.graph(f"mean_reduce(conv({far}, 4), axes=[2, 3])")
    report = StorageReport.of(graph, errors_of(graph, net.input()))
    assert not report.ok
    assert "mul 't1'" in report.overflow
    assert "65504" in str(report)


def test_a_report_shows_the_worst_of_every_operator_and_the_outputs():
    net = unet_block()
    graph = optimize(net.graph())
    found = errors_of(graph, net.input())
    report = StorageReport.of(graph, found)
    assert report.ok and sum(row.count for row in report.operators) == len(found)
    assert max(row.largest for row in report.operators) == max(e.largest for e in found)
    assert [row.name for row in report.outputs] == list(graph.outputs)
    assert isinstance(found[0], StorageError) and f"{found[-1].rms:10.2e}" in str(report)
    assert "on the GPU" not in str(report)
    text = str(StorageReport.of(graph, found, MeasuredErrors(found[-1:], [], "a reason")))
    assert "on the GPU" in text and "not measured: a reason" in text
    assert "not known to NumPy" in str(StorageReport.of(graph, found[:1]))


def chain(*hows, weights=8):
    """Returns a graph of 1x1 convs of eight channels, one for each quantization in ``hows``.

    The filters have ``weights`` bits.
    """
    net, rng = IntegerNet(), np.random.default_rng(0)
    t = net.input("x", (1, 8, 6, 6), 0.25)
    zero = net.weight("zero", 0.0, None)
    for i, how in enumerate(hows):
        most = 127 if weights == 8 else 400
        w = net.weight(f"w{i}", rng.integers(-most, most + 1, (8, 8, 1, 1)), 0.01, weights)
        t = net.op("conv", t, w, zero, padding=[(0, 0)] * 2, to=line(0.5, **how))
    return net.graph(t)


@pytest.mark.parametrize("layout", WHOLE)
def test_packed_integers_round_trip(layout):
    ends = np.iinfo(STORED[layout])
    fact = Fact("scalar", (2, 5, 3, 2))
    given = (
        np.linspace(ends.min, ends.max, fact.size).round().astype(np.float32).reshape(fact.shape)
    )
    place = TensorPlace(Binding("x", "arena", 0, 4 * words(fact, layout)), fact, layout)
    stored = to_words(given, place)
    assert stored.nbytes == 4 * words(fact, layout) == 2 * 8 * 3 * 2 * ends.bits // 8
    np.testing.assert_array_equal(from_words(stored.tobytes(), place), given)
    assert whole_layout(ends.min, ends.max) == layout
    assert whole_layout(ends.min, ends.max + 1) != layout


def test_integer_maps_are_stored_in_the_fewest_bits():
    hows = [{}, {"signed": False}, {"bits": 16}, {"bits": 16, "signed": False}, {}]
    layouts = layouts_for(optimize(chain(*hows)))
    given, *made = layouts.values()
    assert given == C4I8  # packed in the arena; the host reads and writes plain floats
    assert made == [C4I8, C4U8, C4I16, C4U16]


@pytest.mark.parametrize(("weights", "share"), [(8, 4), (16, 2)])
def test_integer_filters_are_stored_in_the_fewest_bits(weights, share):
    graph = optimize(chain({}, weights=weights))
    plan = lower(graph, Limits(), layouts_for(graph))
    packed = {name: array for name, (_, array) in plan.weights.items() if name.startswith("w0")}
    assert [array.nbytes * share for array in packed.values()] == [4 * 8 * 8]


def test_parts_of_any_channels_are_joined_in_blocks():
    net, rng = IntegerNet(), np.random.default_rng(3)
    parts = [net.input(f"x{c}", (1, c, 4, 4), 0.25) for c in (1, 6, 2)]
    w = net.weight("w", rng.integers(-9, 9, (4, 9, 1, 1)), 0.01)
    t = net.op("concat", *parts, axis=1)
    y = net.op("conv", t, w, net.weight("b", 0.0, None), padding=[(0, 0)] * 2, to=line(0.5))
    graph = optimize(net.graph(y))
    layouts = layouts_for(graph)
    assert list(layouts.values()) == [C4I8] * 4
    plan = lower(graph, Limits(storage_offset_alignment=16), layouts)
    assert [step.op for step in plan.steps] == ["concat"] * 3 + ["conv"]  # no part is a view
    assert plan.memory.peak == 4 * 16 * (1 + 2 + 1) + 4 * 16 * 3


def test_a_transpose_that_rounds_is_not_fused_to_a_pixel_shuffle():
    net = IntegerNet()
    t = net.op("reshape", net.input("x", (1, 16, 6, 6), 0.25), shape=[1, 4, 2, 2, 6, 6])
    t = net.op("transpose", t, axes=[0, 1, 4, 2, 5, 3], to=line(0.125))
    graph = optimize(net.graph(net.op("reshape", t, shape=[1, 4, 12, 12])))
    assert "pixel_shuffle" not in {node.op for node in graph.nodes}


def test_integer_tensors_have_no_storage_override():
    graph = optimize(chain({}, {}))
    with pytest.raises(InputError, match="'t0' is of an integer network"):
        layouts_for(graph, overrides={"t0": "half"})
