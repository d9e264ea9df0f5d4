"""Tests that NaN, infinities, zeros and range ends give the same results on both backends.

Operators run alone, between other operators of one kernel, and after a conv or a product
(docs/design/nnef.md, "Special values").
"""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.ir.graph import Attrs, Graph, Node
from cml_engine.ops.declaration.spec import Case
from cml_engine.ops.elementwise.elementwise_op import ELEMENTWISE
from cml_engine.testing import case_graph
from tests.fixtures.graphs import Net
from tests.fixtures.operators import check_on_gpu

pytestmark = pytest.mark.gpu

VALUES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 2.5, -2.5, 0.49999997, 88.5,
     -88.5, -104, 1e-20, 1e20, -1e20, 3.4e38, -3.4e38, 8191, -8193, 123456.79, 1e6, 8388609, 1e9,
     -1e12, 2.5e30],
    np.float32,
)  # fmt: skip
FEW = VALUES[[0, 1, 2, 3, 4, 5, 6]]
ATTRS = {"alpha": 0.5, "lambda": 2.0, "epsilon": 1e-3}
#: operators that may return either of two zeros
ANY_ZERO = {"min", "max", "relu", "clamp"}
#: operators that are most likely to confuse NaN with infinity or to lose a sign
BETWEEN = (
    "min", "max", "clamp", "relu", "leaky_relu", "sign", "round", "sigmoid", "tanh", "pow", "sqrt",
    "rcp", "log", "sin", "softplus", "elu",
)  # fmt: skip
OPERATORS = [
    name
    for name, spec in ELEMENTWISE.items()
    if set(spec.formula.types) <= {"scalar", "?"} and spec.formula.arity < 4 and not spec.custom
]


def operands(count):
    """Returns ``count`` flat arrays that together hold every combination of special values.

    For three operands only a few values are combined.
    """
    values = VALUES if count < 3 else FEW
    return [axis.ravel().copy() for axis in np.meshgrid(*[values] * count, indexing="ij")]


def attrs_of(op):
    return {name: ATTRS[name] for name in ELEMENTWISE[op].formula.attrs}


def graph_of(op, arrays):
    return case_graph(op, Case(tuple(arrays), attrs_of(op)))


def agree(op, got, expected, arrays, zeros=True):
    """Asserts that results have the same special values and the same numbers up to the tolerance.

    The signs of zeros must agree too, unless ``zeros`` is False or the operator allows any.
    """
    assert got.dtype == expected.dtype
    if got.dtype != np.float32:
        wrong = got != expected
    else:
        tolerance = ELEMENTWISE[op].allowed_error
        a, b = got.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= tolerance.atol + tolerance.rtol * np.abs(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(a) & np.isfinite(b) & near)
        zero = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        wrong = ~same | (zero if zeros and op not in ANY_ZERO else False)
    at = np.flatnonzero(wrong)
    differences = [
        (*(float(x[i]) for x in arrays), float(got[i]), float(expected[i])) for i in at[:4]
    ]
    assert not at.size, f"{op}: {at.size} differ, (operands, got, wanted): {differences}"


def surrounded(graph, inputs_by_name):
    """Returns a graph with the operator between two products by 1, and its inputs.

    The factor 1 is an input, so that no compiler removes the products.
    """
    node, fact = graph.nodes[0], graph.facts["x0"]
    nodes = (
        Node("mul", ("x0", "one"), ("before",), Attrs()),
        Node(node.op, ("before", *node.inputs[1:]), ("after",), node.attrs),
        Node("mul", ("after", "one"), ("y0",), Attrs()),
    )
    inputs = (*graph.inputs, "one")
    facts = {name: graph.facts[name] for name in graph.inputs} | {"one": fact}
    chain = infer_facts(Graph(node.op, inputs, ("y0",), nodes, facts, {}))
    return chain, inputs_by_name | {"one": np.ones(fact.shape, np.float32)}


@pytest.mark.parametrize("op", OPERATORS)
def test_alone_and_between_others(op, gpu):
    arrays = operands(ELEMENTWISE[op].formula.arity)
    graph, inputs = graph_of(op, arrays)
    got, expected = (cml.Session(graph, on).run(inputs)["y0"] for on in (gpu, "cpu"))
    agree(op, got, expected, arrays)
    if op in BETWEEN:
        chain, inputs = surrounded(graph, inputs)
        for on in (gpu, "cpu"):
            session = cml.Session(chain, on)
            assert on == "cpu" or len(session.plan.steps) == 1  # all are fused into one kernel
            agree(op, session.run(inputs)["y0"], expected, arrays)


