"""Tests of kernels that read weights in blocks of 8 or 4 bits.

The results are bit-identical to those of the same kernel with the same weights as floats.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.block_weights import nearest_blocks
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.testing import full_attrs
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu

PLAIN = cml.CompileOptions(tuned=False)
SAME = {"padding": [(1, 1), (1, 1)]}
ROWS = {"transposeA": False, "transposeB": False}
#: operator, shapes of input and weights, attributes, and weights that share a scale
READ = [
    ("matmul", (64, 64), (64, 64), ROWS, 32),
    ("matmul", (1, 512), (512, 10), ROWS, 32),
    ("matmul", (3, 1028), (30, 1028), {"transposeA": False, "transposeB": True}, 64),
    ("matmul", (20, 3000), (3000, 40), ROWS, 16),
    ("matmul", (2, 7, 20), (1, 20, 6), ROWS, 20),
    ("matmul", (1, 4), (4, 1), ROWS, 4),
    ("linear", (9, 72), (11, 72), {}, 24),
    ("conv", (1, 16, 9, 11), (20, 16, 3, 3), SAME, 16),
    ("conv", (1, 64, 8, 8), (64, 64, 3, 3), SAME, 32),
    ("conv", (2, 48, 7, 5), (10, 48, 1, 1), {}, 32),
    ("conv", (1, 13, 9, 7), (9, 13, 3, 3), {"stride": [2, 2]}, 13),
    ("conv", (1, 64, 9, 7), (64, 16, 3, 3), {**SAME, "groups": 4}, 16),
    ("conv", (1, 32, 3, 3, 4), (8, 32, 2, 2, 2), {}, 8),
    ("deconv", (1, 40, 5, 6), (40, 12, 4, 4), {"stride": [2, 2]}, 32),
    ("deconv", (1, 40, 5, 6), (40, 6, 2, 2), {"stride": [3, 3]}, 32),
]
#: weights that no kernel reads in few bits: they are floats on the device
UNPACKED = [
    ("matmul", (5, 70), (70, 33), ROWS, 32),
    ("matmul", (36, 5), (36, 7), {"transposeA": True, "transposeB": False}, 32),
    ("matmul", (2, 5, 8), (2, 8, 4), ROWS, 8),
    ("linear", (9, 72), (11, 72), {}, 6),
    ("conv", (1, 10, 9, 7), (15, 2, 3, 3), {"groups": 5}, 2),
    ("conv", (1, 8, 9, 7), (8, 1, 3, 3), {"groups": 0}, 1),
    ("conv", (1, 3, 9, 7), (10, 3, 3, 3), {}, 3),
]


def graph_of(case, bits, rng):
    op, x, weights, attrs, size = case
    attrs = full_attrs(op, attrs)
    axis = {"conv": 1, "deconv": 0, "linear": 1}.get(op)
    if axis is None:
        axis = len(weights) - (1 if attrs["transposeB"] else 2)
    values = rng.standard_normal(weights, np.float32)
    constants = {"w": nearest_blocks(values, axis, size, bits).values()}
    if op != "matmul":
        count = weights[1] * int(attrs["groups"] or 1) if op == "deconv" else weights[0]
        constants["b"] = rng.standard_normal((1, count), np.float32)
    facts = {n: Fact("scalar", a.shape) for n, a in constants.items()} | {"x": Fact("scalar", x)}
    node = Node(op, ("x", *constants), ("y",), attrs)
    graph = Graph(op, ("x",), ("y",), (node,), facts, constants)
    return infer_facts(graph), {"x": rng.uniform(-1, 1, x).astype(np.float32)}


def as_floats(graph):
    return graph.with_(constants={n: np.array(a) for n, a in graph.constants.items()})


def reads_few_bits(plan):
    return any("WEIGHT_BITS" in step.defines for step in plan.steps)


#: in the suite the cases alternate between 8 and 4 bits on a software driver, and the tiles of
#: hardware, which shares no loads between lanes, read the 4 bits of products
BITS = [
    pytest.param(case, bits, software, marks=() if in_suite else pytest.mark.long)
    for i, case in enumerate(READ)
    for bits, software, in_suite in (
        (8, True, i % 2 == 0),
        (4, True, i % 2 == 1),
        (4, False, "conv" not in case[0]),
    )
]


#: words of the paths of kernels that read no weights in few bits
FLOATS_ONLY = ("winograd", "conv_window")


@pytest.mark.parametrize(("case", "bits", "software"), BITS)
def test_kernels_read_few_bits(case, bits, software, gpu, rng):
    """Results are within the tolerance in any slicing, and bit-identical to those of float weights.

    For some sizes hardware's rules choose kernels that read floats only (:data:`FLOATS_ONLY`): then
    the results are close.
    """
    graph, inputs = graph_of(case, bits, rng)
    if software == gpu.limits.software:
        check_graph(graph, inputs, gpu)
    limits, results, kernels = replace(gpu.limits, software=software), [], set()
    for tested in (graph, as_floats(graph)):
        plan = lower(tested, limits, layouts_for(tested), PlanOptions())
        assert reads_few_bits(plan) == (tested is graph)
        results.append(GpuProgram(plan, gpu).run(inputs)["y"])
        paths = " ".join(str(step.path) for step in plan.steps)
        kernels.add(next((kind for kind in FLOATS_ONLY if kind in paths), "other"))
    if len(kernels) == 1:
        assert_array_equal(*results)
    else:
        assert not software
        np.testing.assert_allclose(*results, atol=1e-4 * np.abs(results[0]).max())


@pytest.mark.parametrize("case", UNPACKED, ids=str)
def test_other_weights_are_floats_on_the_device(case, gpu, rng):
    graph, inputs = graph_of(case, 8, rng)
    check_graph(graph, inputs, gpu)
    assert not reads_few_bits(cml.Session(graph, gpu, PLAIN).plan)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.29), (4, 0.17)])
@pytest.mark.parametrize("storage", ["float", "half"])
def test_weights_take_less_memory(bits, share, storage, gpu, rng):
    """Weights in few bits are uploaded as codes and scales, also with 16-bit storage."""
    graph, inputs = graph_of(("conv", (1, 64, 8, 8), (64, 64, 3, 3), SAME, 32), bits, rng)
    options = replace(PLAIN, storage=storage)
    session = cml.Session(graph, gpu, options)
    nbytes = session.plan.weights_bytes + session.plan.own_bytes
    assert nbytes < share * graph.constants["w"].nbytes
    expected = cml.Session(as_floats(graph), "cpu").run(inputs)["y"]
    assert_allclose(session.run(inputs)["y"], expected, rtol=1e-2, atol=1e-2)


def test_a_caller_can_choose_winograd(gpu, rng):
    """Winograd's kernel transforms the filter, so it has floats."""
    graph, inputs = graph_of(("conv", (1, 64, 40, 40), (64, 64, 3, 3), SAME, 32), 8, rng)
    sessions = [
        cml.Session(graph, gpu, replace(PLAIN, decide=decide))
        for decide in ({}, {"y": {"kernel": "winograd"}})
    ]
    assert [reads_few_bits(s.plan) for s in sessions] == [True, False]
    few, floats = (s.run(inputs)["y"] for s in sessions)
    assert_allclose(few, floats, rtol=1e-3, atol=1e-3)
