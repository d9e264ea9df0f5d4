"""Tests of a model's files: their locations, labels, weights and quantization."""

import lzma
import tarfile

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cml_engine.errors import ModelError, NnefSyntaxError, TensorFileError
from cml_engine.nnef import NnefWarning
from cml_engine.nnef.files.quant import NOTHING, parse_quant
from cml_engine.nnef.files.sources import KINDS
from cml_engine.nnef.files.tensor_file import ItemType, tensor_bytes, write_tensor
from tests.fixtures.messages import raises
from tests.nnef.conftest import load_native


def text_with(dtype="scalar", label="w"):
    return (
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external(shape = [1]);\n"
        f"    w = variable<{dtype}>(shape = [2, 3], label = '{label}');\n"
        "    y = select(true, w, w);\n}\n"
    )


def load(path):
    return load_native(path).constants["w"]


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_model_loads_from_folder_file_and_archive(write_model, tmp_path):
    folder = write_model(text_with(), w=VALUES)
    with tarfile.open(tmp_path / "m.tgz", "w:gz") as tar:
        tar.add(folder, "some/model")
    for path in (folder, folder / "graph.nnef", tmp_path / "m.tgz"):
        assert_array_equal(load(path), VALUES)
    assert not load(folder).flags.writeable


@pytest.mark.parametrize(
    ("dtype", "message"),
    [("f2", "1 files hold 16-bit floats"), ("f8", r"'w\.dat' holds 64-bit floats")],
)
def test_floats_of_other_sizes_are_converted_with_a_notice(write_model, dtype, message):
    stored = (VALUES / 3).astype(dtype)
    with pytest.warns(NnefWarning, match=rf"graph\.nnef:5:9: {message}"):
        loaded = load(write_model(text_with(), w=stored))
    assert_array_equal(loaded, stored.astype(np.float32), strict=True)


@pytest.mark.parametrize(
    ("stored", "dtype", "message"),
    [
        (VALUES.T, "scalar", "'w.dat' has shape [3, 2], the variable wants [2, 3]"),
        (VALUES, "integer", "'w.dat' holds float items of 32 bits, the variable wants integer"),
        (VALUES > 1, "scalar", "holds bool items of 1 bits, the variable wants scalar"),
        (np.full((2, 3), 2**31), "integer", "holds 2147483648 to 2147483648: wanted integers"),
    ],
)  # fmt: skip
def test_unsuitable_weights_are_refused(write_model, stored, dtype, message):
    with raises(TensorFileError, message) as error:
        load(write_model(text_with(dtype), w=stored))
    assert "graph.nnef:5:9: " in str(error.value)
    assert "    w = variable<" in str(error.value)


def test_missing_or_truncated_weights_are_refused(write_model):
    folder = write_model(text_with())
    with pytest.raises(TensorFileError, match=r"graph\.nnef:5:9: cannot read 'w\.dat': No such"):
        load(folder)
    (folder / "w.dat").write_bytes(tensor_bytes(VALUES)[:-4])
    with pytest.raises(TensorFileError, match=r"graph\.nnef:5:9: 'w\.dat' is damaged: truncated"):
        load(folder)


def test_labels_with_folders_and_a_leading_slash(write_model):
    folder = write_model(text_with(label="//a//b.c/./w"))
    write_tensor(folder / "a" / "b.c" / "w.dat", VALUES)
    assert_array_equal(load(folder), VALUES)


def test_labels_are_case_insensitive(write_model):
    text = text_with().replace("    y =", "    v = variable(shape = [2, 3], label = 'W');\n    y =")
    graph = load_native(write_model(text, w=VALUES))
    assert graph.constants["v"] is graph.constants["w"]
    other = text.replace("[2, 3], label = 'W'", "[6], label = 'W'")
    with pytest.raises(TensorFileError, match=r"label 'W' is shared: its file has shape \[2, 3\]"):
        load_native(write_model(other))


