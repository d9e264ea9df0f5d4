"""Tests of the passes: graphs that each one changes, graphs that it must keep, and refusals."""

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.bypass import bypass
from cml_engine.compiler.passes.cleanup import (
    eliminate_dead_code,
    merge_common_subexpressions,
)
from cml_engine.compiler.passes.fold_affine import fold_affine
from cml_engine.compiler.passes.fold_padding import fold_padding
from cml_engine.compiler.passes.fold_slices import fold_slices
from cml_engine.compiler.passes.fuse_elementwise import MAX_CHAIN, fuse_elementwise
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.passes.raise_elementwise import raise_elementwise
from cml_engine.compiler.passes.rules import Rule, _Sweep, register_rule, rewrite, unregister_rule
from cml_engine.compiler.passes.sink_transposes import sink_transposes
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import ModelError, OperatorError, ShapeError, Source
from cml_engine.ir.graph import Attrs, Epilogue, Fact, Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops.elementwise.kernels.elementwise import MAX_OPERANDS
from tests.fixtures.graphs import BLOCKS, Net, node


def operators(graph):
    return [node.op for node in graph.nodes]


def agree(graph, changed, inputs):
    expected, got = CpuProgram(graph).run(inputs), CpuProgram(changed).run(inputs)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("block", "steps"), [("mobilenet", 3), ("unet", 4), ("se", 5), ("layer_norm", 2)]
)
def test_common_blocks_optimize_to_few_nodes(block, steps):
    net = BLOCKS[block]()
    graph = optimize(net.graph())
    assert len(graph.nodes) == steps, [n.title for n in graph.nodes]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("inner", ["conv", "deconv", "linear"])
@pytest.mark.parametrize("outer", ["batch_norm", "mul", "div", "add", "sub", "rsub"])
def test_affine_operators_go_into_the_weights(inner, outer, groups):
    net = Net(3, 4) if inner == "linear" else Net(2, 4, 5, 6)
    if inner == "linear":
        h = net("linear(x, random(8, 4), random(1, 8))")
    elif inner == "deconv":
        h = net.deconv("x", 8, groups)
    else:
        h = net.conv("x", 8, 3, groups)
    operand = net.random(1, 8, low=0.5) if groups > 1 else net.random(low=0.5)
    if outer == "batch_norm":
        h = net.batch_norm(h)
    elif outer == "rsub":
        h = net(f"sub({operand}, {h})")
    else:
        h = net(f"{outer}({h}, {operand})")
    graph = net.graph(h)
    folded = fold_affine(graph)
    assert operators(folded) == [inner]
    agree(graph, folded, net.input())


@pytest.mark.parametrize(
    "text",
    [
        "mul({h}, random(1, 1, 5))",  # by row
        "mul({h}, relu({h}))",  # no constant
        "sub({h}, {h})",
        "div({h}, constant(0.0))",  # weights would be infinite
        "div(constant(1.0), {h})",
        "add({h}, random(1, 4, 5, 5))",
    ],
)
def test_operators_that_are_not_affine_per_channel_stay(text):
    net = Net(1, 4, 5, 5)
    graph = net.graph(net(text.format(h=net.conv("x", 4))))
    assert operators(fold_affine(graph)) == operators(graph)


def test_a_conv_with_other_readers_or_updated_weights_is_not_folded():
    net = Net(1, 4, 5, 5)
    conv = net.conv("x", 4)
    out = net.batch_norm(conv)
    assert operators(fold_affine(net.graph(conv, out))) == ["conv", "batch_normalization"]
    bias = net.nodes[0].inputs[2]
    graph = net.graph(out).with_(updates=((bias, net(f"neg({bias})")),))
    assert "batch_normalization" in operators(fold_affine(graph))


ZEROS = "border='constant', value=0.0"


@pytest.mark.parametrize(
    "conv",
    ["", ", padding=[(0, 0), (0, 0)]", ", padding=[(1, 0), (2, 1)], stride=[2, 1]",
     ", stride=[3, 2], dilation=[2, 1]"],
)  # fmt: skip
def test_zeros_around_a_conv_are_its_padding(conv):
    net = Net(1, 3, 9, 8)
    graph = net.graph(f"conv(pad(x, padding=[(0, 0), (0, 0), (1, 2), (3, 0)], {ZEROS}), 4{conv})")
    folded = fold_padding(graph)
    assert operators(folded) == ["conv"]
    agree(graph, folded, net.input())


SIDES = "padding=[(0, 0), (0, 0), (1, 1), (1, 1)]"


@pytest.mark.parametrize(
    "text",
    [
        f"conv(pad(x, padding=[(0, 0), (0, 0), (1, 1), (-1, 1)], {ZEROS}), 4)",
        f"conv(pad(x, padding=[(1, 0), (0, 0), (1, 1), (1, 1)], {ZEROS}), 4)",
        f"conv(pad(x, {SIDES}, border='constant', value=1.0), 4)",
        f"conv(pad(x, {SIDES}, border='replicate', value=0.0), 4)",
        f"conv(pad(x, {SIDES}, {ZEROS}), 4, border='replicate')",
    ],
)
def test_unfoldable_pads_are_kept(text):
    net = Net(1, 3, 9, 8)
    assert operators(fold_padding(net.graph(net(text)))) == ["pad", "conv"]


