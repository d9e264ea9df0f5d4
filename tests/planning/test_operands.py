"""Tests of concats that compute operands which only they read."""

from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from benchmarks.models import AGENTS
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.limits import Limits
from tests.fixtures.kernels import run_joined_and_apart
from tests.fixtures.operators import check_graph

HARDWARE = replace(Limits(), software=False)
#: batch, rows, columns, and the rows and columns that windows leave out at each side
CASES = [(1, 12, 13, 2), (2, 9, 7, 1), (1, 5, 5, 2), (3, 70, 33, 3)]


def joining(batch, height, width, crop, *, extra="", channels=3, kind="conv"):
    """Returns the graph of a concat of windows of two maps and of maps computed from the second.

    ``extra`` names what makes the computed maps unfit: they are an output, or read elsewhere.
    """
    rng = np.random.default_rng(0)
    builder = cml.GraphBuilder("joining")
    copied = builder.input("copied", [batch, 8, height, width])
    ground = builder.input("ground", [batch, 1, height, width])
    cell = builder.input("cell", [1, 1, 1, 1])
    ends = {"axes": [2, 3], "begin": [crop, crop], "end": [height - crop, width - crop]}
    window = builder.slice(ground, **ends)

    def conv(x, count, bias=True):
        operands = [weights(rng, count, 1, 1, 1)] + ([weights(rng, 1, count)] if bias else [])
        return builder.conv(x, *operands, padding=[(0, 0), (0, 0)])

    high = builder.clamp(conv(window, channels), -1.0, 1.0)
    scaled = builder.div(window, cell)
    layers = conv(scaled, 2, bias=False)
    part = builder.abs(builder.sub(builder.sub(layers, builder.floor(layers)), 0.5))
    warmth = builder.input("warmth", [batch, 2, height - 2 * crop, width - 2 * crop])
    warm = builder.mul(builder.relu(warmth), weights(rng, 1, 2, 1, 1))
    whole = builder.concat([builder.slice(copied, **ends), high, part, warm], axis=1)
    outputs = {"y": whole}
    if extra == "output":
        outputs["z"] = layers
    if extra == "reader":
        outputs["z"] = builder.exp(layers)
    return optimize(builder.graph(**outputs))


def weights(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def inputs_of(graph, rng):
    """Returns inputs of a graph; the single value is a length."""
    found = {n: rng.standard_normal(graph.facts[n].shape).astype(np.float32) for n in graph.inputs}
    return {**found, "cell": np.full((1, 1, 1, 1), 0.3, np.float32)}


def ops_of(graph, limits=HARDWARE, **options):
    return [s.op for s in lower(graph, limits, choose_layout(graph), PlanOptions(**options)).steps]


def test_on_hardware_one_dispatch_computes_and_copies():
    graph = joining(*CASES[0])
    assert ops_of(graph) == ["concat_windows"]
    for apart in (ops_of(graph, replace(Limits(), software=True)), ops_of(graph, keep=True)):
        assert apart.count("conv") == 2


@pytest.mark.parametrize("extra", ["output", "reader"])
def test_what_others_read_has_a_dispatch(extra):
    """Maps that are computed from it have none, if nothing else reads them."""
    ops = ops_of(joining(*CASES[0], extra=extra))
    assert ops.count("conv") == 1
    assert "concat_windows" in ops


@pytest.mark.parametrize("name", ["texture", "population"])
def test_the_demos_networks_compute_four_operators_in_their_concat(name):
    graph = optimize(cml.load(AGENTS / f"{name}.nnef"))
    before = [
        ops[: ops.index("concat_windows")] for ops in (ops_of(graph), ops_of(graph, keep=True))
    ]
    assert before == [["conv"], ["conv"] * 4 + ["floor"]]


def test_operands_of_more_numbers_than_a_dispatch_takes_have_dispatches():
    assert ops_of(joining(*CASES[0], channels=40)).count("conv") == 2


def test_computed_operands_take_no_memory_and_no_choices():
    graph = joining(*CASES[3])
    computed, apart = (
        lower(graph, limits, choose_layout(graph), PlanOptions())
        for limits in (HARDWARE, replace(Limits(), software=True))
    )
    assert computed.memory.peak < apart.memory.peak
    assert not [choice for choice in computed.choices if choice.node.startswith("conv")]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_computed_operands_are_bit_identical_to_copied_ones(case, gpu, set_limits, rng):
    """Computed operands change no bit, in any slices, against a dispatch for each operator."""
    set_limits(software=False)
    graph = joining(*case)
    inputs, layouts = inputs_of(graph, rng), choose_layout(graph)
    check_graph(graph, inputs, gpu, layouts=layouts, keep=False)
    found, expected = run_joined_and_apart(graph, gpu, inputs)
    assert np.array_equal(found, expected)


@pytest.mark.gpu
def test_special_values_pass_through_formulas(gpu, set_limits, rng):
    set_limits(software=False)
    graph = joining(*CASES[0])
    inputs = inputs_of(graph, rng)
    inputs["ground"].reshape(-1)[:90] = np.tile([np.nan, np.inf, -np.inf, 0.0, -0.0], 18)
    found, expected = run_joined_and_apart(graph, gpu, inputs)
    assert np.array_equal(found, expected, equal_nan=True)
