"""Tests that the standard library has every operator and that compound operators' bodies are
right."""

import pytest

from cml_engine.errors import UnsupportedOp
from cml_engine.nnef import signature, standard_signatures
from tests.nnef.conftest import primitive


def test_all_operators_are_declared_and_every_compound_expands():
    names = set(standard_signatures())
    assert len(names) == 119
    assert sum(primitive(name) for name in names) == 73
    for name in names:
        declared = signature(name)
        assert declared.name == name
        assert declared.results
        assert all(not p.required or p.default is p.default for p in declared.params)


def test_signatures_distinguish_tensors_and_attributes():
    conv = signature("conv")
    assert [p.name for p in conv.tensors] == ["input", "filter", "bias"]
    assert conv.by_name["bias"].default == 0.0
    assert conv.by_name["padding"].is_array
    assert not conv.by_name["padding"].is_tensor
    assert signature("concat").tensors[0].is_array
    assert signature("cast").needs_dtype
    assert not signature("select").needs_dtype
    with pytest.raises(UnsupportedOp, match="did you mean 'softmax'"):
        signature("sofmax")
