"""Tests that texture layouts (channels last, four of them) keep the plain model's values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.errors import InputError
from cml_engine.formats.texture_layout import channels_last

TEXT = """version 1.0;
graph net(image, depth, vector) -> (bright, mask, label, copied)
{
    image = external<scalar>(shape = [2, 3, 4, 5]);
    depth = external<scalar>(shape = [2, 1, 4, 5]);
    vector = external<scalar>(shape = [2, 7]);
    f = variable<scalar>(shape = [3, 3, 3, 3], label = 'f');
    convolved = conv(image, f, 0.5);
    bright = relu(convolved);
    mask = lt(depth, 0.0);
    label = exp(vector);
    copied = copy(image);
}
"""


def graph(rng):
    filters = rng.standard_normal((3, 3, 3, 3), np.float32)
    return cml.load(cml.nnef.MemoryModel(TEXT, {"f": filters}))


def inputs(rng):
    shapes = {"image": (2, 3, 4, 5), "depth": (2, 1, 4, 5), "vector": (2, 7)}
    return {name: rng.standard_normal(s, np.float32) for name, s in shapes.items()}


def last(array):
    return array.transpose(0, 2, 3, 1)


def check(plain, rgba, rng, backend):
    given = inputs(rng)
    expected = cml.Session(plain, "cpu").run(given)
    lasts = {**given, "image": last(given["image"]), "depth": last(given["depth"])}
    if rgba:  # the fourth is not read
        fourth = np.full((2, 4, 5, 1), np.nan, np.float32)
        lasts["image"] = np.concatenate([lasts["image"], fourth], 3)
    session = cml.Session(channels_last(plain, rgba=rgba), backend)
    got = session.run(lasts)
    assert list(got) == list(expected)
    assert got["bright"].shape == (2, 4, 5, 3 + rgba) and got["mask"].dtype == np.bool_
    for name in ("bright", "copied"):
        assert_allclose(got[name][..., :3], last(expected[name]), rtol=1e-5, atol=1e-5)
        assert not rgba or np.all(got[name][..., 3] == 1)
    assert_array_equal(got["mask"], last(expected["mask"]))
    assert_allclose(got["label"], expected["label"], rtol=1e-5)


@pytest.mark.parametrize("rgba", [False, True])
def test_values_are_the_plain_model_s(rgba, rng):
    check(graph(rng), rgba, rng, "cpu")


def test_values_on_the_gpu(rng, gpu):
    check(graph(rng), True, rng, gpu)


def test_a_network_in_texture_layout_is_saved_and_loaded(rng, tmp_path):
    changed = channels_last(graph(rng), rgba=True)
    cml.save(changed, tmp_path / "m")
    again = cml.load(tmp_path / "m")
    names = (*changed.inputs, *changed.outputs)
    assert [again.facts[n] for n in names] == [changed.facts[n] for n in names]
    assert again.facts["image"].shape == (2, 4, 5, 4)


def test_texture_layout_avoids_existing_names(rng):
    text = TEXT.replace("convolved", "image_nchw").replace("mask", "image_rgb")
    plain = cml.load(cml.nnef.MemoryModel(text, {"f": np.zeros((3, 3, 3, 3), np.float32)}))
    changed = channels_last(plain, rgba=True)
    assert "image_nchw_" in changed.facts and "image_rgb_" in changed.facts
    cml.Session(changed, "cpu")


@pytest.mark.parametrize(
    ("shape", "rgba", "message"),
    [("[2, 3]", False, "no input or output has four axes"),
     ("[1, 4, 2, 2]", True, r"3 channels of floats \(x: scalar\[1,4,2,2\], y")],
)  # fmt: skip
def test_a_model_without_pictures(shape, rgba, message):
    text = f"version 1.0;\ngraph g(x) -> (y) {{ x = external(shape = {shape}); y = relu(x); }}"
    with pytest.raises(InputError, match=message):
        channels_last(cml.load(cml.nnef.MemoryModel(text)), rgba=rgba)