def test_identity_operators_are_bypassed():
    net = Net(1, 3, 4, 5)
    h = net("copy(x)")
    h = net(f"pad({h}, padding={[(0, 0)] * 4}, border='constant', value=1.0)")
    h = net.op("mul", net.constant(np.ones((1, 3))), h)
    h = net(f"transpose(transpose({h}, axes=[0, 2, 3, 1]), axes=[0, 3, 1, 2])")
    h = net(f"transpose(exp({h}), axes=[1, 0, 2, 3])")
    graph = net.graph(f"neg({h})")
    changed = bypass(graph)
    assert operators(changed) == ["exp", "reshape", "neg"]
    agree(graph, changed, net.input())


def test_output_copy_is_not_bypassed():
    net = Net(2, 3)
    graph = net.graph("copy(x)")
    assert operators(bypass(graph)) == ["copy"]


def test_outputs_and_changing_variables_are_not_merged():
    net = Net(2, 3)
    one, two = net("exp(x)"), net("exp(x)")
    assert operators(merge_common_subexpressions(net.graph(one, two))) == ["exp", "exp"]
    net = Net(2, 3)
    a, b = net.constant([0.5]), net.constant([0.5])
    out = net(f"sub(add(x, {a}), add(x, {b}))")
    graph = net.graph(out)
    assert operators(merge_common_subexpressions(graph)) == ["add", "sub"]
    changing = graph.with_(updates=((a, "t0"),))
    assert operators(merge_common_subexpressions(changing)) == ["add", "add", "sub"]


def test_chains_are_as_long_as_kernels_allow():
    net = Net(2, 3)
    h = "x"
    for _ in range(MAX_CHAIN + 1):
        h = net(f"exp({h})")
    assert operators(fuse_elementwise(net.graph(h))) == ["exp", "exp"]
    net, h = Net(2, 3), "x"
    for _ in range(MAX_OPERANDS):
        h = net(f"add(random(2, 3), {h})")
    fused = fuse_elementwise(net.graph(h))
    assert [len(set(node.reads)) for node in fused.nodes] == [MAX_OPERANDS, 2]
    assert fused.nodes[0].epilogues[0].position == 1
    agree(net.graph(h), fused, net.input())


def test_a_chain_stops_where_the_shape_grows_or_another_node_reads_it():
    net = Net(1, 3)
    grown = net("add(exp(x), random(2, 3))")
    graph = net.graph(grown)
    assert operators(fuse_elementwise(graph)) == ["exp", "add"]
    net = Net(2, 3)
    e = net("exp(x)")
    graph = net.graph(f"mul({e}, x)", f"neg({e})")
    assert operators(fuse_elementwise(graph)) == ["exp", "mul", "neg"]
    net = Net(2, 3)
    e = net("exp(x)")
    graph = net.graph(f"abs({e})", e)
    assert operators(fuse_elementwise(graph)) == ["exp", "abs"]


def test_joining_branches_fuse_into_one_kernel():
    net = Net(2, 3)
    a, b = net("mul(x, random(2, 3))"), net("div(random(2, 3), x)")
    difference = net(f"sub(abs({a}), {b})")
    graph = net.graph(difference)
    fused = fuse_elementwise(graph)
    assert operators(fused) == ["div"]
    assert [(e.op, e.position, e.own) for e in fused.nodes[0].epilogues] == [
        ("mul", None, ()),
        ("abs", 0, ()),
        ("sub", 0, ((1, 0),)),
    ]
    agree(graph, fused, net.input())


def test_result_read_twice_within_one_fused_kernel():
    net = Net(2, 3)
    h = net("add(x, random(2, 3))")
    gated = net(f"mul(sigmoid(neg({h})), {h})")
    squared = net(f"mul({gated}, {gated})")
    graph = net.graph(f"clamp({squared}, {h}, {gated})")
    fused = fuse_elementwise(graph)
    assert operators(fused) == ["add"]
    assert [(e.op, e.position, e.own) for e in fused.nodes[0].epilogues] == [
        ("neg", 0, ()),
        ("sigmoid", 0, ()),
        ("mul", 0, ((1, 0),)),
        ("mul", 0, ((1, 3),)),
        ("clamp", 0, ((1, 0), (2, 3))),
    ]
    agree(graph, fused, net.input())


def test_the_plan_of_a_chain_names_it_and_sums_its_cost():
    net = Net(2, 8, 4, 4)
    graph = net.graph("mul(sigmoid(x), x)")
    apart, fused = graph, fuse_elementwise(graph)
    one, other = (lower(g, Limits(), choose_layout(g)) for g in (apart, fused))
    (step,) = other.steps
    assert (step.op, step.fused, len(step.bindings)) == ("sigmoid", ("mul",), 2)
    assert step.cost.flops == one.cost.flops and step.cost.bytes < one.cost.bytes
    assert other.step_costs()[0].key.startswith("sigmoid+mul elementwise-")


def test_registered_rule_applies_until_unregistered():
    net = Net(2, 3)
    graph = net.graph("neg(neg(exp(x)))")
    rule = Rule("two signs", ("neg", "neg"), lambda m: m.node("copy", m.first.inputs, m.last.attrs))
    register_rule(rule)
    try:
        assert operators(optimize(graph, frozenset({"chains"}))) == ["exp", "copy"]
        assert operators(optimize(graph, frozenset({"chains", "rules"}))) == ["exp", "neg", "neg"]
    finally:
        unregister_rule(rule)
    assert operators(optimize(graph, frozenset({"chains"}))) == ["exp", "neg", "neg"]
    with pytest.raises(OperatorError, match="rule 'two signs' is not registered"):
        unregister_rule(rule)


