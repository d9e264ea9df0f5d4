"""Tests of lowering: calls become nodes or are expanded, with all that a graph's body may
contain."""

import numpy as np
import pytest

from cml_engine import nnef
from cml_engine.errors import ModelError, ShapeError, UnsupportedOp
from cml_engine.ir.graph import Fact
from cml_engine.nnef import NnefWarning
from tests.fixtures.messages import raises
from tests.fixtures.models import MODEL_ABC
from tests.nnef.conftest import load_native, primitive


def calls(graph):
    """Returns the graph's nodes as texts like ``y = add(x, 1.0)``."""
    return [f"{', '.join(n.outputs)} = {n.op}({', '.join(n.inputs)})" for n in graph.nodes]


def test_the_blogs_model_loads_with_a_warning(write_model):
    path = write_model(
        MODEL_ABC,
        weight1=np.ones((128, 128, 3, 3), np.float32),
        bias1=np.ones((1, 128), np.float32),
    )
    with pytest.warns(NnefWarning, match=r"graph\.nnef:1:1: the line 'version 1\.0;' is missing"):
        graph = load_native(path)
    assert graph.name == "model_abc"
    assert graph.inputs == ("input1", "input2")
    assert graph.outputs == ("output1", "output2")
    assert calls(graph)[0] == "conv1 = conv(input1, weight1, bias1)"
    assert dict(graph.nodes[0].attrs) == {
        "border": "constant",
        "padding": [(1, 1), (1, 1)],
        "stride": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
    }
    assert graph.labels == {"weight1": "weight1", "bias1": "bias1"}
    assert graph.facts["input2"] == Fact("scalar", (1, 128, 4))
    source = graph.nodes[0].source
    assert source is not None
    assert (source.line, source.column) == (7, 9)
    assert source.text.startswith("conv1 = conv(")


def test_compound_operators_expand_to_primitives(write_model):
    text = "version 1.0;\n" + MODEL_ABC
    weights = np.ones((128, 128, 3, 3), np.float32)
    path = write_model(text, weight1=weights, bias1=np.ones((1, 128), np.float32))
    graph = nnef.load(path, primitive)
    assert calls(graph)[2:] == [
        "mean_reduce1 = sum_reduce(conv1)",
        "output1 = sub(mean_reduce1, min_reduce1)",
        "output2_gt1 = gt(mean_reduce1, min_reduce1)",
        "output2 = select(output2_gt1, mean_reduce1, min_reduce1)",
    ]
    assert {node.source.line for node in graph.nodes[4:] if node.source} == {13}


def test_literals_are_shared_constants_named_by_their_text(load_body):
    graph = load_body("y = clamp(x * 2.0 + 2, -0.1, 2.0);")
    assert calls(graph) == [
        "mul1 = mul(x, 2.0)",
        "add1 = add(mul1, 2.0)",
        "y = clamp(add1, -0.1, 2.0)",
    ]
    assert graph.constants["2.0"].dtype == np.float32
    assert graph.constants["2.0"].shape == ()
    assert graph.facts["-0.1"] == Fact("scalar", ())


def test_every_operator_sign(load_body):
    graph = load_body(
        "a = -x + x - x * x / x ^ x; b = x < a || x <= a; c = x > a && x >= a;"
        "d = !(x == a) && x != a; y = select(b && c && d, +x, 0);"
    )
    ops = {node.op for node in graph.nodes}
    assert ops == set("neg add sub mul div pow lt or le gt and ge not eq ne select".split())
    assert graph.facts["0.0"].dtype == "scalar"


def test_arrays_and_tuples_of_results(load_body):
    graph = load_body(
        "[a, b] = split(x, axis = 1, ratios = [1, 1]); mean, variance = moments(a, axes = [2]);"
        "parts = split(b, axis = 2, ratios = [1, 3]); (m, v) = moments(parts[1], axes = [2]);"
        "y = concat([mean, variance, m, 1.0] + parts, axis = 0);"
    )
    assert calls(graph) == [
        "a, b = split(x)",
        "mean, variance = moments(a)",
        "parts_1, parts_2 = split(b)",
        "m, v = moments(parts_2)",
        "y = concat(mean, variance, m, 1.0, parts_1, parts_2)",
    ]


