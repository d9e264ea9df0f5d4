"""Tests of input shapes other than those in a model's text: at loading, and for a loaded graph."""

import copy
import pickle
import shutil
import tarfile
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import CmlError, InputError, ModelError, ShapeError
from cml_engine.nnef.files.tensor_file import write_tensor

HEAD = (
    "version 1.0;\n"
    "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
    "fragment halved(x: tensor<scalar>) -> (y: tensor<scalar>)\n"
    "{\n"
    "    sizes = shape_of(x);\n"
    "    y = slice(x, axes = [2, 3], begin = [0, 0], end = [n / 2 for n in sizes[2:]]);\n"
    "}\n"
).replace("[n / 2 for n in sizes[2:]]", "[for n in sizes[2:] yield n / 2]")
BODY = (
    "graph net(image) -> (y)\n"
    "{\n"
    "    image = external(shape = [1, 2, 4, 4]);\n"
    "    w = variable(shape = [3, 2, 3, 3], label = 'w');\n"
    "    c = conv(image, w, padding = [(1, 1), (1, 1)]);\n"
    "    y = halved(c) * 2.0;\n"
    "}\n"
)


@pytest.fixture
def model(tmp_path, rng):
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "graph.nnef").write_text(HEAD + BODY)
    write_tensor(folder / "w.dat", rng.standard_normal((3, 2, 3, 3), np.float32))
    return folder


def run(graph, image):
    return cml.Session(graph, "cpu").run({"image": image})["y"]


def written(model, shape):
    """Returns the graph of a copy of the model whose text has ``shape`` in its ``external``
    line."""
    other = model.parent / "written"
    shutil.copytree(model, other, dirs_exist_ok=True)
    text = (model / "graph.nnef").read_text()
    (other / "graph.nnef").write_text(text.replace("[1, 2, 4, 4]", shape))
    return cml.load(other)


def test_given_shape_replaces_the_texts(model, rng):
    """A model loaded with another input shape equals one whose text has that shape.

    This includes all that the text computes from shapes, in fragments and comprehensions.
    """
    graph = cml.load(model, shapes={"image": (2, 2, 6, 10)})
    expected = written(model, "[2, 2, 6, 10]")
    assert graph.facts["image"].shape == (2, 2, 6, 10)
    assert graph.facts["y"].shape == (2, 3, 3, 5)
    assert [(n.op, dict(n.attrs)) for n in graph.nodes] == [
        (n.op, dict(n.attrs)) for n in expected.nodes
    ]
    image = rng.standard_normal((2, 2, 6, 10), np.float32)
    assert_array_equal(run(graph, image), run(expected, image))


def test_loaded_graph_is_reshaped_without_its_files(model, rng):
    graph = cml.load(model)
    expected = written(model, "[1, 2, 8, 6]")
    shutil.rmtree(model)
    other = graph.reshaped({"image": (1, 2, 8, 6)})
    image = rng.standard_normal((1, 2, 8, 6), np.float32)
    assert_array_equal(run(other, image), run(expected, image))
    assert other.constants["w"] is graph.constants["w"]
    back = other.reshaped({"image": (1, 2, 4, np.int64(4))})
    assert back.facts == graph.facts and back.nodes == graph.nodes
    assert other.reshaped({}).facts == other.facts


def test_an_archive_and_its_quantisation_too(model):
    (model / "graph.quant").write_text('"c": linear_quantize(min = 0.0, max = 1.0, bits = 4);\n')
    with tarfile.open(model.parent / "net.tgz", "w:gz") as archive:
        for file in model.iterdir():
            archive.add(file, file.name)
    graph = cml.load(model.parent / "net.tgz", fake_quantize=True)
    (model.parent / "net.tgz").unlink()
    other = graph.reshaped({"image": (1, 2, 8, 8)})
    assert [n.op for n in other.nodes] == [n.op for n in graph.nodes]
    assert other.quantization == graph.quantization
    assert len(other.nodes) > len(cml.load(model).nodes)