def test_a_rule_that_changes_the_shape_is_refused_by_name():
    net = Net(2, 3)
    graph = net.graph("neg(transpose(x, axes=[1, 0]))")
    wrong = Rule(
        "wrong", ("transpose", "neg"), lambda m: m.node("neg", m.first.inputs, m.last.attrs)
    )
    with pytest.raises(OperatorError, match=r"rule 'wrong' at neg 't1'.*\[2,3\], wanted"):
        rewrite(graph, [wrong])
    with pytest.raises(OperatorError, match="empty pattern"):
        register_rule(Rule("nothing", (), lambda m: None))


@pytest.mark.parametrize(
    ("value", "fact", "cast"),
    [
        (np.array([[1.5]]), Fact("scalar", (1, 1)), np.float32),
        (np.array([0, 1]), Fact("integer", (2,)), np.int32),
        (3, Fact("integer", ()), np.int32),
        (np.zeros((2, 0), np.uint8), Fact("integer", (2, 0)), np.int32),
        (np.array([True, False]), Fact("logical", (2,)), np.bool_),
        (np.float16(0.5), Fact("scalar", ()), np.float32),
    ],
)
def test_a_rule_s_constants_keep_their_type_and_shape(value, fact, cast):
    net = Net(2, 3)
    graph = net.graph("neg(x)")

    def replace(match):
        name = match.add_constant("k", value)
        np.testing.assert_array_equal(match.constant(name), value)
        return match.node("copy", (name,), match.last.attrs)

    with pytest.raises(OperatorError, match=f"its replacement gives {re.escape(str(fact))}, "):
        rewrite(graph, [Rule("constant", ("neg",), replace)])

    def beside(match):
        match.add_constant("k", value)
        return match.node("abs", match.last.inputs, match.last.attrs)

    sweep = _Sweep(graph, [Rule("beside", ("neg",), beside)])
    assert sweep.run()
    changed = sweep.result()
    (name,) = changed.constants
    assert changed.facts[name] == fact and changed.constants[name].dtype == cast


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (lambda m: m.node("neg", ("nobody",), m.last.attrs), "reads 'nobody', which is not there"),
        (lambda m: m.node("neg", ("t1",), m.last.attrs), "reads 't1', which is not there yet"),
        (lambda m: ["x"], r"gives \['x'\], wanted a node"),
        (lambda m: 1 / 0, "its replace function failed: ZeroDivisionError"),
        (lambda m: m.add_constant("k", "text"), "wanted numbers or truth values, got <U4"),
        (lambda m: m.add_constant("k", 2**40), "does not fit into int32"),
    ],
)
def test_the_result_of_a_rule_is_checked(found, says):
    net = Net(2, 3)
    h = net("abs(x)")
    graph = net.graph(f"neg(exp({h}))")
    with pytest.raises(OperatorError, match=says):
        rewrite(graph, [Rule("wrong", ("abs",), found)])


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("neg", "wants a Rule, got str"),
        (Rule("r", "neg", lambda m: None), "its pattern is 'neg'; wanted a tuple"),
        (Rule("r", ("neg",), None), "replace must be a function"),
        (Rule("r", ("neg", "add"), lambda m: None, operands=1), "its operands are 1; wanted"),
        (Rule("r", ("neg", "add"), lambda m: None, operands=(-1,)), "wanted a tuple of their"),
    ],
)
def test_a_wrong_rule_is_refused_when_it_is_registered(rule, says):
    with pytest.raises(OperatorError, match=says):
        register_rule(rule)


TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


@pytest.mark.parametrize(
    ("between", "left"),
    [
        ("relu({h})", ["conv", "conv"]),
        ("mul({h}, constant(0.5))", ["conv", "conv"]),
        ("mul({h}, random(1, 1, 1, 4))", ["conv", "conv"]),
        ("add({h}, random(1, 6, 1, 4))", ["conv", "add", "conv"]),
        ("exp(neg({h}))", ["conv", "neg", "conv"]),
        ("pad({h}, padding=[(0, 0), (1, 2), (0, 1), (0, 0)])", ["conv", "conv"]),
        ("slice({h}, axes=[3, 1], begin=[1, 2], end=[3, 5])", ["conv", "slice", "conv"]),
        (
            "sub({h}, mean_reduce({h}, axes=[1, 2]))",
            ["conv", "transpose", "mean_reduce", "sub", "transpose", "conv"],  # h has two readers
        ),
        (
            "mean_reduce({h}, axes=[1, 3])",
            ["conv", "mean_reduce", "reshape", "reshape", "conv"],  # no large tensor is transposed
        ),
    ],
)
def test_transposes_cancel_across_elementwise_operators(between, left):
    net = Net(2, 3, 6, 5)
    h = net(between.format(h=net(f"transpose(conv(x, 4), axes={TO_LAST})")))
    graph = net.graph(f"conv(transpose({h}, axes={TO_FIRST}), 2)")
    optimized = optimize(graph)
    assert operators(optimized) == left
    agree(graph, optimized, net.input())


