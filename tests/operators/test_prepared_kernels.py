"""Tests of the faster functions that CPU sessions call: prepared convolutions, results in place.

They agree with the operators' definitions for every memory order of the inputs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops import register
from cml_engine.ops.conv import cpu_channels_last, cpu_winograd
from cml_engine.ops.conv.cases import CONV_CASES, conv_case
from cml_engine.ops.conv.cpu import conv_cpu
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import formula_of, load_families, lookup, registered
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import OpSpec, same_as
from cml_engine.ops.elementwise.elementwise import erf, in_place
from cml_engine.ops.elementwise.in_place import apply_in_place
from cml_engine.testing import case_graph
from tests.fixtures.graphs import BLOCKS, Net
from tests.fixtures.texts import operator_call
from tests.proofs.fuzz import evaluate
from tests.reference.formulas import FORMULAS

load_families()
PREPARED = [name for name, spec in registered().items() if spec.prepare]


def channels_last(x):
    """Returns an array of the same shape and values with dimension 1 last in memory."""
    if x.ndim < 3:
        return x
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    return np.moveaxis(last, -1, 1)


def orders(arrays):
    """Yields the list of arrays in several memory orders with equal values.

    The first array is as it is, channels last, and with gaps; then all arrays are channels last.
    """
    first, *others = arrays
    yield [first, *others]
    yield [channels_last(first), *others]
    if first.ndim >= 3:
        wide = np.zeros((*first.shape[:-1], first.shape[-1] + 3), first.dtype)
        wide[..., : first.shape[-1]] = first
        yield [channels_last(wide)[..., : first.shape[-1]], *others]
    if others and others[0].shape == first.shape:
        yield [channels_last(a) for a in arrays]


def agree(function, attrs, arrays, wanted, rtol, atol, note):
    """Asserts that a prepared function gives the expected result for all memory orders."""
    for given in orders(arrays):
        got = function(attrs, *given)
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        assert_allclose(got, wanted, rtol, atol, err_msg=note)


@pytest.mark.parametrize("op", PREPARED)
def test_every_case_in_every_order_of_memory(op):
    spec, scratch, compared = lookup(op), Scratch(), 0
    for case in spec.cases:
        graph, inputs = case_graph(op, case, constants=True)
        (node,) = graph.nodes
        values = {**graph.constants, **inputs}
        arrays = [values[name] for name in node.inputs]
        facts = [graph.facts[name] for name in node.inputs]
        constants = [graph.constants.get(name) for name in node.inputs]
        function = spec.prepare(node.attrs, facts, constants, scratch)
        if function is None:
            continue
        with np.errstate(all="ignore"):
            expected, bound = spec.cpu(node.attrs, *arrays), spec.allowed_error
            agree(function, node.attrs, arrays, expected, bound.rtol, bound.atol, case.note)
        compared += 1
    assert compared > 2


def by(way, case, rng):
    """Asserts that the prepared function ``way`` agrees with conv for all memory orders."""
    arrays = [
        g if isinstance(g, np.ndarray) else rng.uniform(-1, 1, g).astype(np.float32)
        for g in case.inputs
    ]
    attrs = Attrs(case.attrs)
    expected = conv_cpu(attrs, *arrays)
    function = way(shape_of(case), arrays[1], Scratch())
    agree(function, attrs, arrays, expected, 0, 5e-6 * np.abs(expected).max(initial=1), str(case))


def shape_of(case):
    facts = [Fact("scalar", np.shape(a) if isinstance(a, np.ndarray) else a) for a in case.inputs]
    return conv_shape(Attrs(case.attrs), *facts)


def test_windows_of_every_shape(rng):
    cases = [c for c in CONV_CASES if shape_of(c).groups == 1 and 0 not in c.inputs[0]]
    assert len(cases) > 20
    for case in cases:
        by(cpu_channels_last.Windows, case, rng)


def random_depthwise(rng, border):
    count = int(rng.integers(1, 4))
    channels, batch = (int(n) for n in rng.integers(1, (9, 3)))
    extents, kernel, stride, dilation = (
        [int(n) for n in rng.integers(1, most, count)] for most in (13, 5, 4, 3)
    )
    padding = [tuple(int(n) for n in rng.integers(-1, 4, 2)) for _ in range(count)]
    return conv_case(
        (batch, channels, *extents), (channels, 1, *kernel), groups=channels, border=border,
        stride=stride, dilation=dilation, padding=padding,
    )  # fmt: skip


def random_three_by_three(rng, border):
    padding = [tuple(rng.integers(-2, 5, 2).tolist()) for _ in range(2)]
    shape = (*rng.integers(1, 4, 2).tolist(), *rng.integers(1, 15, 2).tolist())
    filter = (int(rng.integers(1, 5)), shape[1], 3, 3)
    return conv_case(shape, filter, padding=padding, border=border)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect-even"])
@pytest.mark.parametrize(
    ("way", "drawn"),
    [(cpu_channels_last.Depthwise, random_depthwise),
     (cpu_winograd.Winograd, random_three_by_three)],
)  # fmt: skip
def test_random_windows(rng, way, drawn, border):
    tried = 0
    for _ in range(60):
        case = drawn(rng, border)
        try:
            shape_of(case)
        except ShapeError:
            continue
        by(way, case, rng)
        tried += 1
    assert tried > 20


SAME = "padding=[(1, 1), (1, 1)]"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("Depthwise", "conv(f[1, 16, 9, 9], f[16, 1, 3, 3], groups=16)"),
        ("partial", "conv(f[1, 16, 9, 9], f[32, 1, 3, 3], groups=16)"),
        # a filter of 16 MB
        ("partial", "conv(f[1, 512, 9, 900], f[512, 1, 3, 3], groups=512)"),
        ("Windows", "conv(f[1, 16, 9, 9], f[24, 16, 1, 1])"),
        ("Windows", "conv(f[1, 3, 9, 9], f[24, 3, 3, 3])"),
        ("partial", "conv(f[1, 1, 9, 9], f[24, 1, 3, 3])"),
        ("partial", "conv(f[1, 16, 0, 9], f[24, 16, 1, 1])"),
        ("Winograd", f"conv(f[1, 64, 64, 64], f[64, 64, 3, 3], {SAME})"),
        ("Windows", f"conv(f[1, 3, 64, 64], f[64, 3, 3, 3], {SAME})"),
        ("Windows", f"conv(f[1, 64, 2, 2], f[64, 64, 3, 3], {SAME})"),
        ("Windows", f"conv(f[1, 64, 64, 64], f[64, 64, 3, 3], {SAME}, stride=[2, 2])"),
        ("Windows", f"conv(f[1, 64, 64, 64], f[64, 64, 3, 3], {SAME}, dilation=[2, 1])"),
        ("partial", f"conv(f[1, 64, 64, 64], f[64, 32, 3, 3], {SAME}, groups=2)"),
        ("Windows", "conv(f[1, 64, 64, 64], f[64, 64, 3, 1], padding=[(1, 1), (0, 0)])"),
        # a row of tiles of 600 MB
        ("Windows", f"conv(f[1, 2048, 4, 4096], f[2048, 2048, 3, 3], {SAME})"),
    ],
)
def test_the_rules_choose_the_convolution_kernel(wanted, text):
    assert chosen(text) == wanted


def chosen(text):
    """Returns the name of the class that computes a convolution."""
    _, (x, filter), attrs = operator_call(text)
    weights = np.broadcast_to(np.float32(1), filter.shape)
    facts = [x, filter, Fact("scalar", (1, filter.shape[0]))]
    attrs = Attrs(conv_case(x.shape, filter.shape, **attrs).attrs)
    way = cpu_channels_last.prepare_conv(attrs, facts, [None, weights, None], Scratch())
    return type(way).__name__


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize("block", ["mobilenet", "unet"])
def test_results_of_earlier_runs_stay_valid(block):
    """The results of earlier runs stay right after later runs, so they share no reused memory."""
    net = BLOCKS[block](48)
    graph = net.graph(net.nodes[-1].outputs[0], net.nodes[2].outputs[0])
    session = cml.Session(graph, "cpu")
    given = [net.input() for _ in range(3)]
    results = [session.run(inputs) for inputs in given]
    for inputs, result in zip(given, results, strict=True):
        for name, expected in evaluate(graph, inputs)[0].items():
            assert_allclose(result[name], expected, rtol=1e-4, atol=1e-4)


def test_results_last_as_long_as_a_view_of_them():
    scratch = Scratch()
    held = scratch.result(8, 1024)
    view = held.transpose(1, 0)[5:]
    address = held.__array_interface__["data"][0]
    del held
    assert not np.may_share_memory(scratch.result(8, 1024), view)
    del view
    again = scratch.result(4, 2000)
    assert again.__array_interface__["data"][0] == address, "what nobody holds is used again"


@pytest.mark.parametrize(("tiles", "parts"), [(1, 35), (20, 10), (70, 3)])
def test_winograd_in_parts_equals_the_whole(rng, monkeypatch, tiles, parts):
    """Winograd's result is the same in parts of one or more rows of tiles, or of some images."""
    for name, value in (("_MOST", 8 * tiles), ("_LEAST", 0), ("_FEWEST_TILES", 1)):
        monkeypatch.setattr(cpu_winograd, name, value)
    computed, store = [], cpu_winograd.Winograd._store
    monkeypatch.setattr(
        cpu_winograd.Winograd, "_store", lambda *a: computed.append(a[1]) or store(*a)
    )
    by(cpu_winograd.Winograd, conv_case((5, 8, 25, 18), (6, 8, 3, 3), padding=[(1, 1)] * 2), rng)
    assert len(set(map(str, computed))) == parts


