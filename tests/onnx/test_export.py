"""Tests that models exported to ONNX give the engine's results in ONNX Runtime.

They are every operator's declared cases and whole networks.
"""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.compiler.optimize import optimize  # noqa: E402
from cml_engine.compiler.planning.layouts import choose_layout  # noqa: E402
from cml_engine.compiler.planning.plan_graph import lower  # noqa: E402
from cml_engine.demo_game.chain import MODELS  # noqa: E402
from cml_engine.errors import CmlError, UnsupportedOp  # noqa: E402
from cml_engine.formats import loading  # noqa: E402
from cml_engine.formats.onnx.export import game_operators, writer  # noqa: E402
from cml_engine.ir.limits import Limits  # noqa: E402
from cml_engine.ops.declaration.registry import load_families, registered  # noqa: E402
from cml_engine.ops.declaration.spec import Case  # noqa: E402
from cml_engine.testing import case_graph  # noqa: E402
from tests.fixtures.graphs import BLOCKS  # noqa: E402
from tests.fixtures.integer.random_networks import random_integer_case  # noqa: E402
from tests.fixtures.models import write_model  # noqa: E402
from tests.fixtures.pages import ROOT  # noqa: E402
from tests.proofs.onnx_nodes import (  # noqa: E402
    EXPANDED,
    class_of,
    difference,
    exported,
    on_cpu,
    random_inputs,
    reference,
    run_onnx,
)
from tests.proofs.random_calls import random_call  # noqa: E402
from tests.reference.calls import GRAPH_LEVEL, OPERATORS  # noqa: E402

load_families()

#: open in ONNX or different in ONNX Runtime; only the validity of the file is checked
OPEN = {
    ("top_k", "equals, NaN, zeros"): "where a NaN goes",
    ("max_roi_pool", "NaN wins"): "which of a NaN and a number is greater",
    ("grid_sample", "far outside, NaN and corners"): "what a position that is NaN reads",
    ("roi_align", "NaN, infinite, far outside"): "ONNX Runtime refuses such regions",
}
#: missing in ONNX Runtime for opset 26, but not in ONNX's own evaluator
LACKING = {"to_bits", "from_bits", "roi_align"}
#: refused at opset 20: the operator, and a part of the message
REFUSED = {
    "to_bits": "needs opset 26",
    "from_bits": "needs opset 26",
    "grid_sample": "cubic on two axes only",
}


def cases_of(op):
    """Yields every declared case of an operator, with True if its further operands are constants.

    The operands alternate between inputs and constants; the first case is yielded with both.
    """
    for i, case in enumerate(registered()[op].cases):
        ways = (False, True) if i == 0 else (bool(i % 2),)
        for constants in ways if len(case.inputs) > 1 else (False,):
            yield case, constants


#: the engine's operators; other tests may have registered a game's
OURS = [name for name, spec in registered().items() if not (spec.is_custom or spec.custom)]


@pytest.mark.parametrize("op", OURS)
def test_every_case_of_an_operator(op):
    for case, constants in cases_of(op):
        graph, inputs = case_graph(op, case, constants=constants)
        try:
            data = exported(graph)
        except UnsupportedOp as error:
            assert REFUSED[op] in str(error), case.id
            continue
        if (op, case.note) in OPEN:
            continue
        a = case.attrs
        actual = run_onnx(data, inputs)
        expected = on_cpu(graph, inputs)
        assert difference(actual, expected) == "", f"{case.id} constants={constants}"
        if a.get("fill", -1) == -1:  # ONNX has no other fill
            again = on_cpu(cml.load(data), inputs)  # counted results have one more output
            again = {name: again[name] for name in expected}
            assert difference(again, expected) == "", f"read back: {case.id}"


@pytest.mark.parametrize("opset", [13, 26])
def test_the_first_case_of_operators_in_other_opsets(opset):
    refused = []
    for op in OURS:
        spec = registered()[op]
        graph, inputs = case_graph(op, spec.cases[0], constants=True)
        try:
            data = exported(graph, opset)
        except UnsupportedOp as error:
            assert "opset" in str(error)
            refused.append(op)
            continue
        run = reference if opset == 26 and op in LACKING else run_onnx
        assert difference(run(data, inputs), on_cpu(graph, inputs)) == "", op
    if opset == 26:
        assert refused == []
    else:
        assert set(refused) == {
            "bit_and", "bit_or", "bit_xor", "bit_not", "to_bits", "from_bits", "roi_align",
            "grid_sample", "col2im", "deform_columns", "random_bits",
        }  # fmt: skip