def test_transposes_sink_through_add_and_concat():
    for op, attrs, channels in (("add", {}, 4), ("concat", {"axis": 3}, 8)):
        net = Net(1, 3, 6, 5)
        a, b = (net(f"transpose(conv(x, 4), axes={TO_LAST})") for _ in range(2))
        h = net.op(op, a, b, **attrs)
        graph = net.graph(net.conv(net(f"transpose({h}, axes={TO_FIRST})"), 2))
        assert net.shape(h)[3] == channels
        optimized = optimize(graph)
        assert "transpose" not in operators(optimized)
        agree(graph, optimized, net.input())


def test_transposes_that_cannot_be_moved():
    net = Net(1, 3, 4, 5)
    one = net(f"transpose(x, axes={TO_LAST})")
    other = net("transpose(neg(x), axes=[0, 3, 2, 1])")
    line = net(f"transpose(max_reduce(x, axes=[2, 3]), axes={TO_LAST})")
    grown = net(f"add({line}, transpose(exp(x), axes={TO_LAST}))")
    graph = net.graph(f"mul({one}, relu({one}))", other, grown)
    assert sink_transposes(graph).nodes == graph.nodes


INSIDE = [(0, 0), (0, 0)]
SHUFFLED = (
    "reshape(transpose(reshape({}, shape=[1, 2, 2, 2, 6, 5]), axes=[0, 1, 4, 2, 5, 3]), "
    "shape=[1, 2, 12, 10])"
)


def test_elementwise_operators_move_before_a_pixel_shuffle():
    net = Net(1, 3, 6, 5)
    shuffled = SHUFFLED.format("conv(x, 8)")
    graph = net.graph(net(f"mul(tanh({shuffled}), random(1, 1))"))
    optimized = optimize(graph)
    assert operators(optimized) == ["conv", "reshape", "transpose", "reshape"]
    assert [e.op for e in optimized.nodes[0].epilogues] == ["tanh", "mul"]
    agree(graph, optimized, net.input())


def test_sums_move_before_reshapes():
    net = Net(1, 3, 6, 5)
    rows = [net("reshape(conv(x, 8), shape=[1, 8, 30])") for _ in range(2)]
    optimized = optimize(graph := net.graph(net(f"add({rows[0]}, {rows[1]})")))
    assert operators(optimized) == ["conv", "reshape", "reshape", "conv", "reshape"]
    agree(graph, optimized, net.input())


@pytest.mark.parametrize("last", ["mul({r}, random(1, 2))", "add({r}, {r})", "sub(tanh({r}), {r})"])
def test_elementwise_operators_that_stay_behind_a_pixel_shuffle(last):
    net = Net(1, 3, 6, 5)
    shuffled = net(SHUFFLED.format("conv(x, 8)"))
    graph = net.graph(net(last.format(r=shuffled)))
    assert raise_elementwise(graph).nodes == graph.nodes


CROP = "axes=[2, 3], begin=[1, 2], end=[8, -1]"


def test_slices_fold_into_convolutions():
    net = Net(2, 3, 9, 10)
    cut = net(f"slice(x, {CROP}, stride=[])")
    scaled = net(f"mul({cut}, {net.constant(np.full((1, 1), 0.5))})")
    graph = net.graph(
        net.conv(cut, 4, padding=[(0, 0), (0, -1)]), net.conv(scaled, 4, padding=INSIDE)
    )
    optimized = optimize(graph)
    assert operators(optimized) == ["mul", "conv", "conv"]
    assert [n.attrs["padding"] for n in optimized.nodes[1:]] == [
        [(-1, -1), (-2, -2)],
        [(-1, -1), (-2, -1)],
    ]
    agree(graph, optimized, net.input())


@pytest.mark.parametrize("padding", [[(1, 0), (0, 0)], [(0, 0), (0, 1)]])
def test_slices_before_a_border_stay(padding):
    net = Net(1, 3, 9, 10)
    graph = net.graph(net.conv(net(f"slice(x, {CROP}, stride=[])"), 4, padding=padding))
    assert operators(fold_slices(graph)) == ["slice", "conv"]


def test_slices_that_others_read_or_that_skip_channels_stay():
    net = Net(1, 3, 9, 10)
    cut = net(f"slice(x, {CROP}, stride=[])")
    other = net("slice(x, axes=[1, 2], begin=[0, 1], end=[2, 9], stride=[])")
    strided = net("slice(x, axes=[2], begin=[0], end=[9], stride=[2])")
    results = [net.conv(name, 4, padding=INSIDE) for name in (cut, other, strided)]
    graph = net.graph(*results, net(f"max_reduce({cut}, axes=[2])"))
    assert fold_slices(graph).nodes == graph.nodes


# ---------------------------------------------------------------- removal, merging and fusion


def test_nodes_merge_only_if_attributes_are_equal():
    net = Net(1, 4, 3, 5)
    sums = [net(f"sum_reduce(x, axes={axes})") for axes in ([2], [3], [2])]
    graph = net.graph(f"mul(mul({sums[0]}, {sums[1]}), {sums[2]})")
    merged = merge_common_subexpressions(graph)
    assert [n.attrs["axes"] for n in merged.nodes if n.op == "sum_reduce"] == [[2], [3]]
    agree(graph, merged, net.input())


def test_nodes_of_an_update_are_not_dead():
    net = Net(1, 4)
    state = net.constant(np.ones((1, 4)))
    new = net(f"add(x, {state})")
    graph = net.graph("relu(x)").with_(updates=((state, new),))
    kept = eliminate_dead_code(graph)
    assert set(operators(kept)) == {"add", "relu"} and state in kept.constants
    without = eliminate_dead_code(graph.with_(updates=()))
    assert operators(without) == ["relu"] and state not in without.constants