def conv_chain():
    """Returns a net x -> conv -> prelu -> conv, large enough for Winograd's tiles.

    It comes with the names of the results of prelu and of the last conv.
    """
    net = Net(2, 48, 17, 19)
    p = net("prelu(conv(x, 48), random(1, 48))")
    return net, p, net.conv(p, 48)


def near(got, wanted):
    assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_session_agrees_with_the_definitions(monkeypatch):
    calls = []
    tiles = cpu_winograd.Winograd.__call__
    monkeypatch.setattr(
        cpu_winograd.Winograd, "__call__", lambda *a: calls.append(a[2].shape) or tiles(*a)
    )
    net, p, d = conv_chain()
    graph, inputs = net.graph(f"relu(add({d}, {p}))"), net.input()
    session = cml.Session(graph, "cpu")
    (got,), (again,) = (session.run(inputs).values() for _ in range(2))
    assert len(calls) == 4
    assert got.flags.c_contiguous
    assert_array_equal(got, again)
    near(got, *evaluate(graph, inputs)[0].values())


def test_each_thread_has_scratch_of_its_own():
    scratch = Scratch()
    mine = scratch.take("a", 4)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(scratch.take, "a", 4).result()
    assert not np.shares_memory(mine, other)


def test_two_threads_may_run_one_session():
    net, _, d = conv_chain()
    session = cml.Session(net.graph(d), "cpu")
    inputs = [net.input() for _ in range(8)]
    alone = [session.run(given)[d] for given in inputs]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda given: session.run(given)[d], inputs))
    for one, other in zip(alone, together, strict=True):
        near(other, one)