def test_generated_names_do_not_collide_with_the_models(load_body):
    graph = load_body(
        "parts = split(x, axis = 1, ratios = [1, 1]); parts_1 = relu(x); relu1 = relu(relu(x));"
        "y = parts_1 + relu1 + parts[0];"
    )
    made = [name for node in graph.nodes for name in node.outputs]
    assert len(made) == len(set(made))
    assert "parts_1 = relu(x)" in calls(graph)


def test_aliased_output_is_copied(load_body):
    assert calls(load_body("r = relu(x); a = r; y = a;"))[-1] == "y = copy(r)"
    assert calls(load_body("y = x;")) == ["y = copy(x)"]
    assert calls(load_body("y = 1.5;")) == ["y = copy(1.5)"]


FRAGMENT = (
    "fragment twice(a: tensor<scalar>, by: scalar = 2.0) -> (b: tensor<scalar>)"
    "{ scaled = a * by; b = relu(scaled); }\n"
)


def test_a_models_fragment_is_expanded_under_the_callers_line(load_body):
    graph = load_body(
        "y = twice(twice(x), by = 3);", fragments=FRAGMENT, native=lambda op: op != "twice"
    )
    assert calls(graph) == [
        "twice_scaled = mul(x, 2.0)",
        "twice_b = relu(twice_scaled)",
        "y_scaled = mul(twice_b, 3.0)",
        "y = relu(y_scaled)",
    ]
    assert all(node.source and node.source.line == 8 for node in graph.nodes)
    assert graph.declarations == {}


def test_a_native_operator_wins_over_the_models_body(load_body):
    graph = load_body("y = twice(x);", fragments=FRAGMENT)
    assert calls(graph) == ["y = twice(x)"]
    assert dict(graph.nodes[0].attrs) == {"by": 2.0}
    assert graph.declarations["twice"].startswith("fragment twice(a: tensor<scalar>")


def test_native_operator_with_other_parameters_is_not_used(load_body):
    other = {"twice": "fragment twice(a: tensor<scalar>, times: integer) -> (b: tensor<scalar>);"}
    with pytest.warns(NnefWarning, match="'twice' is not the registered twice"):
        graph = load_body("y = twice(x);", fragments=FRAGMENT, declarations=other)
    assert [node.op for node in graph.nodes] == ["mul", "relu"]
    bodiless = FRAGMENT.split("{")[0] + ";"
    with pytest.raises(UnsupportedOp, match="'twice' is registered as"):
        load_body("y = twice(x);", fragments=bodiless, declarations=other)


def test_a_registered_operator_needs_no_declaration_in_the_model(load_body):
    text = (
        "fragment cross(a: tensor<scalar>, b: tensor<scalar>, axis: integer = 1)"
        " -> (c: tensor<scalar>);"
    )
    graph = load_body("y = cross(x, x);", declarations={"cross": text})
    assert calls(graph) == ["y = cross(x, x)"]
    assert graph.declarations == {"cross": text + "\n"}


def test_generics(load_body):
    fragments = (
        "fragment through<?>(a: tensor<?>) -> (b: tensor<?>)"
        "{ c = copy<?>(a); b = cast<?>(cast<integer>(c)); }\n"
    )
    graph = load_body("y = through(x);", fragments=fragments, native=lambda op: op != "through")
    assert [(n.op, dict(n.attrs)) for n in graph.nodes] == [
        ("copy", {}),
        ("cast", {"dtype": "integer"}),
        ("cast", {"dtype": "scalar"}),
    ]


def test_conditions_are_lazy_and_finite_recursion_works(load_body):
    fragments = (
        "fragment power(a: tensor<scalar>, n: integer) -> (b: tensor<scalar>)"
        "{ b = a * power(a, n - 1) if n > 1 else a; }\n"
    )
    graph = load_body("y = power(x, n = 4);", fragments=fragments, native=lambda op: op != "power")
    assert [node.op for node in graph.nodes] == ["mul"] * 3