def test_two_transposes_are_one_in_their_order():
    net = Net(2, 3, 4, 5)
    graph = net.graph("transpose(transpose(x, axes=[1, 2, 0]), axes=[0, 2, 3, 1])")
    (transpose,) = bypass(graph).nodes
    assert transpose.attrs["axes"] == [1, 0, 3, 2]
    agree(graph, bypass(graph), net.input())


def conv_chain():
    """Returns a net x -> conv -> prelu -> conv with 8 channels, and the names of the last two
    results."""
    net = Net(1, 3, 9, 7)
    first = net("prelu(conv(x, 8), random(1, 8))")
    return net, first, net.conv(first, 8)


def test_epilogues_are_fused_in_order():
    net, first, second = conv_chain()
    fused = optimize(net.graph(f"relu(add({second}, {first}))"))
    assert operators(fused) == ["conv", "conv"]
    slope = net.nodes[1].inputs[1]
    assert fused.nodes[0].epilogues == (Epilogue("prelu", (slope,), Attrs()),)
    assert [e.op for e in fused.nodes[1].epilogues] == ["add", "relu"]
    assert fused.nodes[1].outputs == fused.outputs


def test_products_take_an_operand_for_each_column():
    net = Net(1, 6, 5)
    product = net.op(
        "matmul", "x", net.constant(np.ones((1, 5, 6))), transposeA=False, transposeB=False
    )
    graph = net.graph(net(f"mul(add({product}, random(1, 1, 6)), random(1, 6, 1))"))
    optimized = optimize(graph)
    assert operators(optimized) == ["matmul", "mul"]
    assert [e.op for e in optimized.nodes[0].epilogues] == ["add"]
    agree(graph, optimized, net.input())


def normalized_rows(net, x, axes, scale="constant(1.0)", offset="constant(0.0)"):
    """Adds a normalization of ``x`` over ``axes``; returns the names of its result and mean."""
    mean, variance = net.moments(x, axes)
    operands = f"{x}, {mean}, {variance}, {net(offset)}, {net(scale)}"
    return net(f"batch_normalization({operands}, epsilon=1e-5)"), mean


@pytest.mark.parametrize(
    ("scale", "offset", "epilogues"),
    [
        ("constant(1.0)", "constant(0.0)", []),
        ("random(1, 1, 20)", "random(1, 1, 20)", ["mul", "add"]),
        ("constant(2.0)", "constant(0.0)", ["mul"]),
    ],
)
def test_a_normalization_of_rows_is_one_operator(scale, offset, epilogues):
    net = Net(2, 7, 20)
    graph = net.graph(normalized_rows(net, "x", [2], scale, offset)[0])
    changed = optimize(graph)
    assert operators(changed) == ["standardize"]
    assert [e.op for e in changed.nodes[0].epilogues] == epilogues
    agree(graph, changed, net.input())


def written_out(net, x, axis=2, square="sqr({0})", last="div({0}, sqrt({1}))", epsilon="1e-5"):
    """Adds a normalization of ``x`` as exporters write it; returns the names of its result and of
    the difference from the mean."""
    difference = net(f"sub({x}, mean_reduce({x}, axes=[{axis}]))")
    variance = f"mean_reduce({square.format(difference)}, axes=[{axis}])"
    safe = net(f"add({variance}, constant({epsilon}))")
    return net(last.format(difference, safe)), difference


@pytest.mark.parametrize("square", ["sqr({0})", "mul({0}, {0})", "pow({0}, constant(2.0))"])
@pytest.mark.parametrize(
    "last", ["div({0}, sqrt({1}))", "mul({0}, rsqrt({1}))", "mul(rsqrt({1}), {0})"]
)
def test_a_normalization_that_is_written_out_is_one_operator(square, last):
    net = Net(2, 7, 20)
    rows = written_out(net, "x", square=square, last=last)[0]
    graph = net.graph(net(f"add(mul({rows}, random(1, 1, 20)), random(1, 1, 20))"))
    changed = optimize(graph)
    assert operators(changed) == ["standardize"]
    assert [e.op for e in changed.nodes[0].epilogues] == ["mul", "add"]
    agree(graph, changed, net.input())


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1},
        {"square": "pow({0}, constant(3.0))"},
        {"square": "mul({0}, x)"},
        {"last": "div(x, sqrt({1}))"},
        {"last": "div(sqrt({1}), {0})"},
        {"last": "div({0}, relu({1}))"},
        {"last": "add(div({0}, sqrt({1})), {1})"},
        {"last": "add(div({0}, sqrt({1})), {0})"},
    ],
)
def test_what_only_looks_like_a_normalization_stays(options):
    net = Net(2, 7, 20)
    graph = net.graph(written_out(net, "x", **options)[0])
    changed = optimize(graph)
    assert "standardize" not in operators(changed)
    agree(graph, changed, net.input())


def test_a_difference_that_is_a_result_stays():
    net = Net(2, 7, 20)
    assert "standardize" not in operators(optimize(net.graph(*written_out(net, "x"))))


