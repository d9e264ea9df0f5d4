"""Tests of sessions that retain inputs, of kept tensors, and of watches.

Retaining sessions run only the nodes that the given inputs reach; results are bit-identical."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from tests.fixtures.fuzz_graphs import random_case
from tests.fixtures.graphs import BLOCKS, random_graph
from tests.proofs.fuzz import computed_values

SHAPE = (1, 4, 3, 3)


def arrays(names, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(SHAPE, np.float32) for name in sorted(names)}


def reached(graph, given):
    """Returns the titles of the nodes that must run again when inputs ``given`` change."""
    changed = given | {variable for variable, _ in graph.updates}
    found = set()
    for node in graph.nodes:
        if changed.intersection(node.reads):
            changed.update(node.outputs)
            found.add(node.title)
    return found


def check_retained(seed, backend, nodes):
    """Runs a random network in a retaining session, first with all inputs, then with some of them.

    Asserts that only reached nodes run, and that results are bit-identical to full runs.
    """
    rng = np.random.default_rng([2, seed])
    case = random_case(rng, nodes)
    session = cml.Session(case.graph, backend, retain=True)
    full = cml.Session(case.graph, backend, session.options)
    values = dict(case.inputs)
    for number in range(5):
        chosen = {name for name in values if not number or rng.random() < 0.4}
        new = {name: rng.permutation(values[name].ravel()).reshape(values[name].shape)
               for name in sorted(chosen)}  # fmt: skip
        values |= new
        ran = set()
        if number % 2:  # a watch sees the nodes that run; without one the results are the same
            got = session.run(new, watch=lambda node, _, ran=ran: ran.add(node.title))  # type: ignore[misc]
            assert ran == reached(session.graph, chosen)
        else:
            got = session.run(new)
        expected = full.run(values)
        for name in case.graph.outputs:
            np.testing.assert_array_equal(got[name], expected[name], f"{name} of run {number}")


@pytest.mark.parametrize("seed", range(40))
def test_retained_run_equals_a_full_run(seed):
    check_retained(seed, "cpu", 8)


TWO = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(image, style) -> (y)
{
    image = external(shape = [1, 4, 3, 3]);
    style = external(shape = [1, 4, 3, 3]);
    encoded = relu(image * 2.0);
    y = sigmoid(encoded + style);
}
"""


def two(backend="cpu", **options):
    return cml.Session(cml.load(cml.nnef.MemoryModel(TWO)), backend, retain=True, **options)


def test_retained_input_without_value_is_required():
    session = two()
    given_once = arrays(["style"], 0)
    with pytest.raises(cml.InputError, match="input 'image' is missing"):
        session.run(given_once)
    session.run(arrays(["image", "style"], 1))
    session.run(given_once)
    session.run({})


def test_failed_run_invalidates_retained_values():
    session = two()
    values = arrays(["image", "style"], 0)
    session.run(values)
    fresh = arrays(["image"], 5)

    def fail(node, results):
        raise KeyError(node.title)

    with pytest.raises(KeyError):
        session.run(fresh, watch=fail)
    got = session.run({})["y"]  # the image was given, so everything runs again
    expected = two().run({**values, **fresh})["y"]
    np.testing.assert_array_equal(got, expected)


def test_ordinary_session_requires_all_inputs():
    session = cml.Session(cml.load(cml.nnef.MemoryModel(TWO)), "cpu")
    session.run(arrays(["image", "style"], 0))
    with pytest.raises(cml.InputError, match="input 'image' is missing"):
        session.run(arrays(["style"], 0))


def test_reshaped_session_has_separate_retained_values():
    session = two()
    session.run(arrays(["image", "style"], 0))
    other = session.reshaped({"image": (2, 4, 3, 3), "style": (2, 4, 3, 3)})
    with pytest.raises(cml.InputError, match="input 'style' is missing"):
        other.run({"image": np.zeros((2, 4, 3, 3), np.float32)})


