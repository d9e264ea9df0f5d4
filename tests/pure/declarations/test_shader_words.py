"""Tests of the string attributes that reach HLSL as defines.

A shader may test only values that exist, and at most one value may be left without a test.
"""

import re

import pytest

from cml_engine.ops.common.window import BORDERS, POOL_BORDERS
from cml_engine.ops.declaration.defines import numbers, word
from cml_engine.ops.kernel_files import KERNEL_FOLDER
from cml_engine.ops.resampling import grid_sample, resize, roi
from cml_engine.ops.resampling import resampling as operators

ASKED = [
    ("include/border.hlsli", "border", BORDERS),
    ("pooling/pool.hlsl", "border", POOL_BORDERS),
    ("conv/winograd.hlsl", "stage", ("input", "product", "output")),
    ("resampling/resize.hlsl", "method", resize.METHODS),
    ("resampling/resize.hlsl", "coordinates", resize.COORDINATES),
    ("resampling/resize.hlsl", "rounding", resize.ROUNDINGS),
    ("resampling/resample.hlsl", "method", operators._METHODS),
    ("resampling/roi.hlsl", "method", roi.METHODS),
]


@pytest.mark.parametrize(("file", "name", "words"), ASKED)
def test_a_shader_asks_for_words_that_there_are(file, name, words):
    text = (KERNEL_FOLDER / file).read_text(encoding="utf-8")
    code = re.sub(r"//[^\n]*", "", text + "".join(_included(text)))
    asked = set(re.findall(rf"\b{name}_is_\w+", code))
    known = {define for value in words for define in word(name, value)}
    assert asked <= known
    assert len(known - asked) <= 1


def _included(text):
    for name in re.findall(r'#include "(border\.hlsli)"', text):
        yield (KERNEL_FOLDER / "include" / name).read_text(encoding="utf-8")


def test_words_that_a_kernel_is_told_when_it_runs():
    assert numbers(grid_sample.BORDERS) == {"CONSTANT": 0, "REPLICATE": 1, "REFLECT": 2}
    text = (KERNEL_FOLDER / "resampling/grid_sample.hlsl").read_text(encoding="utf-8")
    for name in {**numbers(grid_sample.METHODS), **numbers(grid_sample.BORDERS)}:
        assert re.search(rf"\b{name}\b", text), name


def test_numbers_of_words_stand_in_no_shader():
    """No shader defines a number for a value that Python numbers already."""
    words = {*POOL_BORDERS, *resize.METHODS, *resize.COORDINATES, *resize.ROUNDINGS}
    names = {define for value in words for define in numbers([value])}
    for path in KERNEL_FOLDER.rglob("*.hlsl*"):
        found = set(re.findall(r"#define (\w+) \d+\s", path.read_text(encoding="utf-8")))
        assert not found & names, path