@pytest.mark.parametrize("op", ["sub", "div"])
@pytest.mark.parametrize("twice", ["a result", "the same result", "an input"])
def test_a_value_and_itself(op, twice, gpu):
    """x - x and x / x are NaN for NaN and infinity, though a driver may replace them by 0 and 1."""
    net = Net(1, 1, 1, len(VALUES))
    first = "x" if twice == "an input" else net("sqr(x)")
    second = net("mul(x, x)") if twice == "the same result" else first
    graph = net.graph(f"neg({op}({first}, {second}))")
    session, inputs = cml.Session(graph, gpu), {"x": VALUES.reshape(1, 1, 1, -1)}
    assert len(session.plan.steps) == 1
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    (got,) = session.run(inputs).values()
    got, expected = got.ravel(), expected.ravel()
    if twice != "an input":  # a GPU may take x * x for 0
        square = VALUES.astype(np.float64) ** 2
        lost = (square > 0) & (square < np.finfo(np.float32).tiny) & np.isnan(got)
        got = np.where(lost, expected, got)
    agree(op, got, expected, [VALUES])


def behind(producer, op, x):
    """Returns a graph with the operator after a product or conv by 1, and its inputs.

    The product is [n, 1] by [1, 1], and the conv has four channels. A third result is the pair
    of the graph and inputs of the operator alone.
    """
    maps = producer == "conv"
    net = Net(1, 4, 1, x.size) if maps else Net(x.size, 1)
    if maps:
        filter, bias = net.constant(np.eye(4)[:, :, None, None]), net.constant(0.0)
        total = net.op("conv", "x", filter, bias, padding=[(0, 0), (0, 0)])
    else:
        total = net.op("matmul", "x", net.constant([[1.0]]))
    others = ELEMENTWISE[op].formula.arity - 1
    extra = {"clamp": (-1.0, 2.0), "prelu": (0.5,)}.get(op, (2.0,) * others)
    names = [net.constant(np.full((1,) * (4 if maps else 2), value)) for value in extra]
    graph = net.graph(net.op(op, total, *names, **attrs_of(op)))
    values = np.zeros(net.shape("x"), np.float32)
    values[(0, 1, 0) if maps else (slice(None), 0)] = x
    alone = [values, *(net.constants[n] for n in names)]
    return graph, {"x": values}, graph_of(op, alone)


def operators_behind():
    """Yields test parameters (producer, operator); most of the operators run in the long suite
    only."""
    few = {"min", "max", "clamp", "relu", "leaky_relu", "sign", "tanh", "pow", "prelu", "div"}
    for name, spec in ELEMENTWISE.items():
        if spec.formula.fusable and not spec.custom:
            yield pytest.param("matmul", name, marks=() if name in few else pytest.mark.long)
    for name in ("clamp", "leaky_relu", "prelu", "relu", "sigmoid", "tanh"):
        yield pytest.param("conv", name)


