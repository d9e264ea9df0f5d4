"""Tests that the check of the passes accepts correct passes and names a wrong one."""

import numpy as np
import pytest

from cml_engine import ops
from cml_engine.compiler.optimize import STAGES
from cml_engine.compiler.passes.rules import unregister_rule
from cml_engine.runtime import inspection as checking
from cml_engine.runtime.inspection import check_passes
from tests.fixtures.graphs import BLOCKS, Net


@pytest.mark.parametrize("block", BLOCKS)
def test_the_passes_agree_on_blocks(block):
    net = BLOCKS[block]()
    report = check_passes(net.graph(), net.input())
    assert report.ok, str(report)


def small():
    net = Net(1, 4, 5, 5)
    last = net("relu(batch_norm(conv(x, 4)))")
    return net.graph(f"abs({last})"), net.input()


def followed_by(monkeypatch, name, change):
    """Applies a change to the result of the pass of this name."""
    stages = tuple(
        (n, (lambda graph, stage=stage: change(stage(graph))) if n == name else stage, why)
        for n, stage, why in STAGES
    )
    monkeypatch.setattr(checking, "STAGES", stages)


@pytest.mark.parametrize("name", ["affine", "fuse", "rules"])
def test_wrong_pass_is_named_with_the_node(monkeypatch, name):
    def broken(graph):
        node = graph.nodes[0]
        filter = node.inputs[1]
        wrong = graph.constants[filter].copy()
        wrong.flat[3] += 0.5
        return graph.with_(constants={**graph.constants, filter: wrong})

    followed_by(monkeypatch, name, broken)
    report = check_passes(*small())
    assert not report.ok
    assert f"pass '{name}': conv " in str(report) and "values differ: at [0, 0, " in str(report)


def test_wrong_game_rule_is_attributed_to_the_rules_pass():
    def wrong(match):
        return match.node("neg", match.last.inputs, match.last.attrs)

    rule = ops.register_rule(ops.Rule("abs is neg", ("abs",), wrong))
    try:
        report = check_passes(*small())
    finally:
        unregister_rule(rule)
    assert "pass 'rules': neg 't3'" in report.fault


def test_wrong_constant_folding_is_detected(monkeypatch):
    net = Net(2, 3)
    graph = net.graph("add(x, exp(constant(1.0)))")

    def wrong(graph):
        values = {"t0": graph.constants["t0"] + np.float32(0.01)}
        return graph.with_(constants={**graph.constants, **values})

    followed_by(monkeypatch, "fold", wrong)
    assert "pass 'fold': exp 't0'" in check_passes(graph, net.input()).fault