def test_updated_filter_is_not_prepared():
    net, _, d = conv_chain()
    filter = net.nodes[0].inputs[1]
    twice = net(f"add({filter}, {filter})")
    graph, inputs = net.graph(d).with_(updates=((filter, twice),)), net.input()
    program = CpuProgram(graph)
    first, second = (program.run(inputs)[d] for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    doubled = graph.with_(constants={**graph.constants, filter: graph.constants[filter] * 2})
    near(second, CpuProgram(doubled).run(inputs)[d])


@pytest.mark.usefixtures("own_operators")
def test_game_function_gets_contiguous_arrays():
    seen = []

    def look(attrs, x):
        seen.append(x.flags.c_contiguous)
        return x.copy()

    signature = "fragment look_at_it(x: tensor<scalar>) -> (y: tensor<scalar>);"
    register(OpSpec("look_at_it", infer=same_as(0), cpu=look, signature=signature))
    net, _, d = conv_chain()
    CpuProgram(net.graph(f"look_at_it({d})")).run(net.input())
    assert seen == [True]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e37])
def test_nonfinite_inputs_affect_only_their_windows(rng, odd):
    """A NaN, infinite or huge input makes only those results non-finite that the formula does.

    A tile would spread it over sixteen results, and a transform may overflow where a sum does not.
    """
    case = conv_case((1, 8, 13, 14), (8, 8, 3, 3), padding=[(1, 1), (1, 1)])
    x, filter, bias = (rng.uniform(-1, 1, s).astype(np.float32) for s in (*case.inputs[:2], (1, 8)))
    x[0, 3, 6, 7] = odd
    attrs = Attrs(case.attrs)
    got = cpu_winograd.Winograd(shape_of(case), filter, Scratch())(attrs, x, filter, bias)
    with np.errstate(invalid="ignore"):
        expected = FORMULAS["conv"](x, filter, bias, **attrs)[0].astype(np.float32)
    assert (~np.isfinite(expected)).sum() == (9 * 8 if abs(odd) > 1e38 or odd != odd else 0)
    assert_array_equal(np.isnan(got), np.isnan(expected))
    assert_array_equal(np.isinf(got), np.isinf(expected))
    far = np.ones((13, 14), bool)
    far[5:8, 6:9] = False
    assert_allclose(got[:, :, far], expected[:, :, far], rtol=0, atol=2e-5)


