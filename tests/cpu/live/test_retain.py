"""Tests that sessions which retain their inputs run only the nodes that the given inputs reach.

The results are bit-identical to a full run.
"""

import numpy as np
import pytest

import cml_engine as cml
from tests.fixtures.fuzz_graphs import random_case

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
    return cml.Session(cml.load(cml.MemoryModel(TWO)), backend, retain=True, **options)


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
    session = cml.Session(cml.load(cml.MemoryModel(TWO)), "cpu")
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
    usual = cml.Session(cml.load(cml.MemoryModel(TWO)), "cpu")
    with pytest.raises(cml.InputError, match="make it with retain=True"):
        usual.rank(given=["style"])
    with pytest.raises(cml.InputError, match="retain: wanted True or False, got 1"):
        cml.Session(usual.source_graph, "cpu", retain=1)