@pytest.mark.parametrize(
    "label",
    ["../w", "a/../../w", "/../w", "..", "C:/w", "C:w", "w:stream", "\\\\\\\\host\\\\w",
     "a\\\\..\\\\w", "", "/", "a\x00b", "x" * 2000],
)  # fmt: skip
def test_labels_stay_in_the_folder(write_model, label):
    with pytest.raises(TensorFileError, match="wanted a path inside the model's folder") as error:
        load(write_model(text_with(label=label)))
    assert error.value.source is not None
    assert error.value.source.line == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "there is no '"),
        (lambda p: p.mkdir(), "has no graph.nnef: name the folder that has it"),
        (lambda p: p.write_bytes(b"\x1f\x8bxyz"), "is damaged"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "byte 0 is not UTF-8: this is no text of NNEF"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), f"is no text: wanted {KINDS}"),
        (lambda p: p.write_bytes(b"BZh91AY"), "is packed by bzip2: unpack it"),
        (lambda p: p.write_bytes(lzma.compress(b"x")), "is packed by xz: unpack it"),
        (
            lambda p: p.write_bytes(tensor_bytes(VALUES)),
            "is a tensor file of NNEF: give the folder",
        ),
        (lambda p: p.write_bytes(tarfile.TarInfo("a").tobuf()), "is a tar archive that is not pa"),
    ],
)
def test_non_models_are_refused(tmp_path, make, message):
    make(tmp_path / "m")
    with raises(ModelError, message):
        load_native(tmp_path / "m")


# -- graph.quant -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: f();", "1:1: wanted a tensor's name in quotes, got 'x'"),
        ('"x" f();', "1:5: wanted ':', got 'f'"),
        ('"x": f(1);', "f wants each argument named, and once"),
        ('"x": f(a = 1 + 1);', "wanted a number, or an array of numbers"),
        ('"x": f;', "wanted a call"),
        ('"x": f(); "x": f();', "tensor 'x' is quantised twice"),
        ("# hints\n", "the file has no entry: restore it, or delete it"),
    ],
)
def test_messages_of_the_quantisation_file(text, message):
    with raises(NnefSyntaxError, message):
        parse_quant(text)


def quantised(write_model, line, codes, bits, item):
    folder = write_model(text_with())
    (folder / "w.dat").write_bytes(tensor_bytes(codes, bits, item))
    (folder / "graph.quant").write_text(line)
    return load(folder)


