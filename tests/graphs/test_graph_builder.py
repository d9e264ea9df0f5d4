"""Tests that graphs built in Python equal loaded ones, and that errors name the line."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.demo_game.chain import MODELS
from cml_engine.formats.builder import registered_declarations
from cml_engine.nnef.expansion.signatures import operator_signatures
from cml_engine.nnef.files.writer import to_text
from cml_engine.runtime.session import random_inputs
from tests.fixtures.results import same_bits

SIGNATURES = operator_signatures()


def rebuilt(graph: cml.Graph) -> cml.Graph:
    """Returns an equal graph that a ``GraphBuilder`` builds by one call per node."""
    builder = cml.GraphBuilder(graph.name)
    made: dict[str, cml.Tensor | float] = {}
    for name in graph.inputs:
        made[name] = builder.input(name, graph.facts[name].shape, graph.facts[name].dtype)
    for name, array in graph.constants.items():
        made[name] = builder.weights(array, name) if array.ndim else array.item()
    for node in graph.nodes:
        operands = [made[name] for name in node.inputs]
        if SIGNATURES[node.op].tensors[0].is_array:
            operands = [operands]
        results = getattr(builder, node.op)(*operands, **dict(node.attrs))
        results = results if isinstance(results, tuple) else (results,)
        made.update(zip(node.outputs, results, strict=True))
    return builder.graph(**{name: made[name] for name in graph.outputs})


@pytest.mark.parametrize("model", ["upres", "texture", "population"])
def test_a_network_built_by_calls_is_bit_identical(model):
    graph = cml.load(MODELS / f"{model}.nnef")
    if not {node.op for node in graph.nodes} <= SIGNATURES.keys():
        pytest.skip("it has operators of the game")
    again = rebuilt(graph)
    assert [node.op for node in again.nodes] == [node.op for node in graph.nodes]
    inputs = random_inputs(cml.Session(graph, "cpu").inputs)
    same_bits(cml.Session(again, "cpu").run(inputs), cml.Session(graph, "cpu").run(inputs))


@pytest.fixture
def network() -> cml.Graph:
    builder = cml.GraphBuilder("small")
    x = builder.input("image", [1, 3, 8, 8])
    filter = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    features = builder.relu(builder.conv(x, filter, 0.0))
    return builder.graph(features=features, mean=builder.mean_reduce(features, axes=[2, 3]))


def image(shape=(1, 3, 8, 8)) -> np.ndarray:
    return np.random.default_rng(1).random(shape, np.float32)


def test_a_built_graph_is_reshaped_saved_and_loaded(network, tmp_path):
    assert network.reshaped({"image": [1, 3, 6, 10]}).facts["features"].shape == (1, 4, 6, 10)
    expected = cml.Session(network, "cpu").run({"image": image()})
    for name in ("net.nnef", "net.onnx"):
        cml.save(network, tmp_path / name)
        found = cml.Session(cml.load(tmp_path / name), "cpu").run({"image": image()})
        same_bits(found, expected)


def test_a_shape_that_does_not_fit_names_the_line_of_the_call():
    builder = cml.GraphBuilder("sum")
    x, y = (builder.input(name, [1, 4]) for name in "xy")
    graph = builder.graph(total=x + y)
    line = test_a_shape_that_does_not_fit_names_the_line_of_the_call.__code__.co_firstlineno + 3
    with pytest.raises(cml.ModelError) as caught:
        graph.reshaped({"x": [1, 3]})
    assert (caught.value.source.file, caught.value.source.line) == (__file__, line)
    with pytest.raises(cml.InputError, match="has 1 extents"):
        graph.reshaped({"x": [4]})


def test_an_edited_graph_keeps_the_sliders_that_it_reads():
    model = cml.nnef.MemoryModel(
        "version 1.0; graph net(x) -> (y, z)"
        "{ x = external(shape = [1, 4]); y = mul(x, 0.5); z = leaky_relu(x, alpha = 0.25); }"
    )
    graph = cml.load(model, sliders={"strength": "y.y", "slope": "z.alpha"})
    builder = cml.edit(graph)
    edited = builder.graph(z=builder["z"] + 1.0)
    assert set(edited.sliders) == {"slope"} and edited.inputs == ("x", "slope")
    x = np.array([[-4, -2, 2, 4]], np.float32)
    session = cml.Session(edited, "cpu")
    same_bits(session.run({"x": x}), {"z": np.array([[0, 0.5, 3, 5]], np.float32)})
    same_bits(session.run({"x": x, "slope": 0.5}), {"z": np.array([[-1, 0, 3, 5]], np.float32)})


def test_input_is_replaced_by_a_computed_tensor(network):
    builder = cml.edit(network)
    photo = builder.input("photo", [1, 8, 8, 3])
    builder.replace("image", builder.transpose(photo / 255, axes=[0, 3, 1, 2]))
    edited = builder.graph()
    assert edited.inputs == ("photo",) and edited.outputs == network.outputs
    bytes_ = np.round(image((1, 8, 8, 3)) * 255).astype(np.float32)
    found = cml.Session(edited, "cpu").run({"photo": bytes_})
    planar = np.ascontiguousarray((bytes_ / np.float32(255)).transpose(0, 3, 1, 2))
    same_bits(found, cml.Session(network, "cpu").run({"image": planar}))


def test_an_output_is_replaced_added_and_cut(network):
    builder = cml.edit(network)
    builder.replace("features", builder["features"] * 2)
    doubled = builder.graph()
    assert doubled.outputs == network.outputs
    before = cml.Session(network, "cpu").run({"image": image()})
    after = cml.Session(doubled, "cpu").run({"image": image()})
    same_bits({"features": before["features"] * 2}, {"features": after["features"]})
    np.testing.assert_allclose(after["mean"], 2 * before["mean"], rtol=1e-6)

    builder = cml.edit(network)
    best = builder.argmax_reduce(builder["features"], axes=[1])
    assert builder.graph(best=best).outputs == ("best",)

    builder = cml.edit(network)
    builder.replace("features", builder.input("given", [1, 4, 8, 8]))
    tail = builder.graph(mean=builder["mean"])
    assert tail.inputs == ("given",) and [node.op for node in tail.nodes] == ["mean_reduce"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda b, x: b.conv(x), "conv wants parameter 'filter'"),
        (lambda b, x: b.conv(x, x, 0.0, strides=[1]), "no parameter 'strides'"),
        (lambda b, x: b.swirl(x), "unknown operator 'swirl'"),
        (lambda b, x: b.relu(x, x), "takes at most 1 arguments, got 2"),
        (lambda b, x: b.relu(x, x=x), "given twice"),
        (lambda b, x: x + "a", "wants tensor<scalar>, got string"),
        (lambda b, x: x + cml.GraphBuilder().input("x", [1]), "another builder"),
        (lambda b, x: b.matmul(x, np.ones((5, 5), np.float32)), "matmul"),
        (lambda b, x: b.softmax(x, axes=[9]), "softmax"),
    ],
)
def test_an_error_names_the_line_of_the_caller(call, said):
    builder = cml.GraphBuilder()
    x = builder.input("x", [1, 3])
    with pytest.raises(cml.CmlError, match=said) as caught:
        call(builder, x)
    assert caught.value.source.file == __file__
    assert caught.value.source.line == call.__code__.co_firstlineno


def test_invalid_calls_of_the_builder_are_refused(network):
    builder = cml.GraphBuilder()
    x = builder.input("x", [1, 3])
    with pytest.raises(cml.InputError, match="no outputs"):
        builder.graph()
    with pytest.raises(cml.InputError, match="dtype"):
        builder.input("y", [1], "float")
    with pytest.raises(cml.InputError, match="no tensor"):
        builder["nothing"]
    with pytest.raises(cml.ModelError, match="it replaces"):
        builder.replace(x, builder.input("z", [1, 4]))
    with pytest.raises(cml.InputError, match="cooked"):
        cml.edit(cml.load_cooked(cml.cooked.cook(network, ["portable"])))
    integer, _ = cml.quantize(network, [{"image": image() * k / 8} for k in range(8)])
    with pytest.raises(cml.InputError, match="integer network"):
        cml.edit(integer)


def halves(attrs, xs):
    return [cml.ops.Fact(xs.dtype, (*xs.shape[:-1], xs.shape[-1] // 2))] * 2


#: operators of a game by name: their declaration, and a call of each with the tensor ``x``
OWN = {
    "own_vig": (
        {
            "signature": "fragment own_vig(x: tensor<scalar>, k: scalar = 0.5)"
            " -> (y: tensor<scalar>);",
            "expression": "x * {k}",
        },
        lambda b, x: b.own_vig(x, k=0.25),
    ),
    "own_mean": (
        {
            "signature": "fragment own_mean(parts: tensor<scalar>[], weights: scalar[] = [])"
            " -> (mean: tensor<scalar>);",
            "infer": lambda attrs, *parts: parts[0],
            "cpu": lambda attrs, *parts: sum(parts) / np.float32(len(parts)),
        },
        lambda b, x: b.own_mean([x, b.relu(x), x * 2.0], weights=[1.0, 2.0, 3.0]),
    ),
    "own_halves": (
        {
            "signature": "fragment own_halves(x: tensor<scalar>)"
            " -> (left: tensor<scalar>, right: tensor<scalar>);",
            "infer": halves,
            "cpu": lambda attrs, x: np.split(x, 2, axis=-1),
        },
        lambda b, x: b.sub(*b.own_halves(x)),
    ),
    "gelu_erf": (  # in place of an operator of the engine
        {
            "signature": "fragment gelu_erf(x: tensor<scalar>, gain: scalar = 2.0)"
            " -> (y: tensor<scalar>);",
            "expression": "x * {gain}",
        },
        lambda b, x: b.gelu_erf(x, gain=3.0),
    ),
}


@pytest.fixture(params=OWN)
def own_call(request):
    declaration, call = OWN[request.param]
    cml.ops.unregister(request.param)
    cml.register(cml.OpSpec(request.param, **declaration))
    yield call
    cml.ops.unregister(request.param)


def test_a_registered_operator_is_called_in_a_built_and_in_an_edited_graph(own_call, tmp_path):
    def result(graph):
        shape = graph.facts["image"].shape
        return cml.Session(graph, "cpu").run({"image": image(shape)})

    builder = cml.GraphBuilder("own")
    built = builder.graph(out=own_call(builder, builder.input("image", [1, 3, 8, 8])))
    plain = cml.GraphBuilder("own")
    plain = plain.graph(copied=plain.copy(plain.input("image", [1, 3, 8, 8])))
    builder = cml.edit(plain)
    edited = builder.graph(out=own_call(builder, builder["image"]))
    cml.save(built, tmp_path / "own.nnef")
    expected = result(built)
    same_bits(result(edited), expected)
    same_bits(result(cml.load(tmp_path / "own.nnef")), expected)
    small = {"image": (1, 3, 4, 6)}
    same_bits(result(built.reshaped(small)), result(edited.reshaped(small)))


def test_a_graph_with_a_registered_operator_that_it_does_not_declare_is_saved(own_call, tmp_path):
    builder = cml.GraphBuilder("own")
    built = builder.graph(out=own_call(builder, builder.input("image", [1, 3, 8, 8])))
    changed = built.with_(declarations={})  # as after a pass that adds the operator
    cml.save(changed, tmp_path / "own.nnef")
    assert cml.load(tmp_path / "own.nnef").ops == built.ops
    assert to_text(changed, registered_declarations()) == to_text(built)


def test_random_weights_of_a_registered_operator_have_the_role_of_their_parameter(tmp_path):
    signature = (
        "fragment own_norm(x: tensor<scalar>, variance: tensor<scalar>) -> (y: tensor<scalar>);"
    )
    cml.register(cml.OpSpec("own_norm", signature=signature, expression="x / sqrt(variance)"))
    try:
        builder = cml.GraphBuilder("own")
        x = builder.input("image", [1, 64, 2, 2])
        variance = builder.weights(np.ones((1, 64, 1, 1), np.float32), "spread")
        cml.save(builder.graph(out=builder.own_norm(x, variance)), tmp_path / "own.nnef")
        (tmp_path / "own.nnef" / "spread.dat").unlink()
        (values,) = cml.load(tmp_path / "own.nnef", random_weights=1).constants.values()
        assert values.min() > 0
    finally:
        cml.ops.unregister("own_norm")