def test_normalizations_that_are_not_of_rows_stay():
    def is_one(shape, axes, inner="x", kept=1):
        net = Net(*shape)
        results = normalized_rows(net, net(inner) if "(" in inner else inner, axes)
        return "standardize" in operators(optimize(net.graph(*results[:kept])))

    assert is_one((1, 8, 20), [2])
    assert not is_one((1, 8, 20), [1])
    assert not is_one((1, 8, 5, 20), [3], "conv(x, 8, 1)")  # may lie in blocks of channels
    assert not is_one((1, 2, 8193), [2])  # too long for a workgroup
    assert not is_one((1, 8, 20), [2], kept=2)  # its mean is an output


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("concat({0}, {1}, axis=1)", True),
        ("concat({0}, relu(x), axis=2)", False),  # most of it is no slice
        ("concat({0}, {0}, axis=1)", False),  # one tensor, bound twice
        ("concat({0}, slice(x, axes=[2], begin=[0], end=[6], stride=[2]), axis=1)", True),
        ("concat(relu({0}), {1}, axis=1)", True),
    ],
)
def test_slices_before_a_concat_are_its_windows(text, is_one):
    net = Net(1, 3, 7, 4)
    cut = "slice({}, axes=[2], begin=[{}], end=[{}], stride=[])"
    first = net(cut.format("x", 2, 5))
    second = net(cut.format("sigmoid(x)", 4, 7))
    graph = net.graph(net(text.format(first, second)))
    changed = optimize(graph)
    assert ("concat_windows" in operators(changed)) == is_one
    one_stays = "stride" in text or "relu({0}" in text
    assert ("slice" in operators(changed)) == (not is_one or one_stays)
    agree(graph, changed, net.input())


def test_slices_of_maps_in_blocks_stay():
    net = Net(1, 8, 7, 4)
    first, second = (
        net(f"slice(conv(x, 8), axes=[2], begin=[{i}], end=[{i + 5}], stride=[])") for i in (0, 2)
    )
    graph = net.graph(net.conv(net(f"concat({first}, {second}, axis=1)"), 4))
    assert "concat_windows" not in operators(optimize(graph))


def single_net(*shape):
    """Returns a net with a second tensor of one value, which is computed, and its name."""
    net = Net(*shape)
    return net, net("add(max_reduce(x, axes=[0, 1, 2, 3]), constant(5.0))")


def test_factors_of_single_values_go_to_the_kernels_around():
    net, single = single_net(1, 1, 6, 7)
    graph = net.graph(net(f"div(conv(x, 8), mul({single}, constant(4.0)))"))
    changed = optimize(graph)
    assert operators(changed) == ["max_reduce", "add", "conv"]
    assert [e.op for e in changed.nodes[2].epilogues] == ["div"]
    agree(graph, changed, net.input())
    net, single = single_net(1, 1, 6, 7)
    graph = net.graph(net(f"div(conv(x, 8), mul({single}, constant(3.0)))"))
    assert operators(optimize(graph)) == ["max_reduce", "add", "conv"]  # mul is in the chain


@pytest.mark.parametrize(
    ("others", "ops"),
    [
        ([], ["max_reduce", "add", "conv", "conv"]),
        (["relu({0})"], ["max_reduce", "add", "conv", "conv", "relu"]),  # add and div are one
        (["conv({0}, 4, padding=[(1, 1), (1, 1)])"], ["max_reduce", "add", "conv", "conv", "conv"]),
    ],
)
def test_a_quotient_before_convolutions_is_an_epilogue_of_each(others, ops):
    net, single = single_net(1, 3, 6, 7)
    scaled = net(f"div(x, {single})")
    results = []
    for text in ["conv({0}, 5)", "conv({0}, 2, 1)", *others]:
        results.append(net(text.format(scaled)))
    for node_ in net.nodes:
        if node_.op == "conv":
            net.constants[node_.inputs[2]] = np.zeros_like(net.constants[node_.inputs[2]])
    graph = net.graph(*results)
    changed = optimize(graph)
    assert sorted(operators(changed)) == sorted(ops)
    agree(graph, changed, net.input())


def test_a_convolution_of_one_value_is_in_the_chain_that_computes_it():
    net, single = single_net(1, 1, 6, 7)
    graph = net.graph(net(f"conv(log2(mul({single}, constant(0.3))), 9, 1)"))
    changed = optimize(graph)
    assert operators(changed) == ["max_reduce", "add"]
    assert [e.op for e in changed.nodes[1].epilogues] == ["mul", "log2", "mul", "add"]
    agree(graph, changed, net.input())


def projection(net, x, columns, *epilogues):
    """Adds a product of ``x`` with a constant matrix; returns the name of its result."""
    matrix = net.random(1, net.shape(x)[-1], columns)
    y = net.op("matmul", x, matrix, transposeA=False, transposeB=False)
    for text in epilogues:
        y = net(text.format(y))
    return y