@pytest.mark.parametrize("op", [op for op in OPERATORS if class_of(op) == EXPANDED])
def test_expanded_operator_agrees_with_onnx_runtime(op, tmp_path):
    call = random_call(op, 1)
    graph = cml.load(call.write(tmp_path))
    outputs = run_onnx(exported(graph), call.inputs)
    assert difference(outputs, on_cpu(graph, call.inputs)) == "", call.attrs


def test_a_wrong_form_is_seen(monkeypatch):
    graph, inputs = case_graph("sub", registered()["sub"].cases[0])
    wrong = dict(game_operators.load_export_rules())
    wrong["sub"] = wrong["add"]
    monkeypatch.setattr(game_operators, "load_export_rules", lambda: wrong)
    assert "values differ" in difference(run_onnx(exported(graph), inputs), on_cpu(graph, inputs))


# -- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["upres", "texture", "population"])
def test_demo_network_round_trips_through_onnx(name, tmp_path):
    graph = cml.load(MODELS / f"{name}.nnef")
    cml.save(graph, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    assert data == exported(graph), "twice the same bytes"
    inputs = random_inputs(graph)
    expected = on_cpu(graph, inputs)
    assert difference(run_onnx(data, inputs), expected) == ""
    again = cml.load(tmp_path / "m.onnx")
    assert (again.inputs, again.outputs) == (graph.inputs, graph.outputs)
    assert difference(on_cpu(again, inputs), expected) == ""


def test_a_function_stands_for_an_operator_and_is_written_once():
    text = """version 1.0;
extension KHR_enable_operator_expressions;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2, 3]);
    a = round(x * 7.0);
    y = round(a / 2.0);
}"""
    graph = cml.load(cml.nnef.MemoryModel(text))
    model = onnx.load_from_string(exported(graph))
    assert [f.name for f in model.functions] == ["round"]
    assert [n.op_type for n in model.graph.node] == ["Mul", "round", "Div", "round"]


def test_variables_become_inputs_and_outputs(tmp_path):
    text = """version 1.0;
extension KHR_enable_operator_expressions;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2]);
    sum = variable<scalar>(shape = [2], label = 'sum');
    next = update(sum, sum + x);
    y = sum * 2.0;
}"""
    graph = cml.load(write_model(tmp_path / "g", text, sum=np.float32([1, 2])))
    data = exported(graph)
    x = np.float32([10, 20])
    first = run_onnx(data, {"x": x})
    assert_array_equal(first["y"], [2, 4])
    assert_array_equal(first["sum_next"], [11, 22])
    second = run_onnx(data, {"x": x, "sum": first["sum_next"]})
    session = cml.Session(graph, "cpu")
    session.run({"x": x})
    assert_array_equal(second["y"], session.run({"x": x})["y"])


# -- weights in 16 bits ---------------------------------------------------------------------------


def test_weights_in_16_bits(tmp_path, run_cml):
    graph = cml.load(MODELS / "upres.nnef")
    cml.save(graph, tmp_path / "whole.onnx")
    output = run_cml(f"export {MODELS}/upres.nnef {tmp_path}/m.onnx --half").out
    assert "each within 0.049 % of its tensor's largest" in output or "each within 0.0" in output
    data = (tmp_path / "m.onnx").read_bytes()
    assert len(data) < 0.55 * (tmp_path / "whole.onnx").stat().st_size
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    kinds = {t.data_type for t in model.graph.initializer if np.prod(t.dims) >= 32}
    assert kinds == {onnx.TensorProto.FLOAT16}
    inputs = random_inputs(graph)
    expected, actual = on_cpu(graph, inputs), run_onnx(data, inputs)
    again = cml.load(data)
    assert again.ops == cml.load(exported(graph)).ops, "the casts are computed at load"
    assert difference(on_cpu(again, inputs), actual) == ""
    for name, want in expected.items():
        assert 0 < np.abs(actual[name] - want).max() < 1e-3 * np.abs(want).max()


def test_weights_that_do_not_fit_into_16_bits_stay(tmp_path, run_cml, rng):
    text = """version 1.0;
extension KHR_enable_operator_expressions;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2, 64]);
    w = variable<scalar>(shape = [1, 64], label = 'w');
    v = variable<scalar>(shape = [1, 64], label = 'v');
    total = variable<scalar>(shape = [2, 64], label = 'total');
    next = update(total, total + x);
    y = x * w + v + total;
}"""
    w, v, total = np.float32([[7e4] * 64]), np.float32([[np.inf] * 64]), np.zeros((2, 64), "f")
    folder = write_model(tmp_path / "g", text, w=w, v=v, total=total)
    output = run_cml(f"export {folder} {tmp_path}/m.onnx --half").out
    assert "in 32 bits, as they exceed 65504: w" in output
    model = onnx.load(tmp_path / "m.onnx")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    assert kinds == {"w": 1, "v_half": 10, "total": 1}
    x = rng.normal(size=(2, 64)).astype(np.float32)
    outputs = run_onnx((tmp_path / "m.onnx").read_bytes(), {"x": x})
    assert_array_equal(outputs["total_next"], x)


# -- open axes ------------------------------------------------------------------------------------

#: the sizes at which an open axis is tried, besides the one of the export
SIZES = (lambda n: n + 1, lambda n: 2 * n + 3)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in GRAPH_LEVEL])
def test_an_open_axis_takes_other_sizes_or_is_refused(op, tmp_path):
    graph = cml.load(random_call(op, 1).write(tmp_path))
    for name in graph.inputs[:1]:
        shape = graph.facts[name].shape
        for axis, extent in enumerate(shape):
            axes = [*shape[:axis], "n", *shape[axis + 1 :]]
            try:
                data = exported(graph, 20, dynamic={name: axes})
            except CmlError as error:
                assert "dynamic: " in str(error) or "needs opset" in str(error)
                continue
            for size in SIZES:
                try:
                    other = graph.reshaped(
                        {name: (*shape[:axis], size(extent), *shape[axis + 1 :])}
                    )
                    inputs = {n: np.asarray(x) for n, x in random_inputs(other).items()}
                    expected = on_cpu(other, inputs)
                except CmlError:  # the operator does not take that size
                    continue
                assert difference(run_onnx(data, inputs), expected) == "", (axis, size(extent))