def test_rank_given_times_dependent_operators_only():
    session = two()
    assert "relu" in str(session.rank(runs=1))
    only = session.rank(runs=1, given=["style"])
    assert "relu" not in str(only) and "sigmoid" in str(only)
    with pytest.raises(cml.InputError, match="has no input 'stile'; did you mean 'style'"):
        session.rank(given=["stile"])
    usual = cml.Session(cml.load(cml.nnef.MemoryModel(TWO)), "cpu")
    with pytest.raises(cml.InputError, match="make it with retain=True"):
        usual.rank(given=["style"])
    with pytest.raises(cml.InputError, match="retain: wanted True or False, got 1"):
        cml.Session(usual.source_graph, "cpu", retain=1)


def assert_kept(graph, inputs, names):
    expected = computed_values(graph, inputs)
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=names))
    outputs = session.run(inputs)
    assert set(outputs) == set(graph.outputs)
    for name in (*names, *graph.outputs):
        assert_allclose(session.tensor(name).read(), expected[name], 1e-4, 1e-4, err_msg=name)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_tensor_can_be_retained_alone_or_with_others(block):
    net = BLOCKS[block]()
    last = net.nodes[-1].outputs[-1]
    graph, inputs = net.graph(last), net.input()
    every = tuple(name for node in graph.nodes for name in node.outputs)
    for names in (every, *((name,) for name in every)):
        assert_kept(graph, inputs, names)


@pytest.mark.parametrize("seed", range(6))
def test_tensors_of_random_graphs_can_be_retained(seed):
    graph, inputs = random_graph(seed)
    every = [name for node in graph.nodes for name in node.outputs]
    assert_kept(graph, inputs, tuple(every[seed % 3 :: 3]))


def test_retained_inputs_and_constants_keep_their_values():
    net = BLOCKS["se"]()
    graph, inputs = net.graph(), net.input()
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=("x", "k0")))
    session.run(inputs)
    assert_array_equal(session.tensor("x").read(), inputs["x"])
    assert_array_equal(session.tensor("k0").read(), graph.constants["k0"])


def test_unknown_tensor_name_suggests_the_nearest():
    graph = BLOCKS["se"]().graph("t3")
    with pytest.raises(cml.InputError, match="has no tensor 't33'; did you mean 't3'"):
        cml.Session(graph, "cpu", cml.CompileOptions(keep=("t33",)))
    with pytest.raises(cml.InputError, match=r"keep: wanted names in parentheses, .* got 't3'"):
        cml.CompileOptions(keep="t3")


def test_tensor_not_retained_error_says_what_to_do():
    net = BLOCKS["se"]()
    session = cml.Session(net.graph("t3"), "cpu", cml.CompileOptions(keep=("t1",)))
    with pytest.raises(cml.InputError, match="has not run yet"):
        session.tensor("t1")
    session.run(net.input())
    with pytest.raises(cml.InputError, match=r"keeps no tensor 't0'; it has t3, t1. .*keep="):
        session.tensor("t0")


def test_reshaped_session_has_retained_tensors():
    text = (
        "version 1.0; graph n(x) -> (y) {x = external(shape=[1,2]); a = x + 1.0; y = relu(a) * a;}"
    ).replace("version 1.0;", "version 1.0;\nextension KHR_enable_operator_expressions;\n")
    graph = cml.load(cml.nnef.MemoryModel(text))
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=("a",))).reshaped({"x": (1, 3)})
    session.run({"x": np.ones((1, 3), np.float32)})
    assert_array_equal(session.tensor("a").read(), [[2, 2, 2]])


def test_an_error_of_a_watch_ends_the_run():
    net = BLOCKS["se"]()
    session = cml.Session(net.graph("t3"), "cpu")
    with pytest.raises(ZeroDivisionError):
        session.run(net.input(), watch=lambda node, results: 1 // 0)
    for name in ("watch", "before"):
        with pytest.raises(cml.InputError, match=f"{name}: wanted a function"):
            session.run(net.input(), **{name: 7})