CODES = np.array([[0, 1, 2], [7, 14, 15]])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("zero_point_linear_quantize(zero_point = 3, scale = 0.5, bits = 4, signed = false,"
         " symmetric = false)", (CODES - 3) * 0.5),
        ("zero_point_linear_quantize(zero_point = [3, 4], scale = [0.5, 2.0], bits = 4,"
         " signed = false, symmetric = false)", (CODES - [[3], [4]]) * [[0.5], [2.0]]),
        ("zero_point_linear_quantize(zero_point = 0, scale = [[1.0, 2.0, 3.0]], bits = 4,"
         " signed = false, symmetric = false)", CODES * [[1.0, 2.0, 3.0]]),
        ("min_max_linear_quantize(min = -1.0, max = 2.0, bits = 4, signed = false,"
         " symmetric = false)", CODES / 15 * 3 - 1),
        ("linear_quantize(min = -1.0, max = 2.0, bits = 4)", CODES / 15 * 3 - 1),
        ("logarithmic_quantize(max = 5.0, bits = 4)", 2.0 ** (CODES - 15 + 3)),
    ],
)  # fmt: skip
def test_stored_integers_are_dequantized(write_model, line, wanted):
    for item in (ItemType.QUANTIZED_UINT, ItemType.UINT):
        weights = quantised(write_model, f'"w": {line};', CODES, 4, item)
        assert weights.dtype == np.float32
        assert_allclose(weights, wanted, rtol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
def test_signed_codes(write_model, symmetric):
    codes = np.array([[-7, 0, 1], [2, 3, 7]])
    line = (
        '"w": min_max_linear_quantize(min = -1.0, max = 1.0, bits = 4, signed = true, '
        f"symmetric = {str(symmetric).lower()});"
    )
    weights = quantised(write_model, line, codes, 4, ItemType.QUANTIZED_INT)
    expected = (codes + 7) / 14 * 2 - 1 if symmetric else (codes + 8) / 15 * 2 - 1
    assert_allclose(weights, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (NOTHING, "graph.quant says nothing of its tensor: add a line for it"),
        ('"w": mystery(bits = 4);', "quantisation by mystery is unknown"),
        ('"w": linear_quantize(min = 0.0, bits = 4);', "linear_quantize wants 'max'"),
        ('"w": linear_quantize(min = [0.0, 1.0, 2.0], max = 1.0, bits = 4);',
         "'min' [3, 1] does not broadcast to [2, 3]"),
        ('"w": linear_quantize(min = [[[0.0]]], max = 1.0, bits = 4);', "'min' has rank 3"),
        ('"w": linear_quantize(min = [[0.0], 1.0], max = 1.0, bits = 4);', "in equal rows"),
        ('"w": linear_quantize(min = \'a\', max = 1.0, bits = 4);', "in equal rows"),
        ('"w": linear_quantize(min = 0.0, max = 1.0, bits = 400);', "'bits' wants 1 to 64"),
        ('"w": min_max_linear_quantize(min = 0.0, max = 1.0, bits = 4, symmetric = 1);',
         "'symmetric' wants true or false"),
    ],
)  # fmt: skip
def test_mismatched_quantization_is_refused(write_model, line, message):
    with raises(ModelError, message):
        quantised(write_model, line, CODES, 4, ItemType.QUANTIZED_UINT)


def test_the_deprecated_range_in_the_header(write_model):
    folder = write_model(text_with())
    data = bytearray(tensor_bytes(CODES, 4, ItemType.QUANTIZED_UINT))
    data[52:60] = np.array([-1, 2], np.float32).tobytes()
    (folder / "w.dat").write_bytes(data)
    assert_allclose(load(folder), CODES / 15 * 3 - 1, rtol=1e-6)


def test_variables_of_one_label_have_separate_quantization(write_model):
    more = "    v = variable(shape = [2, 3], label = 'w');\n"
    folder = write_model(
        text_with().replace("    y =", f"{more}{more.replace('v', 'u', 1)}    y =")
    )
    line = '"{}": zero_point_linear_quantize(zero_point = {}, scale = {}, bits = 4);\n'
    (folder / "w.dat").write_bytes(tensor_bytes(CODES, 4, ItemType.QUANTIZED_UINT))
    lines = [line.format("w", 3, 0.5), line.format("v", 0, 2.0), line.format("u", 3, 0.5)]
    (folder / "graph.quant").write_text("".join(lines))
    constants = load_native(folder).constants
    assert_array_equal(constants["w"], (CODES - 3) * 0.5)
    assert_array_equal(constants["v"], CODES * 2.0)
    assert constants["u"] is constants["w"]
    (folder / "graph.quant").write_text(lines[0])
    with pytest.raises(TensorFileError, match=r"graph\.nnef:6:9: .*says nothing of its tensor"):
        load_native(folder)


def test_lines_for_floats_divide_no_shared_tensor(write_model):
    """Two variables with one label share an array although only one has a line in ``graph.quant``.

    A float file holds the values themselves; a line only says how they were quantized.
    """
    more = "    v = variable(shape = [2, 3], label = 'w');\n"
    folder = write_model(text_with().replace("    y =", f"{more}    y ="), w=VALUES)
    (folder / "graph.quant").write_text('"v": linear_quantize(min = 0.0, max = 1.0, bits = 8);')
    constants = load_native(folder).constants
    assert constants["v"] is constants["w"]