def test_networks_with_open_axes(tmp_path, run_cml):
    enlarge = ROOT / "examples" / "models" / "enlarge.onnx"
    graph = cml.load(enlarge, shapes=(1, 3, 64, 48))
    words = f"export {enlarge} {tmp_path}/m.onnx --shape 1,3,64,48"
    run_cml(f"{words} --dynamic 1,3,height,width")
    data = (tmp_path / "m.onnx").read_bytes()
    assert data == exported(graph, dynamic={"image": (1, 3, "height", "width")})
    model = onnx.load_from_string(data)
    dims = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in (*model.graph.input, *model.graph.output)]  # fmt: skip
    assert dims == [[1, 3, "height", "width"], [1, 3, "2*height", "2*width"]]
    for shape in ((1, 3, 64, 48), (1, 3, 33, 70)):
        other = graph.reshaped({"image": shape})
        inputs = random_inputs(other)
        expected = on_cpu(other, inputs)
        assert difference(run_onnx(data, inputs), expected) == ""
        assert difference(on_cpu(cml.load(data, shapes={"image": shape}), inputs), expected) == ""


TWO_INPUTS = """version 1.0;
extension KHR_enable_operator_expressions;
graph g(a, b) -> (y, z, t)
{
    a = external<scalar>(shape = [2, 6, 5]);
    b = external<scalar>(shape = [2, 3, 5]);
    c = concat([a, b], axis = 1);
    y = reshape(c, shape = [0, 3, 3, -1]) + 1.0;
    z = reshape(y, shape = [0, -1]);
    t = reshape(y * y, shape = [-1]);
}"""