@pytest.mark.parametrize(("producer", "op"), list(operators_behind()))
def test_behind_another(producer, op, gpu):
    """An operator behind another one gives on both backends the result that it gives alone.

    After a conv only one value is not finite in each run, since a NaN in a sum is in all four
    channels; there the CPU alone says what is right.
    """
    finite = np.isfinite(VALUES)
    runs = [VALUES] if producer == "matmul" else [VALUES[finite], *VALUES[~finite, None]]
    for number, x in enumerate(runs):
        graph, inputs, (alone, values) = behind(producer, op, x)
        (expected,), (got,) = (cml.Session(graph, on).run(inputs).values() for on in ("cpu", gpu))
        if number == 0:
            right = cml.Session(alone, "cpu").run(values)["y0"]
            # a sum of products begins with 0, which takes the sign of -0
            agree(op, expected.ravel(), right.ravel(), [inputs["x"].ravel()], zeros=False)
        agree(op, got.ravel(), expected.ravel(), [inputs["x"].ravel()], zeros=False)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_any_size(op, gpu, rng):
    """sin and cos are off by less than 4e-7, for angles up to 2^127 and near multiples of pi /
    2."""
    powers = np.float32(2.0) ** rng.uniform(-20, 127.9, 4096)
    near = (np.arange(1, 4096) * rng.integers(1, 9000, 4095) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([powers.astype(np.float32), -near])
    graph, inputs = graph_of(op, [x])
    got = cml.Session(graph, gpu).run(inputs)["y0"]
    expected = getattr(np, op)(x.astype(np.float64))
    assert np.abs(got - expected).max() < 4e-7


@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("asinh", np.arcsinh),
        ("atanh", np.arctanh),
        ("acosh", np.arccosh),
        ("softplus", lambda x: np.log1p(np.exp(x))),
    ],
)
def test_logarithms_next_to_one(op, exact, gpu):
    """Functions that compute log(1 + u) have a relative error below 3e-6 for small u."""
    u = np.geomspace(1e-7, 1e-2, 256).astype(np.float32)
    x = {"softplus": np.log(u), "acosh": 1 + u}.get(op, u)
    graph, values = graph_of(op, [x])
    got, expected = cml.Session(graph, gpu).run(values)["y0"], exact(x.astype(np.float64))
    assert (np.abs(got - expected) / expected).max() < 3e-6


SOFTMAX = np.array(
    [[1, 2, 3], [np.nan, 1, 2], [1, 2, np.nan], [np.inf, 1, -np.inf], [-np.inf] * 3,
     [3e38, -3e38, 0], [-np.inf, 5, 5]], np.float32
)  # fmt: skip


@pytest.mark.parametrize("length", [3, 300, 9000])
@pytest.mark.parametrize("inner", [1, 2])
def test_softmax(length, inner, gpu):
    """A softmax of special values is right with all three kernels: by thread, by tree, in
    several steps."""
    x = np.zeros((len(SOFTMAX), length), np.float32)
    x[:, :2], x[:, 2:] = SOFTMAX[:, :2], SOFTMAX[:, 2:]
    x = np.repeat(x[..., None], inner, -1)
    check_on_gpu("softmax", Case((x,), {"axes": [1]}), gpu)


@pytest.mark.parametrize("op", ["argmax_reduce", "argmin_reduce", "max_reduce", "min_reduce"])
@pytest.mark.parametrize("length", [5, 300, 9000])
def test_extremes(op, length, gpu):
    """The first NaN is the extreme; of equal values, +0 and -0 included, the first one is."""
    rows = [(1, np.nan, np.nan), (np.inf, 3, np.nan), (-np.inf, -np.inf, np.inf), (-0.0, 0.0, 0)]
    x = np.zeros((len(rows), length), np.float32)
    x[:, 1], x[:, 2], x[:, length - 1] = np.array(rows, np.float32).T
    check_on_gpu(op, Case((x,), {"axes": [1]}), gpu)
    check_on_gpu(op, Case((np.repeat(x[..., None], 3, -1),), {"axes": [1]}), gpu)


@pytest.mark.parametrize("op", ["sum_reduce", "mean_reduce", "any_reduce", "all_reduce"])
def test_sums(op, gpu):
    x = np.array([[1, np.inf, 2], [np.inf, -np.inf, 0], [np.nan, 1, 1]], np.float32)
    if op in ("any_reduce", "all_reduce"):
        x = x > 1
    attrs = {"axes": [1]} | ({"normalize": False} if op == "sum_reduce" else {})
    check_on_gpu(op, Case((x,), attrs), gpu)


@pytest.mark.parametrize(
    "op", ["box", "avg_pool", "max_pool", "argmax_pool", "max_pool_with_index"]
)
@pytest.mark.parametrize("border", ["constant", "ignore", "reflect"])
def test_pools(op, border, gpu):
    x = np.zeros((1, 4, 9, 9), np.float32)
    x[0, :, 4, 4] = np.nan, np.inf, -np.inf, -0.0
    x[0, 1:3, 5, 5] = -np.inf, -1
    attrs = {
        "size": [1, 1, 3, 3], "border": border, "padding": [], "stride": [], "dilation": []
    } | ({"normalize": True} if op == "box" else {})  # fmt: skip
    check_on_gpu(op, Case((x,), attrs), gpu)