def test_recursion_without_end_names_the_chain(load_body):
    fragments = (
        "fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = g(a); }\n"
        "fragment g(a: tensor<scalar>) -> (b: tensor<scalar>) { b = f(a); }\n"
    )
    with pytest.raises(ModelError, match=r"without end: f -> g -> f -> g -> f -> g -> \.\.\. ->"):
        load_body("y = f(x);", fragments=fragments, native=primitive)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = cnv(x, x);", "unknown operator 'cnv'; did you mean 'conv'? Otherwise register"),
        ("y = zzz(x);", "unknown operator 'zzz': register it (--ops FILE.py, cml.register)"),
        ("y = conv(x);", "conv wants parameter 'filter' (tensor<scalar>): give it"),
        ("y = relu(x, x);", "relu takes at most 1 arguments, got 2"),
        ("y = leaky_relu(x, alhpa = 0.1);", "no parameter 'alhpa': did you mean 'alpha'?"),
        ("y = leaky_relu(x, 0.1, alpha = 0.1);", "parameter 'alpha' is given twice"),
        ("y = leaky_relu(alpha = 0.1, x);", "name every argument after the first"),
        ("y = leaky_relu(x, alpha = 'a');", "parameter 'alpha' wants scalar, got string 'a'"),
        ("y = softmax(x, axes = 1);", "wants integer[], got integer 1 (write it in brackets)"),
        ("y = conv(x, x, groups = 1.0);", "'groups' wants integer, got scalar 1.0 (write it with"),
        ("y = conv(x, x, padding = [1, 1]);", "'padding' wants (integer, integer)[], got array"),
        ("y = conv(x, x, stride = [x]);", "a tensor cannot be an attribute"),
        ("i = cast<integer>(x); y = i + i;", "wants tensor<scalar>, got tensor<integer> 'i' (cast"),
        ("y = select(x < 0.0, x, x < 0.0);", "'false_value' wants tensor<scalar>, got tensor<logi"),
        ("y = cast(x);", "cast needs a type: write cast<integer>(...)"),
        ("y = relu<scalar>(x);", "relu takes no <scalar>: remove it"),
        ("y = relu(x); y = relu(x);", "'y' is assigned twice: use another name"),
        ("[y] = relu(x);", "the left side wants an array of 1, got tensor<scalar>"),
        ("[y, z] = split(x, axis = 1, ratios = [1]);", "split gives 1 tensors, but the left side"),
        ("a = unstack(relu(x), axis = 1); y = a[0];", "how many tensors unstack gives is unknown"),
        ("z = relu(x);", "graph output 'y' is never assigned"),
        ("y = [x];", "graph output 'y' must be a tensor, got array of 1"),
        ("y = external(shape = [1]);", "external 'y' is not among the graph's inputs"),
        ("y = relu(external(shape = [1]));", "assign external(...) to a name of its own"),
        ("y = relu(variable(shape = [1], label = 'a'));", "assign variable(...) to a name"),
        ("y = constant(shape = [3], value = [1.0, 2.0]);", "wants 1 or 3 values for scalar[3], "),
        ("y = constant(shape = [-3], value = [1.0]);", "shape [-3] wants at most"),
        ("y = update(x, x);", "update wants a variable, got tensor<scalar> 'x'"),
        ("y = add(cast<integer>(x), 1);", "'x' wants tensor<scalar>, got tensor<integer>"),
        ("y = gather(x, 3000000000);", "3000000000 does not fit in 32 bits"),
        ("y = shape_of(x) + [x.y];", "unexpected character '.'"),
    ],
)  # fmt: skip
def test_messages(load_body, body, message):
    with raises(ModelError, message) as error:
        load_body(body)
    assert error.value.source is not None
    assert error.value.source.line in (4, 7)
    assert error.value.source.text


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        ("fragment relu(x: tensor<scalar>) -> (y: tensor<scalar>);", "is a standard operator"),
        ("fragment f(x: scalar) -> (y: scalar); fragment f(x: scalar) -> (y: scalar);",
         "fragment 'f' is declared twice"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { }", "never assigns its result"),
        ("fragment f(x: tensor<scalar>) -> (x: tensor<scalar>) { }", "declares 'x' twice"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<logical>) { y = x; }",
         "result 'y' must be tensor<logical>, got tensor<scalar> 'x'"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = variable(shape = [], "
         "label = 'a'); }",
         "variable is not allowed in a fragment"),
        ("fragment f(x: tensor<scalar>, a: scalar = b) -> (y: tensor<scalar>) { y = x; }",
         "a default value must be a literal"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>);",
         "fragment without a body 'f' is not implemented here"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = rleu(x); }",
         "did you mean 'relu'"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = conv(x); }",
         "(in fragment 'f', called at "),
    ],
)  # fmt: skip
def test_messages_of_fragments(load_body, fragments, message):
    with raises(ModelError, message):
        load_body("y = f(x);", fragments=fragments, native=primitive)