def in_heads(net, x, heads):
    *batch, rows, columns = net.shape(x)
    shape = [*batch, rows, heads, columns // heads]
    parts = net(f"reshape({x}, shape={shape}, axis_start=0, axis_count=-1)")
    return net(f"transpose({parts}, axes=[0, 2, 1, 3])")


def test_attention_needs_no_transposes():
    net, heads = Net(2, 7, 12), 3
    q, k, v = (
        in_heads(net, projection(net, "x", 12, "add({}, random(1, 1, 12))"), heads)
        for _ in range(3)
    )
    scores = net.op("matmul", q, k, transposeA=False, transposeB=True)
    mixed = net.op("matmul", scores, v, transposeA=False, transposeB=False)
    back = net(f"transpose({mixed}, axes=[0, 2, 1, 3])")
    graph = net.graph(
        projection(net, net(f"reshape({back}, shape=[2, 7, 12], axis_start=0, axis_count=-1)"), 5)
    )
    changed = optimize(graph)
    moves = [op for op in operators(changed) if op != "reshape"]
    assert moves == ["matmul_parts", "matmul", "matmul_heads", "matmul"]
    agree(graph, changed, net.input())


@pytest.mark.parametrize(
    ("axes", "count", "left"),
    [
        ([0, 1, 3, 2], 1, []),
        ([0, 2, 3, 1], 1, ["transpose"]),  # rows and heads are still swapped
        ([0, 2, 1, 3], 1, ["transpose"]),
        ([1, 0, 3, 2], 1, ["transpose"]),
        ([0, 1, 3, 2], 2, ["transpose"]),  # a transpose with another reader
    ],
)
@pytest.mark.parametrize("flipped", [False, True])
def test_products_read_a_matrix_transposed(axes, count, left, flipped):
    net = Net(2, 5, 6, 7)
    y = net(f"transpose(x, axes={axes})")
    *batch, rows, columns = net.shape(y)
    a = net.random(*batch, 3, columns if flipped else rows)
    results = [net.op("matmul", a, y, transposeA=False, transposeB=flipped), net(f"relu({y})")]
    graph = net.graph(*results[:count])
    changed = optimize(graph)
    assert [op for op in operators(changed) if op == "transpose"] == left
    product = next(n for n in changed.nodes if n.op == "matmul")
    is_swapped = count == 1 and axes in ([0, 1, 3, 2], [0, 2, 3, 1])
    assert product.attrs["transposeB"] == (flipped != is_swapped)
    agree(graph, changed, net.input())


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 2, 3, 1]])
def test_attention_as_exporters_write_it_is_joined(order):
    net, heads = Net(2, 7, 12), 3
    x = written_out(net, "x")[0]
    q, k, v = (
        net(f"reshape({y}, shape=[2, 7, {heads}, 4], axis_start=0, axis_count=-1)")
        for y in [projection(net, x, 12, "add({}, random(1, 1, 12))") for _ in range(3)]
    )
    q, v = (net(f"transpose({y}, axes=[0, 2, 1, 3])") for y in (q, v))
    k = net(f"transpose({k}, axes={order})")
    k = k if order[-1] == 1 else net(f"transpose({k}, axes=[0, 1, 3, 2])")
    scores = net.op("matmul", q, k, transposeA=False, transposeB=False)
    mixed = net.op("matmul", scores, v, transposeA=False, transposeB=False)
    graph = net.graph(net(f"transpose({mixed}, axes=[0, 2, 1, 3])"))
    changed = optimize(graph)
    ops = [op for op in operators(changed) if op != "reshape"]
    assert ops == ["standardize", "matmul_parts", "matmul", "matmul_heads"]
    agree(graph, changed, net.input())


ADD = "add({}, random(1, 1, 12))"


@pytest.mark.parametrize(
    ("products", "parts"),
    [
        ([(12, ADD), (12, ADD, "mul({}, constant(0.3))"), (12,)], [3]),
        ([(12,)] * 5, [4]),
        ([(12,)] * 6, [4, 2]),
        ([(12,), (8,), (8,)], [2]),
        ([(12,), (12, "relu({})")], []),
        ([(12,), (12, "mul({}, constant(0.3))", ADD)], []),
        ([(12,), (12, "add({}, x)")], []),
        ([(4,), (4,)], []),  # few columns are reduced alone, more are not
    ],
)
def test_products_of_one_matrix_are_one(products, parts):
    net = Net(1, 7, 12)
    results = [projection(net, "x", *product) for product in products]
    graph = net.graph(*results)
    changed = optimize(graph)
    assert [n.attrs["parts"] for n in changed.nodes if n.op == "matmul_parts"] == parts
    agree(graph, changed, net.input())


@pytest.mark.parametrize(
    ("layers", "parts"),
    [
        (["linear(x, random(9, 12), random(1, 9))"] * 3, [3]),
        (["linear(x, random(9, 12), random(1, 9))", "linear(x, random(9, 12), constant(0.0))"], []),
        (
            ["linear(x, random(9, 12), random(1, 9))", "relu(linear(x, random(9, 12), random(9)))"],
            [],
        ),
        (["linear(x, random(9, 12), random(9))", "matmul(x, random(9, 12), transposeB=True)"], []),
    ],
)
def test_linears_of_one_matrix_are_one(layers, parts):
    net = Net(7, 12)
    graph = net.graph(*[net(text) for text in layers])
    changed = optimize(graph)
    assert [n.attrs["parts"] for n in changed.nodes if n.op == "matmul_parts"] == parts
    agree(graph, changed, net.input())


