"""Tests that the prepared functions which CPU sessions call agree with the operators' definitions.

This holds for every memory order of the inputs.
"""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.ops.common import blas
from cml_engine.ops.conv import cpu_channels_last as conv_last_cpu
from cml_engine.ops.conv.cases import CONV_CASES, conv_case
from cml_engine.ops.conv.cpu import conv_cpu
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import lookup, registered
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import EXACT
from cml_engine.tools.testing import case_graph, full_attrs

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
            wanted = spec.cpu(node.attrs, *arrays)
            for given in orders(arrays):
                got = function(node.attrs, *given)
                assert got.shape == wanted.shape
                assert got.dtype == wanted.dtype
                bound = spec.tolerance
                if bound is EXACT:
                    np.testing.assert_array_equal(got, wanted, err_msg=case.note)
                else:
                    np.testing.assert_allclose(
                        got, wanted, bound.rtol, bound.atol, err_msg=case.note
                    )
        compared += 1
    assert compared > 2


def by(way, case, rng):
    """Asserts that the prepared function ``way`` agrees with conv for all memory orders."""
    arrays = [
        g if isinstance(g, np.ndarray) else rng.uniform(-1, 1, g).astype(np.float32)
        for g in case.inputs
    ]
    attrs = Attrs(case.attrs)
    shape = conv_shape(attrs, *(Fact("scalar", a.shape) for a in arrays))
    wanted = conv_cpu(attrs, *arrays)
    for given in orders(arrays):
        got = way(shape, arrays[1], Scratch())(attrs, *given)
        bound = 5e-6 * np.abs(wanted).max(initial=1)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=str(case))


def shape_of(case):
    facts = [Fact("scalar", np.shape(a) if isinstance(a, np.ndarray) else a) for a in case.inputs]
    return conv_shape(Attrs(case.attrs), *facts)


def test_windows_of_every_shape(rng):
    cases = [c for c in CONV_CASES if shape_of(c).groups == 1 and 0 not in c.inputs[0]]
    assert len(cases) > 20
    for case in cases:
        by(conv_last_cpu.Windows, case, rng)


@pytest.mark.parametrize("block", [1, 3000, 100_000])
def test_products_in_blocks(rng, monkeypatch, block):
    """Matrix products are right in blocks of few rows, with a remainder, and of all rows."""
    monkeypatch.setattr(blas, "_BLOCK", block)
    by(conv_last_cpu.Windows, conv_case((2, 9, 11, 17), (11, 9, 1, 1)), rng)
    by(conv_last_cpu.Windows, conv_case((1, 9, 11, 17), (11, 9, 3, 3)), rng)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect-even"])
def test_depthwise_windows(rng, border):
    tried = 0
    for _ in range(60):
        count = int(rng.integers(1, 4))
        channels, batch = (int(n) for n in rng.integers(1, (9, 3)))
        extents, kernel, stride, dilation = (
            [int(n) for n in rng.integers(1, most, count)] for most in (13, 5, 4, 3)
        )
        padding = [tuple(int(n) for n in rng.integers(-1, 4, 2)) for _ in range(count)]
        case = conv_case(
            (batch, channels, *extents), (channels, 1, *kernel), groups=channels, border=border,
            stride=stride, dilation=dilation, padding=padding,
        )  # fmt: skip
        try:
            shape_of(case)
        except ShapeError:
            continue
        by(conv_last_cpu.Depthwise, case, rng)
        tried += 1
    assert tried > 20


def test_the_rules_choose_the_convolution_kernel():
    def chosen(x, filter, given=True, **attrs):
        case = conv_case(x, filter, **attrs)
        facts = [Fact("scalar", s) for s in (x, filter, (1, filter[0]))]
        constants = [None, np.ones(filter, np.float32) if given else None, None]
        way = conv_last_cpu.prepare_conv(Attrs(case.attrs), facts, constants, Scratch())
        return type(way).__name__

    assert chosen((1, 16, 9, 9), (16, 1, 3, 3), groups=16) == "Depthwise"
    assert chosen((1, 16, 9, 9), (32, 1, 3, 3), groups=16) == "partial"
    assert chosen((1, 16, 9, 9), (16, 1, 3, 3), given=False, groups=16) == "partial"
    assert chosen((1, 512, 9, 900), (512, 1, 3, 3), groups=512) == "partial", "a filter of 16 MB"
    assert chosen((1, 16, 9, 9), (24, 16, 1, 1)) == "Windows"
    assert chosen((1, 3, 9, 9), (24, 3, 3, 3)) == "Windows"
    assert chosen((1, 1, 9, 9), (24, 1, 3, 3)) == "partial"
    assert chosen((1, 64, 64, 64), (64, 64, 3, 3), padding=[(1, 1), (1, 1)]) == "Winograd"
    assert chosen((1, 16, 0, 9), (24, 16, 1, 1)) == "partial"


# ---------------------------------------------------------------- sessions


def mobile(rng):
    """Returns a graph of depthwise and pointwise layers, clamps, a residual, pool and concat."""
    constants = {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        for name, shape in {
            "w1": (24, 8, 1, 1), "w2": (24, 1, 3, 3), "w3": (8, 24, 1, 1),
            "b": (1, 24), "c": (1, 8),
        }.items()
    }  # fmt: skip
    constants |= {"low": np.float32(0).reshape(()), "high": np.float32(0.6).reshape(())}
    around = {"padding": [(1, 1), (1, 1)]}
    pool = {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2]}
    nodes = (
        Node("conv", ("x", "w1", "b"), ("p",), full_attrs("conv", {})),
        Node("clamp", ("p", "low", "high"), ("q",)),
        Node("conv", ("q", "w2", "b"), ("d",), full_attrs("conv", {**around, "groups": 24})),
        Node("relu", ("d",), ("e",)),
        Node("conv", ("e", "w3", "c"), ("f",), full_attrs("conv", {})),
        Node("add", ("f", "x"), ("g",)),
        Node("max_pool", ("g",), ("h",), full_attrs("max_pool", pool)),
        Node("nearest_upsample", ("h",), ("i",), Attrs({"factor": [2, 2]})),
        Node("concat", ("g", "i"), ("y",), Attrs({"axis": 1})),
    )
    facts = {"x": Fact("scalar", (1, 8, 64, 48))}
    facts |= {name: Fact("scalar", value.shape) for name, value in constants.items()}
    return infer_facts(Graph("mobile", ("x",), ("y", "g"), nodes, facts, constants))


def defined(graph, x):
    values = {**graph.constants, "x": x}
    for node in graph.nodes:
        arrays = [values[n] for n in node.reads]
        values[node.outputs[0]] = lookup(node.op).cpu(node.attrs, *arrays)
    return [values[name] for name in graph.outputs]


def test_a_session_keeps_its_results_apart(rng):
    """The results of earlier runs stay right after later runs, so they share no reused memory."""
    graph = mobile(rng)
    session = cml.Session(graph, "cpu")
    given = [rng.uniform(-1, 1, (1, 8, 64, 48)).astype(np.float32) for _ in range(3)]
    results = [session.run({"x": x}) for x in given]
    for x, result in zip(given, results, strict=True):
        for name, wanted in zip(graph.outputs, defined(graph, x), strict=True):
            np.testing.assert_allclose(result[name], wanted, rtol=1e-5, atol=2e-5)


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


def test_results_are_as_many_as_live_at_once():
    scratch = Scratch()
    for size in (5000, 9000, 7000, 30000, 6000):
        first, second = scratch.result(size), scratch.result(size)
        assert not np.may_share_memory(first, second)
        del first, second
    assert len(scratch._results) == 2