@pytest.mark.parametrize("sum_of_point", [1e36, -1e36])
def test_overflow_in_either_direction_is_not_stored(sum_of_point):
    case = conv_case((1, 8, 8, 8), (8, 8, 3, 3), padding=[(1, 1), (1, 1)])
    winograd = cpu_winograd.Winograd(shape_of(case), np.zeros((8, 8, 3, 3)), Scratch())
    sums, out = np.zeros((36, 4, 8), np.float32), np.zeros((1, 8, 8, 8), np.float32)
    sums[7] = sum_of_point
    with np.errstate(over="ignore"):
        assert not winograd._store(winograd._parts[0], sums, np.ones(8, np.float32), out)
    assert not out.any()


# ---------------------------------------------------------------- in place

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 1e-45, -1e-45, 3e38, -3e38, 0.3], np.float32
).reshape(1, 1, 12)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "relu()",
        *(f"leaky_relu(alpha={alpha})" for alpha in (0.0, 0.1, 1.0, 2.0, -0.5, np.inf, np.nan)),
        "prelu([[0.1, 0.9, 1.0]])",
        "prelu([[0.0, 2.5, -1.0]])",
        "prelu(0.25)",
        "prelu([[inf, 1.0, nan]])",
        "clamp(0.0, 1.0)",
        "clamp(nan, 6.0)",
        "add([[[inf], [0.5], [nan]]])",
    ],
)
def test_in_place_elementwise_equals_the_definition(text):
    op, others, attrs = operator_call(text)
    x = np.tile(SPECIAL.reshape(1, 1, 12), (2, 3, 1))
    operands = [np.array(other, np.float32) for other in others]
    with np.errstate(all="ignore"):
        expected = lookup(op).cpu(Attrs(attrs), x, *operands)
        done = apply_in_place(formula_of(op), Attrs(attrs), x, operands)
    finite = np.isfinite(list(attrs.values())).all() and all(np.isfinite(o).all() for o in operands)
    assert done or not finite
    if done:
        assert_array_equal(x, expected)


@pytest.mark.parametrize("slopes", [(1, 7), (1, 7, 1, 1), (), (2, 7, 30, 40), (1, 1, 30)])
@pytest.mark.parametrize("high", [1.0, 2.0])
def test_prelu_in_blocks(rng, monkeypatch, slopes, high):
    monkeypatch.setattr(in_place, "_BLOCK", 1000)
    monkeypatch.setattr(in_place, "_ZEROS", np.zeros(1000, np.float32))
    slope = rng.uniform(-1, high, slopes).astype(np.float32)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2)):
        shape = np.array((2, 7, 30, 40))
        laid = [int(shape[order.index(axis)]) for axis in range(4)]
        x = rng.uniform(-1, 1, laid).astype(np.float32).transpose(order)
        expected = lookup("prelu").cpu(Attrs({}), x, slope)
        assert apply_in_place(formula_of("prelu"), Attrs({}), x, [slope])
        assert_array_equal(x, expected)


def test_in_place_requires_equal_shape_and_type():
    x = np.ones((1, 3, 1), np.float32)
    for other in (np.ones((1, 3, 2), np.float32), np.ones((1, 3, 1, 1), np.float32),
                  np.ones((1, 3, 1), np.float64)):  # fmt: skip
        assert not apply_in_place(formula_of("add"), Attrs({}), x, [other])
    assert not apply_in_place(formula_of("sigmoid"), Attrs({}), x, [])
    assert (x == 1).all()


def test_a_large_image_is_done_in_stretches(rng):
    x = rng.standard_normal((1, 16, 256, 40), np.float32)
    filter = rng.standard_normal((4, 16, 3, 3), np.float32)
    attrs = Attrs(conv_case(x.shape, filter.shape, padding=[(0, 0), (0, 0)]).attrs)
    zero = np.zeros((), np.float32)
    whole = conv_cpu(attrs, x, filter, zero)
    parts = [conv_cpu(attrs, x[:, :, i : i + 18], filter, zero) for i in (0, 100, 238)]
    for i, part in zip((0, 100, 238), parts, strict=True):
        assert_allclose(whole[:, :, i : i + 16], part, rtol=1e-5, atol=1e-4)


def test_erf_of_large_arrays_equals_erf_of_elements(rng):
    """``erf`` of a large array equals ``erf`` of its elements, in any memory order."""
    large = rng.standard_normal((70, 300), np.float32)
    for x in (large, large.T, large[:0], large[0, 0]):
        expected = [erf(value) for value in np.reshape(x, -1)[-300:]]
        got = erf(x)
        assert got.shape == x.shape
        np.testing.assert_array_equal(got.reshape(-1)[-300:], np.reshape(expected, -1))
