"""Tests of products of matrices that store what a later product would copy transposed."""

from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.limits import Limits
from tests.fixtures.operators import check_graph

HARDWARE, SOFTWARE = (replace(Limits(), software=software) for software in (False, True))
COPY, PRODUCT = "movement/strided_copy.hlsl", "matmul/matmul.hlsl"


def small(rng, *shape):
    """Returns small fractions, whose sums are exact."""
    return rng.integers(-3, 4, shape).astype(np.float32) / 8


def attending(batch=1, rows=9, keys=9, heads=2, width=8, others=False, result=False):
    """Returns the optimized graph of queries times keys, each with heads, and values times that.

    The keys are projections of x, or with ``others`` of y; with ``result`` they are also an output.
    """
    rng = np.random.default_rng(0)
    columns = heads * width
    builder = cml.GraphBuilder("attending")
    x = builder.input("x", [batch, rows, columns])
    sources = [x] * 3
    if others:
        sources[1] = builder.input("y", [batch, keys, columns])

    def project(source, count):
        y = builder.matmul(source, small(rng, 1, columns, columns))
        y = builder.add(y, small(rng, 1, 1, columns))
        y = builder.reshape(y, shape=[batch, count, heads, width])
        return builder.transpose(y, axes=[0, 2, 1, 3])

    counts = (rows, keys if others else rows, rows)
    q, k, v = (project(s, n) for s, n in zip(sources, counts, strict=True))
    outputs = {"scores": builder.matmul(q, k, transposeB=True), "v": builder.softmax(v, axes=[3])}
    if result:
        outputs["k"] = k
    return optimize(builder.graph(**outputs))


def copies(graph, limits, **options):
    plan = lower(graph, limits, options=PlanOptions(**options))
    return sum(str(step.path) == COPY for step in plan.steps)


@pytest.mark.parametrize("others", [False, True])
def test_no_dispatch_copies_keys_on_hardware(others):
    graph = attending(others=others, keys=13)
    assert [n.op for n in graph.nodes].count("matmul_parts") == (not others)
    assert copies(graph, HARDWARE) == 0
    assert copies(graph, SOFTWARE) == copies(graph, HARDWARE, keep=True) == 1


def test_keys_that_others_read_are_copied():
    assert copies(attending(result=True), HARDWARE) == 1
    retained = attending(others=True)
    assert copies(retained, HARDWARE, retain=True) == 1  # y may change without x
    builder = cml.GraphBuilder("inputs")
    x, y = (builder.input(name, [2, 9, 8]) for name in "xy")
    assert copies(builder.graph(z=builder.matmul(x, y, transposeB=True)), HARDWARE) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    "sizes", [(2, 13, 11, 3, 12), (1, 70, 67, 2, 5), (3, 8, 9, 1, 16), (1, 9, 131, 4, 33)]
)
def test_products_store_the_same_bits_as_the_copy(sizes, others, gpu, set_limits, rng):
    """Products that store transposed results give the bits of product and copy, in any slices."""
    set_limits(software=False)
    graph = attending(*sizes, others=others)
    inputs = {name: small(rng, *graph.facts[name].shape) for name in graph.inputs}
    check_graph(graph, inputs, gpu, keep=False)
    plans = [lower(graph, gpu.limits, options=PlanOptions(keep=keep)) for keep in (False, True)]
    flipped = [[step for step in plan.steps if "FLIPPED" in step.defines] for plan in plans]
    assert [len(steps) for steps in flipped] == [1, 0]
    found, expected = (GpuProgram(plan, gpu).run(inputs) for plan in plans)
    for name in graph.outputs:
        assert found[name].tobytes() == expected[name].tobytes()
