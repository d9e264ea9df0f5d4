"""Tests that a network from ONNX has the same plan as from NNEF, so that the same kernels run."""

import pytest

pytest.importorskip("onnx")

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.limits import Limits
from tests.fixtures.graphs import (
    Net,
    dense_block,
    mobilenet_block,
    se_block,
    styled_block,
    unet_block,
)


def attention(length=16, width=8):
    net = Net(1, 2, length, width)
    logits = net(f"matmul(x, random(1, 2, {length}, {width}), transposeB=True)")
    weights = net(f"softmax(mul({logits}, constant(0.35)), axes=[3])")
    net(f"matmul({weights}, random(1, 2, {length}, {width}))")
    return net


def groups(size=12, channels=8):
    net = Net(1, channels, size, size)
    net.conv(net(f"relu(group_norm(conv(x, {2 * channels}), 4))"), channels)
    return net


NETS = {
    "mobilenet": mobilenet_block,
    "unet": unet_block,
    "se": se_block,
    "dense": dense_block,
    "styled": styled_block,
    "attention": attention,
    "groups": groups,
}


def steps(graph, software):
    """Returns the kernel, the defines, the workgroups and the parameters of each step of the
    plan."""
    optimized = optimize(graph)
    plan = lower(optimized, Limits(software=software), choose_layout(optimized))
    return [
        (str(step.path), sorted(step.defines.items()), step.groups, repr(step.params))
        for step in plan.steps
    ]


#: no operator in ONNX: normalizations by computed means, which are written out there
WRITTEN_OUT = ("styled", "groups")


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_exported_network_has_the_same_plan_steps(name, software, tmp_path):
    made = NETS[name]()
    graph = made.graph()
    cml.save(graph, tmp_path / "m.onnx")
    from_onnx = cml.load(tmp_path / "m.onnx")
    cml.save(graph if name not in WRITTEN_OUT else from_onnx, tmp_path / "m.nnef")
    from_nnef = cml.load(tmp_path / "m.nnef")
    assert steps(from_onnx, software) == steps(from_nnef, software)