def test_an_error_in_a_standard_body_shows_the_models_line(load_body):
    def native(op):
        return primitive(op) and op != "debox"

    with raises(
        UnsupportedOp, "in the body of 'nearest_upsample': standard operator 'debox'"
    ) as error:
        load_body("y = nearest_upsample(x, factor = [2, 2]);", native=native)
    assert error.value.source is not None
    assert error.value.source.line == 7


def test_updates_pair_a_variable_with_its_next_value(write_model):
    text = (
        "version 1.0;\ngraph g(x) -> (y) {\n x = external(shape = [2]);\n"
        " state = variable(shape = [2], label = 'state');\n next = add(state, x);\n"
        " stored = update(state, next);\n y = copy(stored);\n}\n"
    )
    graph = load_native(write_model(text, state=np.zeros(2, np.float32)))
    assert graph.updates == (("state", "next"),)
    assert calls(graph)[-1] == "y = copy(next)"
    assert not graph.is_constant("state")
    twice = text.replace(" y =", " again = update(state, x);\n y =")
    with pytest.raises(ModelError, match="variable 'state' is updated twice"):
        load_native(write_model(twice))


def test_constants_of_the_text(load_body):
    graph = load_body(
        "a = constant(shape = [2, 2], value = [1, 2.5, 3.0, 4.0]);"
        "i = constant<integer>(shape = [3], value = [7]);"
        "b = constant<logical>(shape = [], value = [true]); y = select(b, x + a, 0.0);"
    )
    assert graph.constants["a"].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert graph.constants["i"].dtype == np.int32
    assert graph.constants["i"].tolist() == [7, 7, 7]
    assert graph.constants["b"].dtype == np.bool_
    assert not any(array.flags.writeable for array in graph.constants.values())


def test_extensions(write_model):
    body = "graph g(x) -> (y) { x = external(shape = [1]); y = x + 1.0; }"
    with pytest.warns(NnefWarning, match="extension KHR_enable_operator_expressions;': add that"):
        load_native(write_model(f"version 1.0;\n{body}"))
    flat = "graph g(x) -> (y) { x = external(shape = [1]); y = relu(x); }"
    unused = "fragment f(x: scalar) -> (y: scalar);"
    with pytest.warns(NnefWarning, match="extension KHR_enable_fragment_definitions;': add that"):
        load_native(write_model(f"version 1.0;\n{unused}\n{flat}"))
    with pytest.raises(ModelError, match="unknown extension 'vendor_core'"):
        load_native(write_model(f"version 1.0;\nextension vendor_core;\n{flat}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g(x) -> (x) { x = external(shape = [1]); }", "'x' stands twice among the graph's"),
        ("graph g(x, x) -> (y) { y = 1.0; }", "'x' stands twice among the graph's"),
        ("graph g(x) -> (y) { y = constant(shape = [], value = [1.0]); }",
         "graph input 'x' is never defined"),
    ],
)  # fmt: skip
def test_messages_of_the_interface(write_model, text, message):
    with raises(ModelError, message):
        load_native(write_model(f"version 1.0;\n{text}"))


def test_an_unused_input_and_empty_extents_are_fine(write_model):
    text = (
        "version 1.0;\ngraph g(x, u) -> (y) { x = external(shape = []); "
        "u = external<logical>(shape = [0, 3]); y = relu(x); }"
    )
    graph = load_native(write_model(text))
    assert graph.facts["u"] == Fact("logical", (0, 3))
    assert graph.facts["x"] == Fact("scalar", ())


def infer(node, facts):
    if node.op == "sqr":
        raise ShapeError("sqr is out of order")
    shape = facts[node.inputs[0]].shape
    return [Fact("scalar", shape)] * len(node.outputs)


def test_shapes_are_inferred_on_the_way(load_body):
    graph = load_body(
        "r = relu(x); y = reshape(r, shape = shape_of(r)[1:] + [1]);"
        "parts = unstack(r, axis = 2); z = parts[3];",
        infer=infer,
    )
    assert graph.nodes[1].attrs.shape == [2, 4, 4, 1]
    assert graph.nodes[2].outputs == ("parts_1", "parts_2", "parts_3", "parts_4")
    assert graph.facts["r"] == Fact("scalar", (1, 2, 4, 4))
    with pytest.raises(ShapeError, match=r"graph\.nnef:7:5: sqr is out of order"):
        load_body("y = sqr(x);", infer=infer)