def test_warnings_are_not_repeated_by_reshaped(model):
    text = (model / "graph.nnef").read_text().replace("version 1.0;\n", "")
    (model / "graph.nnef").write_text(text)
    with pytest.warns(cml.nnef.NnefWarning, match="version"):
        graph = cml.load(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.reshaped({"image": (1, 2, 6, 6)})


@pytest.mark.parametrize(
    ("shapes", "kind", "message"),
    [
        ({"image": (1, 2, 4)}, InputError,
         r"graph.nnef:10:\d+: the shape \[1, 2, 4\] .* 3 extents, .* wants \[1,2,4,4\]"),
        ({"imag": (1, 2, 4, 4)}, InputError,
         r"no input 'imag'; did you mean 'image'\? Its inputs are image: \[1,2,4,4\]"),
        ({"zzz": (1,)}, InputError, r"no input 'zzz'; its inputs are image"),
        ({"image": (1, 2, -4, 4)}, InputError, r"the shape of 'image': wanted a whole .* got -4"),
        ({"image": (1, 2, 4.0, 4)}, InputError, r"the shape of 'image': wanted a whole"),
        ({"image": 4}, InputError, r"the shape of 'image': wanted extents like"),
        ({"image": "1,2,4,4"}, InputError, r"the shape of 'image': wanted extents like"),
        ({"image": (1, 2, 2**31, 4)}, InputError, r"wanted a whole number"),
        ([("image", (1, 2, 4, 4))], InputError, r"shapes: wanted a dictionary"),
        ({3: (1,)}, InputError, r"shapes: wanted a dictionary"),
        ({"image": (1, 5, 4, 4)}, ShapeError, r"graph.nnef:12:\d+: conv 'c'.*channel"),
    ],
)  # fmt: skip
def test_invalid_shapes_are_refused_with_one_message(model, shapes, kind, message):
    with pytest.raises(kind, match=message):
        cml.load(model, shapes=shapes)
    graph = cml.load(model)
    with pytest.raises(kind, match=message):
        graph.reshaped(shapes)


def test_weights_with_computed_shapes_must_match(model):
    text = (model / "graph.nnef").read_text()
    text = text.replace("shape = [3, 2, 3, 3]", "shape = [3, 2, shape_of(image)[2] - 1, 3]")
    (model / "graph.nnef").write_text(text)
    graph = cml.load(model)
    with pytest.raises(ModelError, match=r"nnef:11.*variable 'w' would be scalar\[3,2,5,3\]"):
        graph.reshaped({"image": (1, 2, 6, 4)})


def test_changed_graph_cannot_be_reshaped(model):
    """A changed, copied or unpickled graph cannot be reshaped: it raises an ``InputError``.

    Reading the text again would lose the change.
    """
    graph = cml.load(model)
    for other in (graph.with_(name="other"), pickle.loads(pickle.dumps(graph)), copy.copy(graph)):
        assert other.origin is None
        with pytest.raises(InputError, match="does not know how it was loaded"):
            other.reshaped({"image": (1, 2, 8, 8)})


def test_equality_and_pickling_know_no_origin(model):
    graph = cml.load(model)
    bare = graph.with_(constants={})
    assert bare == graph.reshaped({}).with_(constants={})
    assert bare == pickle.loads(pickle.dumps(graph)).with_(constants={})
    assert "origin" not in repr(bare)


def test_the_command_line_takes_shapes(model, tmp_path, capsys, run_cml, refused):
    image = np.ones((1, 2, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", image)
    files = f"-i image={tmp_path}/x.npy -o y={tmp_path}/y.npy --backend cpu"
    run_cml(f"run {model} --shape image=1,2,8,8 {files}")
    expected = run(cml.load(model, shapes={"image": image.shape}), image)
    assert_array_equal(np.load(tmp_path / "y.npy"), expected)
    capsys.readouterr()
    assert "Another shape is another session: --shape image=" in refused(f"run {model} {files}")
    assert "did you mean 'image'?" in refused(f"info {model} --shape imag=1,2,8,8")


# --- symbols, as tract writes them

SYMBOLS = (
    "version 1.0;\n"
    "extension tract_registry tract_core;\n"
    "extension tract_symbol B;\n"
    "extension tract_symbol S;\n"
    "extension tract_assert S >= 1;\n"
    "extension KHR_enable_fragment_definitions;\n"
    "fragment flat(x: tensor<scalar>) -> (y: tensor<scalar>)\n"
    "{\n    y = reshape(x, shape = [B, 3 * S]);\n}\n"
    "graph net(a, b) -> (y)\n{\n"
    "    a = tract_core_external(shape = [B, S, 3], datum_type = 'f32');\n"
    "    b = external(shape = [B, 3 * S]);\n"
    "    y = flat(a) + b;\n}\n"
)


@pytest.fixture
def symbols(write_model):
    return write_model(SYMBOLS)


def test_symbols_take_values_from_given_shapes(symbols):
    graph = cml.load(symbols, shapes={"a": (2, 5, 3)})
    assert [graph.facts[name].shape for name in "aby"] == [(2, 5, 3), (2, 15), (2, 15)]
    other = graph.reshaped({"a": (1, 4, 3)})
    assert [other.facts[name].shape for name in "aby"] == [(1, 4, 3), (1, 12), (1, 12)]
    both = cml.load(symbols, shapes={"a": (2, 5, 3), "b": (2, 15)})
    assert both.facts == graph.facts
    cml.save(both, symbols.parent / "again")
    assert cml.load(symbols.parent / "again").facts["y"] == both.facts["y"]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"nnef:13.*input 'a' is \[B,S,3\], which leaves 'B', 'S' open: say --shape a=B,S,3"),
        ({"b": (2, 15)}, r"input 'a' is \[B,S,3\], which leaves 'S' open"),
        ({"a": (2, 5, 3), "b": (3, 15)}, r"nnef:14.*the shapes give 'B' as 2 and 3"),
        (
            {"a": (2, 5, 3), "b": (2, 14)},
            r"nnef:14.*\[2, 14\] of 'b' does not fit: .* \[B,3 \* S\]",
        ),
        ({"a": (2, 5)}, r"nnef:13.*has 2 extents, the model wants \[B,S,3\]"),
        ({"a": (2, 5, 4)}, r"reshape"),
    ],
)
def test_contradicting_symbols_are_refused(symbols, shapes, message):
    with pytest.raises(CmlError, match=message):
        cml.load(symbols, shapes=shapes)
