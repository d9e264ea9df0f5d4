"""Tests of sequences of tensors, which are resolved at load, against ONNX Runtime."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper

import cml_engine as cml
from tests.fixtures.onnx_models import load, model, node, nodes_of, subgraph
from tests.proofs.onnx_nodes import run_onnx

KNOWN = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "last": np.array(-1),
    "five": np.array(5), "sizes": np.array([1, 3, 2]), "true": np.array(True),
    "trips": np.array(3), "none": np.array([0, 4, 0, 2]),
}  # fmt: skip
CALLS = [
    "s = SplitToSequence(x); y = SequenceAt(s, one)",
    "s = SplitToSequence(x, axis=1, keepdims=0); y = SequenceAt(s, last)",
    "s = SplitToSequence(x, two, axis=-1); y = SequenceAt(s, two)",
    "s = SplitToSequence(x, five, axis=1); y = SequenceAt(s, one)",
    "s = SplitToSequence(x, sizes, axis=1); y = ConcatFromSequence(s, axis=1)",
    "s = SplitToSequence(x, sizes, axis=1, keepdims=0); y = SequenceAt(s, zero)",
    "s = SplitToSequence(x, none, axis=1); y = ConcatFromSequence(s, axis=1)",
    "s = SequenceConstruct(x, x, z); y = ConcatFromSequence(s, axis=0)",
    "s = SequenceConstruct(x, z); y = ConcatFromSequence(s, axis=0, new_axis=1)",
    "s = SequenceConstruct(x, z); y = ConcatFromSequence(s, axis=-1, new_axis=1)",
    "s = SequenceConstruct(x, z); n = Neg(x); t = SequenceInsert(s, n); y = SequenceAt(t, two)",
    "s = SequenceConstruct(x, z); n = Neg(x); t = SequenceInsert(s, n, last); "
    "y = ConcatFromSequence(t, axis=1)",
    "s = SequenceConstruct(x, z); n = Neg(x); t = SequenceInsert(s, n, two); "
    "y = ConcatFromSequence(t, axis=1)",
    "e = SequenceEmpty(); s = SequenceInsert(e, x); t = SequenceInsert(s, z, zero); "
    "y = ConcatFromSequence(t, axis=1)",
    "s = SequenceConstruct(x, z, x); t = SequenceErase(s); y = ConcatFromSequence(t, axis=0)",
    "s = SequenceConstruct(x, z, x); t = SequenceErase(s, zero); y = ConcatFromSequence(t, axis=0)",
    "s = SplitToSequence(x, two, axis=1); n = SequenceLength(s); f = Cast(n, to=1); y = Add(x, f)",
    "s = SplitToSequence(x, axis=1); n = SequenceLength(s); i = Sub(n, one); "
    "t = Identity(s); y = SequenceAt(t, i)",
]


@pytest.mark.parametrize("nodes", CALLS)
def test_sequence(nodes, backend, rng):
    inputs = {"x": rng.standard_normal((4, 6), np.float32),
              "z": rng.standard_normal((4, 6), np.float32)}  # fmt: skip
    agrees(f"z2 = Neg(z); z3 = Neg(z2); _w = Add(x, z3); {nodes}", inputs, backend)


def agrees(nodes, inputs, backend, **more):
    names = ", ".join(f"{name}: {list(array.shape)}" for name, array in inputs.items())
    network = model(nodes, names, "y", KNOWN, **more)
    network.graph.output[0].type.Clear()
    expected = run_onnx(network.SerializeToString(), inputs)["y"]
    assert_array_equal(cml.Session(load(network), backend).run(inputs)["y"], expected)


def sequence_type(shape):
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
    return helper.make_sequence_type_proto(tensor)


def test_sequence_that_a_loop_collects(backend, rng):
    """A list that a loop extends, as an exporter writes ``list.append``."""
    body = subgraph(
        "more = Identity(go); b = Add(a, a); t = SequenceInsert(s, b)",
        "i: int64[], go: bool[], a: [2, 3]",
        "more: bool[], b: [2, 3]",
    )
    body.input.append(helper.make_value_info("s", sequence_type([2, 3])))
    body.output.append(helper.make_value_info("t", sequence_type([2, 3])))
    nodes = ["e = SequenceEmpty()", node("_a, s2 = Loop(trips, true, x, e)", body=body),
             "y = ConcatFromSequence(s2, axis=0)"]  # fmt: skip
    agrees(nodes, {"x": rng.standard_normal((2, 3), np.float32)}, backend)


def test_branch_that_gives_a_sequence(backend, rng):
    branches = []
    for call in ("SplitToSequence(x, axis=1)", "SplitToSequence(x, two, axis=1)"):
        branch = subgraph(f"s = {call}", "", "")
        branch.output.append(helper.make_value_info("s", sequence_type(None)))
        branches.append(branch)
    nodes = [node("s = If(true)", then_branch=branches[0], else_branch=branches[1]),
             "y = SequenceAt(s, two)"]  # fmt: skip
    agrees(nodes, {"x": rng.standard_normal((2, 6), np.float32)}, backend)


def test_map_over_sequences(backend, rng):
    body = subgraph("c = Add(a, b); d = Mul(c, k)", "a: [2, 3], b: [2, 3], k: [2, 3]", "d: [2, 3]")
    nodes = ["s = SequenceConstruct(x, z)", "t = SequenceConstruct(z, z)",
             node("m = SequenceMap(s, t, x)", body=body),
             "y = ConcatFromSequence(m, axis=0)"]  # fmt: skip
    inputs = {name: rng.standard_normal((2, 3), np.float32) for name in "xz"}
    agrees(nodes, inputs, backend)


OPTIONALS = [
    "o = Optional(x); h = OptionalHasElement(o); g = OptionalGetElement(o); y = Where(h, g, z)",
    "h = OptionalHasElement(); y = Where(h, x, z)",
    "s = SequenceConstruct(x, z); o = Optional(s); t = OptionalGetElement(o); "
    "y = SequenceAt(t, one)",
]


@pytest.mark.parametrize("nodes", OPTIONALS)
def test_optional(nodes, backend, rng):
    inputs = {name: rng.standard_normal((4, 6), np.float32) for name in "xz"}
    agrees(f"_w = Add(x, z); {nodes}", inputs, backend, opset=18)


def test_missing_optional_value(backend):
    """ONNX Runtime cannot run this."""
    made = [node("o = Optional()", type=helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
            *nodes_of("h = OptionalHasElement(o); n = Neg(x); y = Where(h, x, n)")]  # fmt: skip
    graph = load(model(made, "x: [2]", "y: [2]"))
    assert_array_equal(cml.Session(graph, backend).run({"x": np.ones(2)})["y"], [-1, -1])


def test_sequence_leaves_no_operators():
    """Parts that are put together again leave only a split and a concatenation."""
    nodes = "s = SplitToSequence(x, two, axis=1); e = SequenceErase(s, one); " \
            "y = ConcatFromSequence(e, axis=1)"  # fmt: skip
    graph = load(model(nodes, "x: [4, 6]", "y", KNOWN))
    assert [n.op for n in graph.nodes] == ["split", "concat"]


REFUSED = {
    "a tensor": ("y = SequenceAt(x, one)", r"input 1 is float32\[4,6\], wanted a sequence"),
    "a sequence": ("s = SequenceConstruct(x); y = Relu(s)",
                   r"Relu 'y'.*input 1 is a sequence of float32\[4,6\], wanted a tensor"),
    "its shape": ("s = SequenceConstruct(x); y = Shape(s)", "wanted a tensor"),
    "position": ("s = SequenceConstruct(x); y = SequenceAt(s, one)", "position 1 of 1"),
    "insertion": ("s = SequenceConstruct(x); t = SequenceInsert(s, x, five); "
                  "y = SequenceAt(t, one)", "position 5 of 2"),
    "erased": ("e = SequenceEmpty(); t = SequenceErase(e); y = SequenceAt(t, one)",
               "position -1 of 0"),
    "sizes": ("s = SplitToSequence(x, sizes); y = SequenceAt(s, one)",
              r"parts of \[1, 3, 2\] elements of 4"),
    "size": ("s = SplitToSequence(x, zero); y = SequenceAt(s, one)", "parts of 0 elements"),
    "empty": ("e = SequenceEmpty(); y = ConcatFromSequence(e, axis=0)", "of no tensors"),
    "no element": ("o = Optional(); y = OptionalGetElement(o)", "input is a missing optional"),
    "optional": ("o = Optional(); y = Relu(o)", "input 1 is a missing optional.*wanted a tensor"),
    "nested": ("s = SequenceConstruct(x); t = SequenceConstruct(s); y = SequenceAt(t, zero)",
               "wanted a tensor"),
    "output": ("y = SplitToSequence(x)", r"the output 'y' is a sequence of float32\[1,6\]"),
    "unknown position": ("s = SplitToSequence(x); i = Cast(x, to=7); y = SequenceAt(s, i)",
                         "the position must be known when the model is loaded"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_use_is_refused(case):
    nodes, message = REFUSED[case]
    network = model(nodes, "x: [4, 6]", "y", KNOWN)
    network.graph.output[0].type.Clear()
    with pytest.raises(cml.ModelError, match=message):
        load(network)


def test_sequence_for_an_own_operator_is_refused():
    network = model("s = SequenceConstruct(x); y = my:Thing(s)", "x: [4, 6]", "y", KNOWN)
    with pytest.raises(cml.CmlError, match="Thing"):
        load(network)


def test_long_sequence_is_within_the_load_limits():
    network = model("s = SplitToSequence(x); y = SequenceAt(s, one)", "x: [50000000]", "y", KNOWN)
    with pytest.raises(cml.CmlError, match="the operator"):
        load(network, limits=cml.LoadLimits(nodes=10_000))
