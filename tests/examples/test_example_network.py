"""Tests of the committed example network: both formats and backends agree, and it improves
pictures."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from examples.enlarge import pictures
from examples.enlarge.__main__ import MODELS, enlarger, gains

pytestmark = pytest.mark.gpu

SHAPES = {"image": (1, 3, 40, 56)}


@pytest.mark.parametrize("name", ["enlarge.onnx", "enlarge.tgz"])
def test_example_files_are_below_150_kilobytes(name):
    assert (MODELS / name).stat().st_size <= 150_000


def test_onnx_and_nnef_examples_are_equal(rng):
    image = rng.random(SHAPES["image"], np.float32)
    first, second = (
        cml.Session(cml.load(MODELS / f"enlarge.{suffix}", shapes=SHAPES), "cpu")
        for suffix in ("onnx", "tgz")
    )
    enlarged = first.run({"image": image})["enlarged"]
    np.testing.assert_array_equal(second.run({"image": image})["enlarged"], enlarged)
    assert enlarged.shape == (1, 3, 80, 112) and 0 <= enlarged.min() <= enlarged.max() <= 1


def held_out(family, rng):
    return [pictures.texture(family, rng, held_out=True) for _ in range(2)]


@pytest.mark.parametrize("family", pictures.FAMILIES)
def test_enlarge_gains_one_decibel_over_bicubic(family, gpu, rng):
    cubic, network = gains(held_out(family, rng), enlarger(MODELS / "enlarge.onnx", gpu))
    assert np.mean(network) >= np.mean(cubic) + 1


def test_quantizing_costs_less_than_a_third_of_a_decibel(tmp_path, rng):
    """The quantized network's mean gain is at most 0.3 dB below that of the float network.

    It was quantized at 32 x 32 and also runs at 128 x 128.
    """
    graph = cml.load(MODELS / "enlarge.onnx", shapes={"image": (1, 3, 32, 32)})
    drawn = [pictures.texture(f, rng).resize((32, 32)) for f in pictures.FAMILIES] * 2
    quantized, _ = cml.quantize(graph, [{"image": pictures.as_planes(p)[None]} for p in drawn])
    cml.save(quantized, tmp_path / "small.nnef")
    textures = [t for family in ("bricks", "shapes") for t in held_out(family, rng)]
    floats, whole = (
        gains(textures, enlarger(model, "cpu"))[1]
        for model in (MODELS / "enlarge.onnx", tmp_path / "small.nnef")
    )
    assert np.mean(whole) >= np.mean(floats) - 0.3
