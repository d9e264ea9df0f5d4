"""Tests that the uploaded kernel parameters are the 32-bit words that the shader reads."""

import numpy as np
import pytest

from cml_engine.gpu.shaders.hlsl import parse_params


def test_params_are_packed_in_declared_order():
    block = parse_params("n:u shape:u3 alpha:f pad:i2")
    data = block.pack({"n": 7, "shape": (1, 2), "alpha": 0.5, "pad": (-1, 5)})
    words = np.frombuffer(data, np.uint32)
    assert words.tolist()[:7] == [7, 1, 2, 0, 0x3F000000, 0xFFFFFFFF, 5]
    assert len(data) % 16 == 0 and block.vectors == 2


def test_param_accessors_state_index_and_type():
    text = parse_params("n:u alpha:f pad:i2").hlsl()
    assert "#define n cml_params[0][0]" in text
    assert "#define alpha asfloat(cml_params[0][1])" in text
    assert "#define pad(i) asint(" in text


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


def test_an_empty_block_is_still_a_legal_uniform():
    assert len(parse_params("").pack({})) == 16
