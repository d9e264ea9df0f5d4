"""Tests of attention and of the normalization before it: products that store heads, and rows."""

import pytest

from cml_engine.compiler.optimize import optimize
from tests.fixtures.graphs import Net, check_session

pytestmark = pytest.mark.gpu


def heads_of(net, x, heads):
    *batch, rows, columns = net.shape(x)
    shape = [*batch, rows, heads, columns // heads]
    parts = net(f"reshape({x}, shape={shape}, axis_start=0, axis_count=-1)")
    return net(f"transpose({parts}, axes=[0, 2, 1, 3])")


def attention(batch, rows, heads, width):
    """Returns a graph that normalizes rows and attends to them, and its inputs."""
    columns = heads * width
    net = Net(batch, rows, columns)
    mean, variance = net.moments("x", [2])
    one, zero = net("constant(1.0)"), net("constant(0.0)")
    x = net(f"batch_normalization(x, {mean}, {variance}, {zero}, {one}, epsilon=1e-3)")
    x = net(f"add(mul({x}, random(1, 1, {columns})), random(1, 1, {columns}))")
    projected = []
    for _ in range(3):
        matrix = net.random(1, columns, columns)
        y = net.op("matmul", x, matrix, transposeA=False, transposeB=True)
        y = net(f"mul(add({y}, random(1, 1, {columns})), constant(0.3))")
        projected.append(heads_of(net, y, heads))
    q, k, v = projected
    scores = net(f"softmax({net.op('matmul', q, k, transposeA=False, transposeB=True)}, axes=[3])")
    mixed = net.op("matmul", scores, v, transposeA=False, transposeB=False)
    mixed = net(f"transpose({mixed}, axes=[0, 2, 1, 3])")
    shape = [batch, rows, columns]
    net(f"add(reshape({mixed}, shape={shape}, axis_start=0, axis_count=-1), x)")
    return net.graph(), net.input()


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("sizes", [(2, 7, 3, 5), (1, 9, 2, 32), (1, 1, 1, 1)])
def test_attention_gives_the_reference(sizes, software, gpu, set_limits):
    set_limits(software=software)
    graph, inputs = attention(*sizes)

    ops = [node.op for node in optimize(graph).nodes]
    assert "standardize" in ops and "transpose" not in ops
    assert ("matmul_heads" in ops) == (sizes != (1, 1, 1, 1))  # whose transposes move nothing
    check_session(graph, gpu, inputs)
