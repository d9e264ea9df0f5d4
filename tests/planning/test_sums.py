"""Tests of sums of convolutions with unlike windows that one dispatch computes."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cml_engine as cml
from benchmarks.models import AGENTS
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning import sums
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.limits import Limits
from cml_engine.ops.conv.node import ConvTile
from tests.fixtures.kernels import run_joined_and_apart
from tests.fixtures.operators import check_graph

HARDWARE = replace(Limits(), software=False)
SUM = "conv/conv_sum.hlsl"
#: batch, rows and columns of the result, its channels, the channels of its maps, and the factor of
#: a pixel shuffle
CASES = [
    (1, 9, 11, 12, (8, 16), 1),
    (2, 7, 5, 10, (4, 12), 1),
    (3, 1, 3, 4, (12, 6), 1),
    (1, 33, 5, 20, (40, 24), 2),
    (1, 24, 24, 16, (16, 40), 4),
]


def summing(batch, height, width, count, maps, factor=1, *, extra="", formulas=None):
    """Returns the graph of a sum of three convolutions: of a plain map of one channel by 4x4 taps,
    of a plain map by 3x3 taps, and of a map in blocks by one tap.

    ``extra`` names what makes the first result unfit: it is an output, or read elsewhere. With
    ``formulas`` elementwise operators compute the first map, and an operand with a value for each
    channel; and there is a fourth convolution, of one tap, whose input another computes. Without
    them, as by default with a pixel shuffle, sums of whole numbers are exact.
    """
    rng, formulas = np.random.default_rng(0), factor == 1 if formulas is None else formulas

    def conv(x, rows, channels, *taps, **attrs):
        weights = (rows, channels, *taps), (1, rows)
        operands = [numbers_of(rng, shape, formulas) for shape in weights]
        return builder.conv(x, *operands, padding=[(0, 0), (0, 0)], **attrs)

    builder = cml.GraphBuilder("summing")
    ground = builder.input("ground", [batch, 1, height + 5, width + 5])
    near = builder.input("near", [batch, maps[0], 2 * height + 1, width + 4])
    cell = builder.input("cell", [1, 1, 1, 1])
    if formulas:
        ground = builder.clamp(builder.div(ground, builder.mul(cell, 16.0)), -1.0, 1.0)
        length = builder.mul(builder.add(builder.log2(cell), -5.0), 0.33)
        level = conv(length, count, 1, 1, 1)
    inner = builder.slice(ground, axes=[2, 3], begin=[1, 2], end=[height + 4, width + 5])
    first = conv(inner, count, 1, 4, 4)
    second = conv(near, count, maps[0], 3, 3, stride=[2, 1], dilation=[1, 2])
    blocks = builder.relu(conv(near, maps[1], maps[0], 3, 5, stride=[2, 1]))
    third = conv(blocks, count, maps[1], 1, 1)
    if formulas:
        third = builder.mul(builder.add(third, level), cell)
    if formulas:
        low = builder.input("low", [batch, 1, 2 * height + 3, width + 2])
        slopes = builder.div(conv(low, 8, 1, 2, 3, stride=[2, 1]), cell)
        inside = builder.slice(slopes, axes=[2], begin=[1], end=[height + 1])
        third = builder.add(conv(inside, count, 8, 1, 1), third)
    total = builder.relu(builder.add(builder.add(third, first), second))
    sizes = batch, count, height, width
    outputs = {"y": total if factor == 1 else shuffled(builder, total, *sizes, factor)}
    if extra == "output":
        outputs["z"] = first
    if extra == "reader":
        outputs["z"] = builder.exp(first)
    return optimize(builder.graph(**outputs))


def shuffled(builder, x, batch, count, height, width, factor):
    maps = count // factor**2
    split = builder.reshape(x, shape=[batch, maps, factor, factor, height, width])
    moved = builder.transpose(split, axes=[0, 1, 4, 2, 5, 3])
    return builder.reshape(moved, shape=[batch, maps, height * factor, width * factor])


def numbers_of(rng, shape, fractions):
    if fractions:
        return (rng.standard_normal(shape) / 4).astype(np.float32)
    return rng.integers(-2, 3, shape).astype(np.float32)


def inputs_of(graph, rng):
    """Returns inputs of a graph; the single value is a length."""
    facts = {name: graph.facts[name] for name in graph.inputs}
    found = {name: numbers_of(rng, fact.shape, "cell" in facts) for name, fact in facts.items()}
    return {n: np.full_like(value, 0.3) if n == "cell" else value for n, value in found.items()}


def plan_of(graph, limits=HARDWARE, **options):
    return lower(graph, limits, choose_layout(graph), PlanOptions(**options))


def terms_of(graph, limits=HARDWARE, **options):
    """Returns the number of convolutions that dispatches of sums compute."""
    plan = plan_of(graph, limits, **options)
    return [step.defines["TERMS"] for step in plan.steps if str(step.path) == SUM]


@pytest.mark.parametrize("case", CASES)
def test_a_sum_of_convolutions_is_one_dispatch_on_hardware(case):
    assert terms_of(summing(*case, formulas=False)) == [3]
    graph = summing(*case, formulas=True)
    assert terms_of(graph) == [4]
    # the convolution in front of it is the only other one
    assert [step.op for step in plan_of(graph).steps] == ["conv", "conv"]
    assert terms_of(graph, replace(Limits(), software=True)) == []
    assert terms_of(graph, keep=True) == []


@pytest.mark.parametrize("formulas, expected", [(False, [0, 0, 0]), (True, [0, 0, 2, 0])])
def test_terms_that_are_only_added_share_their_sums(formulas, expected):
    """A term that is multiplied before it is added has sums of its own."""
    (step,) = (
        s for s in plan_of(summing(*CASES[0], formulas=formulas)).steps if str(s.path) == SUM
    )
    assert [step.defines[f"SUMS{n}"] for n in range(len(expected))] == [
        f"sums{n}" for n in expected
    ]


@pytest.mark.parametrize("extra", ["output", "reader"])
def test_a_result_that_others_read_is_no_term(extra):
    assert terms_of(summing(*CASES[0], extra=extra)) == [3]


def test_a_device_with_small_workgroups_has_no_sums():
    assert terms_of(summing(*CASES[0]), replace(HARDWARE, max_group_threads=128)) == []


def test_windows_that_reach_beyond_a_map_are_no_terms():
    builder = cml.GraphBuilder("border")
    x = builder.input("x", [1, 8, 9, 11])
    wide, single = (np.ones((8, 8, size, size), np.float32) for size in (3, 1))
    y = builder.add(builder.conv(x, wide), builder.conv(x, single))
    assert terms_of(optimize(builder.graph(y=y))) == []


def test_convolutions_that_are_faster_alone_are_not_joined(monkeypatch):
    """The model of hardware decides."""
    graph = summing(*CASES[0])
    monkeypatch.setattr(sums, "seconds", lambda *_: inf)
    assert terms_of(graph) == []


def test_results_inside_a_sum_take_no_memory_and_no_choices():
    graph = summing(*CASES[4])
    joined = plan_of(graph)
    assert len(joined.choices) == 1  # of the convolution in front of it
    assert joined.memory.peak < plan_of(graph, replace(Limits(), software=True)).memory.peak


def test_upres_has_two_sums():
    graph = optimize(cml.load(AGENTS / "upres.nnef"))
    assert terms_of(graph) == [3, 3]
    assert len(plan_of(graph).steps) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_sums_equal_single_windows(case, gpu, set_limits, rng):
    """Any split into slices gives the results of windows with as many parts as each term has.

    Whole numbers have the same bits; of others, terms that share their sums are rounded together.
    """
    set_limits(software=False)
    graph = summing(*case)
    inputs, layouts = inputs_of(graph, rng), choose_layout(graph)
    check_graph(graph, inputs, gpu, layouts=layouts, keep=False)
    joined = lower(graph, gpu.limits, layouts, PlanOptions())
    step = next(step for step in joined.steps if str(step.path) == SUM)
    own = {s.title for s in joined.steps if s is not step}
    nodes = [node for node in graph.nodes if node.op == "conv" and node.title not in own]
    read = {node.inputs[0] for node in nodes}  # a convolution inside a term computes an input
    nodes = [node for node in nodes if node.outputs[0] not in read]
    kernels = {
        node.outputs[
            0
        ]: f"window {ConvTile(step.defines['ROWS'], 1, 64, step.defines[f'SPLIT{n}'])}"
        for n, node in enumerate(nodes)
    }
    apart = lower(graph, gpu.limits, layouts, PlanOptions(overrides={"kernel": kernels}))
    assert len(apart.steps) > len(joined.steps) + 1
    found, expected = (GpuProgram(plan, gpu).run(inputs)["y"] for plan in (joined, apart))
    assert_allclose(found, expected, rtol=0, atol=0 if case[-1] > 1 else 4e-6)


@pytest.mark.gpu
def test_special_values_pass_through_a_sum(gpu, set_limits, rng):
    set_limits(software=False)
    graph = summing(*CASES[1])
    inputs = inputs_of(graph, rng)
    inputs["near"].reshape(-1)[:90] = np.tile([np.nan, np.inf, -np.inf, 0.0, -0.0], 18)
    found, expected = run_joined_and_apart(graph, gpu, inputs)
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