def test_one_name_for_axes_of_two_inputs(tmp_path):
    graph = cml.load(write_model(tmp_path / "g", TWO_INPUTS))
    data = exported(graph, dynamic={"a": ("n", 6, "w"), "b": ("n", 3, "w")})
    other = graph.reshaped({"a": (7, 6, 4), "b": (7, 3, 4)})
    inputs = random_inputs(other)
    assert difference(run_onnx(data, inputs), on_cpu(other, inputs)) == ""
    ops = [node.op_type for node in onnx.load_from_string(data).graph.node]
    assert ops.count("Shape") == 1, "an input's shape is taken once"


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ([1, 2], "dynamic: wanted axes by input"),
        ({"x": "nchw"}, "dynamic: wanted the axes of 'x' as"),
        ({"q": ("n", 1, 8, 8)}, "has no input 'q'"),
        ({"x": ("n", 1, 8)}, "'x' has 4 axes, got 3"),
        ({"x": (1, 1, 8, 8)}, "no axis has a name"),
        ({"x": (1, 1, 9, "w")}, "axis 2 of 'x' has the extent 8, got 9: load the model at"),
        ({"x": ("n", 1, 8, "n")}, "extent 8, got n, which is 1 elsewhere"),
        ({"x": (1, 1, "not a name", 8)}, "an axis of 'x'.*wanted a whole number"),
        ({"x": (1, "c", 8, 8)}, "the network does not take c=2: conv 'c'"),
        ({"x": (1, 1, 8, "w")}, r"conv 'c' has no ONNX form that is free of the size: it is "
         r"Conv\(.*pads=\[0, 0, 1, 1\].*at w=8 and Conv\(.*at w=9"),
    ],
)  # fmt: skip
def test_open_axes_that_are_refused(dynamic, message, tmp_path):
    text = """version 1.0;
graph g(x) -> (y) { x = external(shape = [1, 1, 8, 8]);
    f = variable<scalar>(shape = [1, 1, 3, 3], label = 'f');
    c = conv(x, f, stride = [2, 2]); y = relu(c); }"""
    graph = cml.load(write_model(tmp_path / "g", text, f=np.ones((1, 1, 3, 3), np.float32)))
    with pytest.raises(CmlError, match=message):
        cml.save(graph, tmp_path / "m.onnx", dynamic=dynamic)
    with pytest.raises(cml.InputError, match="was changed after it was loaded"):
        cml.save(graph.with_(name="h"), tmp_path / "m.onnx", dynamic={"x": (1, 1, 8, "w")})
    assert not (tmp_path / "m.onnx").exists()


# -- integer networks -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["upres", "texture", "population"])
def test_an_integer_network_is_written_as_qdq(name):
    graph = cml.load(MODELS / "integer" / f"{name}.nnef")
    data = exported(graph, 21)
    loading._check_qdq(graph, data)
    again = cml.load(data)
    assert again.integer == graph.integer
    for seed in range(3):
        inputs = random_inputs(graph, seed)
        expected = on_cpu(graph, inputs)
        actual, peer = on_cpu(again, inputs), run_onnx(data, inputs)
        for name, want in expected.items():
            assert_array_equal(actual[name], want)
            error = np.sqrt(np.mean((peer[name] - want) ** 2))
            assert error < 0.01 * np.abs(want).max(), "halves go to even there"


