"""Tests of expressions at compile time: their values, and limits that no text can exceed."""

import time

import pytest

from cml_engine.errors import CmlError, ModelError
from cml_engine.io.load_limits import LoadLimits, OverBudget, load_budget
from tests.fixtures.messages import raises


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2] + [3]", [1, 2, 3]),
        ("[1] * 3", [1, 1, 1]),
        ("[for i in range_of([7, 7, 7]) yield i * i]", [0, 1, 4]),
        ("[for i in [1, 2, 3], j in [4, 5, 6] if i != 2 yield i * j]", [4, 18]),
        ("[7 / 2, -7 / 2, 7 / -2]", [3, -3, -3]),
        ("[2 ^ 10, 1 - 2 - 3, 2 + 3 * 4]", [1024, -4, 14]),
        ("[1, 2, 3, 4][1:3]", [2, 3]),
        ("[1, 2, 3, 4][2:] + [1, 2, 3][:1]", [3, 4, 1]),
        ("[[5, 6][1], length_of([1, 2]), integer(3.9), integer('12'), integer(true)]",
         [6, 2, 3, 12, 1]),
        ("[1] if (2 in [1, 2]) && !(1.5 < 1) else [2]", [1]),
        ("[1] if true || false else [1, 2][7:8]", [1]),
        ("[0] if string(1.5) == '1.5' && logical(1) else [[]][3]", [0]),
        ("[integer(scalar(2) + 0.5), -(-3), +4]", [2, 3, 4]),
        ("[length_of('abc' + 'd')]", [4]),
        ("[1 if [1, 2] == [1, 2] else 0]", [1]),
    ],
)  # fmt: skip
def test_values(load_body, text, value):
    graph = load_body(f"y = reshape(x, shape = {text});")
    assert graph.nodes[0].attrs.shape == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1 / 0]", "division by zero"),
        ("[1, 2][2]", "index 2 is outside an array of 2 elements"),
        ("[for i in 3 yield i]", "'i in' wants an array, got integer 3"),
        ("[for i in [1], j in [1, 2] yield i]", "arrays of one length, got [1, 2]"),
        ("[1] + 1", "'+' cannot take array and integer"),
        ("[-'a']", "'-' wants a number, got string"),
        ("[!1]", "'!' wants a logical, got integer"),
        ("[1 in 2]", "'in' wants an array on its right, got integer"),
        ("[1] if x else [2]", "use select(condition, yes, no)"),
        ("[integer('a')]", "integer() cannot convert 'a'"),
        ("[length_of(1)]", "length_of() wants an array, got integer 1"),
        ("[9223372036854775807 + 1]", "an integer beyond 64 bits"),
        ("[9 ^ 999999999]", "has no value"),
        ("[1] * 6000001", "an array of 6,000,001 elements (larger ones belong in a .dat) needs"),
        ("[[[[[[[[[1]]]]]]]]]", "an array of more than 8 levels"),
        ("shape_of(r)", "shape_of() needs shapes, which are not known here"),
        ("[nothing]", "'nothing' is not defined: assign it above this line"),
        ("[xx]", "'xx' is not defined: did you mean 'x'?"),
    ],
)
def test_messages(load_body, text, message):
    with raises(ModelError, message) as error:
        load_body(f"r = relu(x); y = reshape(r, shape = {text});")
    assert "graph.nnef:7:" in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        "a = [1] * 3000000; b = a + a; y = relu(x);",
        "a = [[1] * 1000] * 1000; b = [a, a, a, a, a, a]; y = relu(x);",
        "r = [0] * 1000000; y = reshape(x, shape = [for i in r if i in r[1:] + [1] yield i]);",
        "r = [1] * 1000000; y = reshape(x, shape = [for i in r if 0 in r yield i]);",
        "r = [1] * 1000000; y = reshape(x, shape = [for i in r if r == r yield i]);",
        "s = 'aaaaaaaaaa'; " + "".join(
            f"s{i} = {a} + {a}; " for i, a in enumerate(["s", *[f"s{i}" for i in range(30)]])
        ) + "y = relu(x);",
        "a0 = [1]; " + "".join(f"a{i + 1} = [a{i}, a{i}]; " for i in range(60)) + "y = relu(x);",
        "a0 = (1, 1); " + "".join(f"a{i + 1} = (a{i}, a{i}); " for i in range(60)) + "y = relu(x);",
        "r = range_of([0] * 100000); y = reshape(x, shape = "
        "[for i in r yield length_of([for j in r yield i])]);",
        "y = constant(shape = [100000, 100000], value = [1.0]);",
        "[y] = copy_n(x, times = 1000000000);",
    ],
)  # fmt: skip
def test_hostile_texts_are_refused_quickly(load_body, body):
    start = time.process_time()  # processor time, so that other load does not count
    with pytest.raises(CmlError), load_budget(LoadLimits(memory=2**26, steps=300_000)):
        load_body(body)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = [for i in range_of([0] * 1001) yield relu(x)]; y = relu(x);", "operator relu"),
        ("a = copy_n(x, times = 600); b = copy_n(x, times = 600); y = relu(x);", "copy_n"),
    ],
)
def test_models_of_too_many_tensors_are_stopped(load_body, body, message):
    """Comprehensions and ``copy_n`` that need more nodes than the load limit raise
    ``OverBudget``."""
    with (
        pytest.raises(OverBudget, match=f"7:.*{message} needs .* the limit is 1,000"),
        load_budget(LoadLimits(nodes=1_000)),
    ):
        load_body(body)


def test_exponential_fragments_are_refused(load_body):
    fragments = "fragment f0(x: scalar) -> (y: scalar) { y = x; }\n" + "".join(
        f"fragment f{i + 1}(x: scalar) -> (y: scalar) {{ y = f{i}(f{i}(x)); }}\n" for i in range(35)
    )
    with (
        pytest.raises(OverBudget, match="the evaluation of expressions needs"),
        load_budget(LoadLimits(steps=100_000)),
    ):
        load_body(
            "y = relu(x * f35(1.0));", fragments=fragments, native=lambda op: not op.startswith("f")
        )
