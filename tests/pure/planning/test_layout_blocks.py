"""Tests that concat, split and slice between convolutions keep the blocked channel layout."""

import numpy as np

from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.choose_layout import choose_layout
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4
from cml_engine.ops import load_families
from cml_engine.tools.testing import full_attrs

load_families()


def node(op, inputs, outputs, **attrs):
    return Node(op, tuple(inputs), tuple(outputs), full_attrs(op, attrs))


def conv(source, target, filters):
    return node("conv", [source, filters, "zero"], [target])


def network(*middle, channels):
    """Returns two convs of x (8 and 4 channels), ``middle`` of both, and a conv of the result."""
    shapes = {"w1": (8, 3, 3, 3), "w2": (4, 3, 3, 3), "w3": (4, channels, 3, 3), "zero": ()}
    constants = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    nodes = (conv("x", "a", "w1"), conv("x", "b", "w2"), *middle, conv("m", "y", "w3"))
    facts = {name: Fact("scalar", shape) for name, shape in shapes.items()}
    facts["x"] = Fact("scalar", (1, 3, 8, 8))
    return infer_facts(Graph("net", ("x",), ("y",), nodes, facts, constants))


def test_concat_of_different_channels_is_blocked():
    graph = network(node("concat", ["a", "b"], ["m"], axis=1), channels=12)
    assert choose_layout(graph) == {"a": C4, "b": C4, "m": C4}


def test_concat_with_a_part_of_a_block_is_plain():
    graph = network(node("concat", ["a", "b", "x"], ["m"], axis=1), channels=15)
    assert choose_layout(graph) == {}


def test_split_is_blocked_where_its_parts_are_whole_blocks():
    halves = network(node("split", ["a"], ["m", "rest"], axis=1, ratios=[1, 1]), channels=4)
    assert {"a", "m", "rest"} <= set(choose_layout(halves))
    odd = network(node("split", ["a"], ["m", "rest"], axis=1, ratios=[3, 1]), channels=6)
    assert not {"a", "m", "rest"} & set(choose_layout(odd))


def test_slice_is_blocked_wherever_it_begins():
    window = {"axes": [1], "begin": [2], "end": [6], "stride": []}
    graph = network(node("slice", ["a"], ["m"], **window), channels=4)
    assert {"a", "m"} <= set(choose_layout(graph))