def test_integer_words_of_16_bits_and_open_axes(tmp_path, rng):
    text = """version 1.0;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [1, 3, 8, 8]);
    w = variable<scalar>(shape = [4, 3, 3, 3], label = 'w');
    b = variable<scalar>(shape = [1, 4], label = 'b');
    c = conv(x, w, b, padding = [(1, 1), (1, 1)]);
    r = relu(c);
    t = tanh(r);
    y = nearest_upsample(t, factor = [2, 2]);
}"""
    values = {"w": rng.normal(size=(4, 3, 3, 3)), "b": rng.normal(size=(1, 4))}
    folder = write_model(tmp_path / "g", text, **{k: v.astype("f") for k, v in values.items()})
    samples = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
    graph, _ = cml.quantize(cml.load(folder), samples, sixteen=["r", "y"])
    with pytest.raises(UnsupportedOp, match="words of 16 bits, which need opset 21, got 20"):
        cml.save(graph, tmp_path / "m.onnx", opset=20)
    with pytest.raises(cml.InputError, match="integer network, without weights in floats"):
        cml.save(graph, tmp_path / "m.onnx", half=True)
    cml.save(graph, tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == 21
    cml.save(graph, tmp_path / "g.nnef")
    graph = cml.load(tmp_path / "g.nnef")
    data = exported(graph, 21, dynamic={"x": (1, 3, "h", 8)})
    for height in (8, 11):
        other = graph.reshaped({"x": (1, 3, height, 8)})
        inputs = {"x": rng.normal(size=(1, 3, height, 8)).astype(np.float32)}
        expected = on_cpu(other, inputs)["y"]
        again = cml.load(data, shapes={"x": (1, 3, height, 8)})
        assert_array_equal(on_cpu(again, inputs)["y"], expected)
        assert_allclose(run_onnx(data, inputs)["y"], expected, atol=1e-3)


def test_random_integer_networks_are_read_back_or_refused(tmp_path):
    counts = {"same": 0, "refused": 0}
    for seed in range(30):
        case = random_integer_case(np.random.default_rng(seed), 6)
        file = tmp_path / f"{seed}.onnx"
        try:
            cml.save(case.graph, file)
        except UnsupportedOp as error:
            assert "read as another network. Save it as NNEF" in str(error)
            counts["refused"] += 1
            continue
        expected, actual = (on_cpu(graph, case.inputs) for graph in (case.graph, cml.load(file)))
        assert all(np.array_equal(actual[name], expected[name]) for name in expected), seed
        counts["same"] += 1
    assert counts["same"] > 20 and counts["refused"] > 0


@pytest.mark.parametrize("text", ["y = max(x, z);", "m = min(x, z); y = neg(m);", "y = sqr(x);"])
def test_integers_have_neither_nan_nor_negative_zero(tmp_path, rng, text):
    """A QDQ model has ONNX's operator for one that differs from it only for NaN and -0."""
    names = ("x", "z") if "z" in text else ("x",)
    head = "".join(f"{name} = external<scalar>(shape = [2, 5]); " for name in names)
    text = f"version 1.0; graph g({', '.join(names)}) -> (y) {{ {head} {text} }}"
    net = cml.load(write_model(tmp_path / "g", text))
    inputs = {name: rng.normal(size=(2, 5)).astype(np.float32) for name in net.inputs}
    graph, _ = cml.quantize(net, [inputs] * 8)
    cml.save(graph, tmp_path / "m.onnx")
    again = cml.load(tmp_path / "m.onnx")
    assert again.integer and {n.op for n in graph.nodes} <= {n.op for n in again.nodes}
    expected = on_cpu(graph, inputs)["y"]
    assert_array_equal(on_cpu(again, inputs)["y"], expected)
    peer = run_onnx((tmp_path / "m.onnx").read_bytes(), inputs)["y"]
    assert_allclose(peer, expected, atol=0.01 * np.abs(expected).max(), err_msg="a step at most")


def test_integer_networks_without_a_qdq_form(tmp_path):
    graph = cml.load(MODELS / "integer" / "texture.nnef")
    name = next(iter(graph.quantization))
    line = cml.ops.Attrs({**graph.quantization[name], "scale": 0.123456789012})
    changed = graph.with_(quantization={**graph.quantization, name: line})
    with pytest.raises(cml.ModelError, match=f"line of '{name}'.*more digits than 32 bits"):
        cml.save(changed, tmp_path / "m.onnx", opset=21)
    with pytest.raises(UnsupportedOp, match="a float tail, which a QDQ model has no form for"):
        cml.save(graph.with_(float_tail=True), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


# -- the command --------------------------------------------------------------------------------


def test_the_command(tmp_path, run_cml):
    target = tmp_path / "m.onnx"
    output = run_cml(f"export {MODELS}/upres.nnef {target} --opset 17").out
    assert "operations, opset 17" in output
    assert onnx.load(target).opset_import[0].version == 17
    assert "operations, opset 20" in run_cml(f"export {MODELS}/upres.nnef {target} --overwrite").out
    run_cml(f"info {target}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m.onnx", "--opset", "12"], "wanted a whole number of 13 to 28, got 12"),
        (["m.onnx", "--opset", "x"], "wanted a whole number of 13 to 28, got x"),
        (["m.nnef"], "wanted a file name ending in .onnx"),
        (["there.onnx"], "exists.*--overwrite"),
        (["folder.onnx"], "is a folder: name a file"),
        (["file/m.onnx"], "cannot write"),
    ],
)
def test_export_refuses_invalid_arguments(words, message, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.onnx").mkdir()
    assert re.search(message, refused(f"export {MODELS}/upres.nnef", *words))
    assert not list(tmp_path.glob("m.*"))
    assert (tmp_path / "there.onnx").read_bytes() == b""


GAME_OPERATORS = """version 1.0;
extension KHR_enable_fragment_definitions;
extension KHR_enable_operator_expressions;
fragment scaled(parts: tensor<scalar>[], by: scalar) -> (y: tensor<scalar>)
{
    y = concat(parts, axis = 1) * by;
}
graph g(x, z) -> (y)
{
    x = external<scalar>(shape = [2, 3]);
    z = external<scalar>(shape = [2]);
    a = soft_knee(x, z);
    b = my_cross(a, x, axis = 1, pads = [(1, 2), (3, 4)]);
    c = soft_knee(b, z, knee = 0.125);
    y = scaled([b, c], by = 3.0);
}
"""


@pytest.fixture
def game_specs(own_operators):
    """Registers an operator with an expression, one that only NumPy knows, and one with a body."""
    specs = [
        cml.OpSpec(
            "soft_knee",
            signature="fragment soft_knee(x: tensor<scalar>, z: tensor<scalar>, "
            "knee: scalar = 0.5) -> (y: tensor<scalar>);",
            expression="x > {knee} && x != 7 ? {knee} + tanh(x - {knee} * {knee}) : -x * z",
        ),
        cml.OpSpec(
            "my_cross",
            infer=cml.ops.same_as(0),
            cpu=lambda attrs, a, b: np.cross(a, b, axis=attrs.axis) * attrs.pads[1][0],
            signature="fragment my_cross(a: tensor<scalar>, b: tensor<scalar>, axis: integer, "
            "pads: (integer, integer)[], flip: logical = true) -> (c: tensor<scalar>);",
        ),
        cml.OpSpec(
            "scaled",
            infer=lambda attrs, *parts: cml.ops.Fact("scalar", (2, 6)),
            cpu=lambda attrs, *parts: np.concatenate(parts, 1) * attrs.by,
        ),
    ]
    for spec in specs:
        cml.register(spec)


def test_game_operators_become_functions_or_placeholders(game_specs, tmp_path, rng, run_cml):
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class Cross(OpRun):
        op_domain = "game"

        def _run(self, a, b, axis, pads, flip):
            assert flip == 1
            return ((np.cross(a, b, axis=axis) * pads[2]).astype(np.float32),)

    Cross.__name__ = "my_cross"
    source = write_model(tmp_path / "g", GAME_OPERATORS)
    graph = cml.load(source)
    data = exported(graph)
    model = onnx.load_from_string(data)
    assert [node.domain for node in model.graph.node] == [
        "cml_engine", "game", "cml_engine", "cml_engine",
    ]  # fmt: skip
    inputs = {"x": rng.normal(size=(2, 3)).astype(np.float32), "z": np.float32([2, -1])}
    expected = on_cpu(graph, inputs)
    evaluator = ReferenceEvaluator(model, new_ops=[Cross])
    actual = dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))
    assert difference(actual, expected) == ""
    assert difference(on_cpu(cml.load(data), inputs), expected) == "", "read back"
    output = run_cml(f"export {source} {tmp_path}/m.onnx").out
    assert "of the domain 'game': my_cross. ONNX has no such operator" in output
    cml.ops.unregister("my_cross")
    with pytest.raises(UnsupportedOp, match="game:my_cross"):
        cml.load(data)


