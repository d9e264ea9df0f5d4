"""Tests of operators beyond NNEF, which models declare without a body, on both backends."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.signatures import EXTENSIONS
from tests.fixtures.texts import HEADER, declaration, engine, run_text, write_text

RNG = np.random.default_rng(22)


def uniform(*shape, low=-2.0, high=2.0):
    return engine(RNG.uniform(low, high, shape))


X = uniform(2, 4, 6, 3)


def test_a_models_own_defaults_count(tmp_path):
    head = declaration("hard_sigmoid").replace("0.2", "0.25")
    (got,) = run_text(tmp_path, "y = hard_sigmoid(x);", {"x": X}, "cpu", head=head)
    assert np.allclose(got, np.clip(0.25 * X + 0.5, 0, 1))


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->im", "no operand has index 'm'"),
        ("ii,jk->ik", "twice"),
        ("i...,jk->ik", "wanted letters"),
        ("ij->ij", "1 operands"),
        ("ijk,jk->i", "wants rank 3"),
        ("ij,ik->jk", "index 'i' is"),
    ],
)
def test_invalid_einsum_equations_are_refused(equation, message, tmp_path):
    inputs = {"x": uniform(2, 3), "z": uniform(4, 5)}
    body = f"y = einsum([x, z], equation = '{equation}');"
    folder = write_text(tmp_path, body, inputs, head=declaration("einsum"))
    with pytest.raises(cml.ModelError, match=message):
        cml.load(folder)


def test_saved_graphs_carry_the_declarations(tmp_path):
    body = "a = resize(x, output_size = [4, 4]); y = gelu_erf(a);"
    head = declaration("resize") + declaration("gelu_erf")
    graph = cml.load(write_text(tmp_path / "a", body, {"x": X}, head=head))
    cml.save(graph, tmp_path / "b")
    assert "fragment resize(" in (tmp_path / "b" / "graph.nnef").read_text()
    again = cml.load(tmp_path / "b")
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes] == ["resize", "gelu_erf"]


def test_extension_library_text_loads_in_a_model(tmp_path):
    """A model that begins with the library's text, with all bodies, loads."""
    text = HEADER + EXTENSIONS.source.text
    text += "graph g(x) -> (y) { x = external(shape = [1]); y = mish(x); }"
    (tmp_path / "graph.nnef").write_text(text)
    assert cml.load(tmp_path).outputs == ("y",)
