"""Damaged models: any bytes give a graph or a CmlError, quickly."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cml_engine import nnef
from cml_engine.errors import CmlError
from cml_engine.nnef.files.tensor_file import tensor_bytes

TEXT = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
fragment f<? = scalar>(a: tensor<?>[], n: integer = 2, p: (integer, scalar)[] = [(1, 2.0)])
    -> (b: tensor<?>) { b = concat([for t in a, i in range_of(a) if i < n yield t], axis = 0); }
fragment g(x: tensor<scalar>, n: integer) -> (y: tensor<scalar>)
{ y = x * g(x, n - 1) if n > 0 else select(x < 1e-3 && !(x == 2.0), -x, x ^ 2.0); }
graph net(x) -> (y, z)
{
    x = external<scalar>(shape = [1, 2, 3]);  # a comment
    v = variable<scalar>(shape = [2, 3], label = 'v');
    i = variable<integer>(shape = [2], label = "i");
    [a, b] = split(x, axis = 1, ratios = [1] * 2);
    m, s = moments(a, axes = [1, 2][0:1] + [0]);
    y = f([g(b, 3), m], p = [(3 / 2, 1.0)]);
    z = cast<integer>(gather(v, i)) ;
    u = update(v, clamp(v, -1, 6.5));
}
"""

WORDS = (
    "graph fragment extension version tensor scalar integer ? < > <= [ ] ( ) { } , ; : = -> + - * "
    "/ ^ ! && || in for if else yield 0 1 -1 1e999 9999999999999 0.5 'a' \"b\" true x y f g relu "
    "conv range_of([0]*1000000) length_of shape_of(x) external variable update split # '"
)
TOKENS = [*WORDS.split(), "\n", " ", "\x00", "\u00e9"]

MODEST = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

edits = st.lists(
    st.tuples(st.integers(0, len(TEXT)), st.integers(0, 12), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "v.dat").write_bytes(tensor_bytes(np.ones((2, 3), np.float32)))
    (tmp_path / "i.dat").write_bytes(tensor_bytes(np.array([0, 1])))
    (tmp_path / "graph.nnef").write_text(TEXT)
    return tmp_path


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnef.NnefWarning)
        yield


def edited(text, changes):
    for at, length, token in changes:
        text = text[:at] + token + text[at + length :]
    return text


def primitive(op):
    fragments = nnef.expansion.signatures.standard_fragments()
    return op in fragments and fragments[op].body is None


@MODEST
@given(edits)
def test_edited_text(folder, changes):
    (folder / "graph.nnef").write_text(edited(TEXT, changes), encoding="utf-8")
    try:
        nnef.load(folder, primitive)
    except CmlError as error:
        assert str(error)


@MODEST
@given(st.binary(max_size=200))
def test_any_bytes_as_text(folder, data):
    (folder / "graph.nnef").write_bytes(data)
    with pytest.raises(CmlError):
        nnef.load(folder, primitive)
