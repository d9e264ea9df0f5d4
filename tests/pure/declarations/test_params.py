"""Tests that wrong declarations and values of kernel parameters are refused."""

import pytest

from cml_engine.gpu.shaders.hlsl import parse_params


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "has no value"),
        ({"n": 1, "m": 2}, "not declared"),
        ({"n": (1, 2)}, "holds 1 words, got 2"),
    ],
)
def test_wrong_values_are_refused(values, says):
    with pytest.raises(ValueError, match=says):
        parse_params("n:u").pack(values)


def test_a_wrong_declaration_is_refused():
    with pytest.raises(ValueError, match="not of the form"):
        parse_params("n:double")