def test_a_function_of_a_game_runs_in_onnx_runtime(game_specs, tmp_path, rng):
    text = GAME_OPERATORS.replace("my_cross(a, x, axis = 1, pads = [(1, 2), (3, 4)])", "a + x")
    graph = cml.load(write_model(tmp_path / "g", text))
    inputs = {"x": rng.normal(size=(2, 3)).astype(np.float32), "z": np.float32([2, -1])}
    assert difference(run_onnx(exported(graph), inputs), on_cpu(graph, inputs)) == ""


def test_constants_of_two_calls_of_one_body_are_two_constants(own_operators):
    plus = cml.OpSpec(
        "plus_row",
        infer=cml.ops.same_as(0),
        cpu=lambda attrs, x: x + np.float32([[attrs.by, 0]]),
        signature="fragment plus_row(x: tensor<scalar>, by: scalar) -> (y: tensor<scalar>) "
        "{ y = x + constant<scalar>(shape = [1, 2], value = [by, 0.0]); }",
    )
    text = """version 1.0;
graph g(x) -> (z)
{
    x = external<scalar>(shape = [2, 2]);
    y = plus_row(x, by = 1.0);
    z = plus_row(y, by = 5.0);
}"""
    cml.register(plus)
    graph, inputs = cml.load(cml.nnef.MemoryModel(text)), {"x": np.ones((2, 2), np.float32)}
    for dynamic in (None, {"x": ("n", 2)}):
        outputs = run_onnx(exported(graph, dynamic=dynamic), inputs)
        assert difference(outputs, on_cpu(graph, inputs)) == ""