def test_products_that_are_not_alike_or_adjacent_stay():
    net = Net(1, 7, 12)
    y = projection(net, "x", 12)
    graph = net.graph(y, projection(net, y, 12))
    assert "matmul_parts" not in operators(optimize(graph))
    net = Net(1, 7, 12)
    y = projection(net, "x", 12)
    graph = net.graph(net(f"softmax({y}, axes=[2])"), projection(net, "x", 12))
    assert "matmul_parts" not in operators(optimize(graph))
    net = Net(1, 7, 2000)  # which tiles add in different numbers of dispatches
    graph = net.graph(projection(net, "x", 12), projection(net, "x", 12))
    assert "matmul_parts" not in operators(optimize(graph))
    net = Net(1, 7, 12)
    y = net("reshape(x, shape=[1, 12, 7], axis_start=0, axis_count=-1)")
    products = [net.op("matmul", "x", y, transposeA=False, transposeB=False) for _ in range(2)]
    computed = net.graph(net("add({}, {})".format(*products)), *products)
    assert "matmul_parts" not in operators(optimize(computed))


def test_transposes_that_no_product_can_store_stay():
    net = Net(1, 6, 12)
    y = projection(net, "x", 12)
    assert "transpose" in operators(optimize(net.graph(in_heads(net, y, 3), y)))
    net = Net(1, 6, 12)
    y = projection(net, "x", 12, "add({}, x)")  # is read in the order of the result
    assert "transpose" in operators(optimize(net.graph(in_heads(net, y, 3))))
    net = Net(1, 6, 12)
    parts = net(
        f"reshape({projection(net, 'x', 12)}, shape=[1, 6, 3, 4], axis_start=0, axis_count=-1)"
    )
    turned = net.graph(f"transpose({parts}, axes=[0, 2, 3, 1])")
    assert "transpose" in operators(optimize(turned))


@pytest.mark.parametrize(("shape", "is_fused"), [
    ("1, 6, 6", True), ("2, 6, 6", False), ("1, 6, 1", False), ("1, 1, 6", True)
])  # fmt: skip
def test_products_take_a_matrix_for_all_of_a_batch(shape, is_fused):
    net = Net(2, 6, 5)
    product = net.op("matmul", "x", net.random(1, 5, 6), transposeA=False, transposeB=False)
    graph = net.graph(net(f"add({product}, random({shape}))"))
    changed = optimize(graph)
    assert operators(changed) == (["matmul"] if is_fused else ["matmul", "add"])
    agree(graph, changed, net.input())


def test_a_result_with_two_readers_or_an_output_is_not_fused_away():
    net, _, conv = conv_chain()
    graph = optimize(net.graph(f"sub(relu({conv}), {conv})"))
    assert operators(graph) == ["conv", "conv", "relu"]
    assert graph.nodes[2].epilogues == (Epilogue("sub", (conv,), Attrs()),)
    net, _, conv = conv_chain()
    assert operators(optimize(net.graph(conv, f"relu({conv})"))) == ["conv", "conv", "relu"]


def test_constants_are_folded_but_not_variables_that_change():
    net, _, conv = conv_chain()
    slope = net.constant(np.full((1, 8), 0.25))
    square = net(f"mul({slope}, {slope})")
    graph = net.graph(f"mul({conv}, {square})")
    folded = optimize(graph, frozenset({"affine"}))
    assert_array_equal(folded.constants[square], np.full((1, 8), 0.0625, np.float32))
    changing = optimize(graph.with_(updates=((slope, square),)), frozenset({"affine"}))
    assert square not in changing.constants


def test_tensor_with_a_row_major_reader_stays_row_major():
    net, first, second = conv_chain()
    graph = optimize(net.graph(second, f"transpose({first}, axes=[0, 1, 3, 2])"))
    assert first not in choose_layout(graph)


# ---------------------------------------------------------------- graphs built in code


def test_shape_errors_name_line_and_operator():
    facts = {"x": Fact("scalar", (2, 3)), "k": Fact("scalar", (4,))}
    add = replace(node("y = add(x, k)"), source=Source("m.nnef", 7))
    graph = Graph("g", ("x", "k"), ("y",), (add,), facts)
    with pytest.raises(ShapeError, match=r"m\.nnef:7: add 'y'"):
        infer_facts(graph)


WRONG_GRAPHS = [
    ({"nodes": (node("y = neg(z)"),)}, "neg 'y': reads 'z', which nothing before"),
    ({"nodes": (node("x = neg(x)"),)}, "there is a tensor 'x' already"),
    ({"nodes": (node("k = neg(x)"),)}, "there is a tensor 'k' already"),
    ({"outputs": ("nobody",)}, "nothing gives its result 'nobody'"),
    ({"updates": (("k", "nobody"),)}, "nothing gives its result 'nobody'"),
    ({"updates": (("x", "y"),)}, "update of 'x', which is no variable"),
    ({"inputs": ("x", "z")}, "'z' has no fact"),
    ({"constants": {"k": np.zeros(3, np.float32)}}, r"constant 'k' is float32\[3\], wanted scalar"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG_GRAPHS)
def test_graph_built_in_code_is_checked(changes, says):
    facts = dict.fromkeys(("x", "k"), Fact("scalar", (2,)))
    graph = Graph("g", ("x",), ("y",), (node("y = neg(x)"),), facts, {"k": np.zeros(2, np.float32)})
    optimize(graph)
    with pytest.raises(ModelError, match=says):
        optimize(graph.with_(**changes))


def test_constants_are_converted_to_their_facts_dtype():
    facts = {"k": Fact("scalar", (2,)), "i": Fact("integer", ())}
    constants = {"k": np.array([0.5, 1.5]), "i": np.array(3)}
    made = infer_facts(Graph("g", (), ("k", "i"), (), facts, constants))
    assert made.constants["k"].dtype == np.float32 and made.constants["i"].dtype == np.int32