def test_more_weights_than_a_file_holds(monkeypatch, tmp_path):
    graph = cml.load(MODELS / "upres.nnef")
    monkeypatch.setattr(writer, "MOST_BYTES", 1000)
    with pytest.raises(cml.InputError, match="bytes of weights.*holds 1,000.*NNEF"):
        cml.save(graph, tmp_path / "m.onnx")
    for option in ({"opset": 20}, {"half": True}, {"dynamic": {}}):
        with pytest.raises(cml.InputError, match=f"{next(iter(option))} is for .onnx"):
            cml.save(graph, tmp_path / "m.nnef", **option)


# -- plans ----------------------------------------------------------------------------------------


def steps(graph, software):
    """Returns the kernel, the defines, the workgroups and the parameters of each step of the
    plan."""
    optimized = optimize(graph)
    plan = lower(optimized, Limits(software=software), choose_layout(optimized))
    return [
        (str(step.path), sorted(step.defines.items()), step.groups, repr(step.params))
        for step in plan.steps
    ]


#: not the same operators in ONNX: normalizations by computed means, a stack
WRITTEN_OUT = ("styled", "stacked rows", "layer_norm", "attention")


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_exported_network_has_the_same_plan_steps(name, software, tmp_path):
    """A network from ONNX has the same plan as from NNEF, so that the same kernels run."""
    graph = BLOCKS[name]().graph()
    cml.save(graph, tmp_path / "m.onnx")
    from_onnx = cml.load(tmp_path / "m.onnx")
    cml.save(from_onnx if name in WRITTEN_OUT else graph, tmp_path / "m.nnef")
    assert steps(from_onnx, software) == steps(cml.load(tmp_path / "m.nnef"), software)


@pytest.mark.parametrize("rank", [5, 6, 8])
@pytest.mark.parametrize("op", ["max_pool", "argmax_pool", "max_pool_with_index", "box", "debox"])
def test_windows_over_many_axes_are_read_back(op, rank):
    """The exported nodes need no more axes than the engine has, and agree with ONNX Runtime."""
    shape, size = ([2, 3, 1, 2, 1, 3, 1, 2][:rank], [1, 2, 1, 2, 1, 2, 1, 1][:rank])
    attrs = {"size": size, "border": "constant"}
    graph, inputs = case_graph(op, Case((tuple(shape),), attrs))
    data, expected = exported(graph, 13), on_cpu(graph, inputs)
    assert difference(run_onnx(data, inputs), expected) == ""
    assert difference(on_cpu(cml.load(data), inputs), expected) == ""
