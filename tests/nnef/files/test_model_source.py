"""Tests of models that are loaded from memory, from bytes and from a game's own files."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import CmlError, InputError, ModelError, TensorFileError
from cml_engine.io.model_source import FolderSource
from cml_engine.nnef.files.tensor_file import tensor_bytes
from tests.fixtures.messages import raises
from tests.fixtures.models import FileSource
from tests.fixtures.pages import example

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
TEXT = """version 1.0;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2, 3]);
    w = variable<scalar>(shape = [2, 3], label = 'a/w');
    y = add(x, w);
}
"""


def files(**more):
    return {"graph.nnef": TEXT.encode(), "a/w.dat": tensor_bytes(VALUES), **more}


def test_model_source_is_a_structural_type():
    assert isinstance(FileSource({}), cml.ModelSource)
    assert isinstance(cml.nnef.MemoryModel("", {}), cml.ModelSource)
    assert not isinstance(Path("x"), cml.ModelSource)


def test_a_model_in_memory():
    for tensors in ({"a/w": VALUES}, {"/a/w": VALUES.astype(">f4")}):
        graph = cml.load(cml.nnef.MemoryModel(TEXT, tensors))
        assert_array_equal(graph.constants["w"], VALUES)
        assert graph.constants["w"].dtype == np.float32
    quant = '"w": zero_point_linear_quantize(zero_point = 1, scale = 0.5, bits = 8, signed = true);'
    stored = cml.nnef.MemoryModel(TEXT, {"a/w": VALUES.astype(np.int8)}, quant=quant)
    assert_array_equal(cml.load(stored).constants["w"], (VALUES - 1) / 2)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "<memory>/graph.nnef:5:9: cannot read 'a/w.dat': No such file in '<memory>'"),
        ({"../w": VALUES}, "label '../w' has '..' in it"),
        ({"w": VALUES, "/w": VALUES}, "two arrays are called '/w'"),
        ({"w": VALUES.astype(complex)}, "the array 'w': a tensor file cannot hold complex128"),
    ],
)
def test_unsuitable_arrays_are_refused(tensors, message):
    with raises(CmlError, message):
        cml.load(cml.nnef.MemoryModel(TEXT, tensors))


def test_memory_model_text_must_be_str():
    with pytest.raises(InputError, match="text is bytes: wanted a str"):
        cml.nnef.MemoryModel(TEXT.encode(), {})  # type: ignore[arg-type]


def test_model_source_is_asked_only_for_safe_names():
    source = FileSource(files())
    assert_array_equal(cml.load(source).constants["w"], VALUES)
    assert set(source.asked) == {"graph.nnef", "graph.quant", "a/w.dat"}
    for label in ("../w", "/../w", "C:/w", "a/../../w"):
        source = FileSource({"graph.nnef": TEXT.replace("a/w", label).encode()})
        with pytest.raises(TensorFileError, match="wanted a path inside the model's folder"):
            cml.load(source)
        assert set(source.asked) == {"graph.nnef", "graph.quant"}


def test_tensors_are_read_without_copies():
    more = "    v = variable<scalar>(shape = [2, 3], label = 'v');\n    u = add(w, v);\n    y ="
    text = TEXT.replace("    y =", more).replace("add(x, w)", "add(x, u)")
    source = FileSource({**files(), "v.dat": tensor_bytes(VALUES), "graph.nnef": text.encode()})
    source.position = ["graph.nnef", "v.dat", "a/w.dat"].index  # type: ignore[attr-defined]
    read = []
    original = source.read
    source.read = lambda file, *a: (read.append(file), original(file, *a))[1]  # type: ignore
    cml.load(source)
    assert read == [*["graph.nnef"] * 2, *["v.dat"] * 2, *["a/w.dat"] * 2]


class Broken(FileSource):
    def __init__(self, what):
        super().__init__(files())
        self.what = what

    def read(self, file, offset, count):
        if file.endswith(".dat"):
            return self.what(super().read(file, offset, count))
        return super().read(file, offset, count)


def raising(error):
    def raise_(data):
        raise error

    return raise_


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda data: data[:-1], "asked for 128 bytes at 0, 'pak:net' gave 127"),
        (lambda data: data + b"x", "asked for 128 bytes at 0, 'pak:net' gave 129"),
        (lambda data: None, "its source raised TypeError"),
        (raising(KeyError("no key")), "'pak:net/a/w.dat': its source raised KeyError: 'no key'"),
        (raising(OSError(5, "disk gone")), "cannot read 'pak:net/a/w.dat': disk gone"),
    ],
)
def test_faulty_source_is_named(what, message):
    with pytest.raises(ModelError, match="graph.nnef:5:9") as error:
        cml.load(Broken(what))
    assert message in str(error.value)


def test_sizes_before_memory():
    """Wrong sizes raise a ``ModelError``: a shape of a terabyte, a file's false size, and invalid
    sizes.

    No memory is allocated for them.
    """
    huge = TEXT.replace("[2, 3]", "[1024, 1048576]")
    with pytest.raises(ModelError, match="shape \\[2, 3\\], the variable wants"):
        cml.load(FileSource({**files(), "graph.nnef": huge.encode()}))
    source = FileSource(files())
    source.size = lambda file: 1 << 50  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="asked for 512 bytes at 0, 'pak:net' gave 153"):
        cml.load(source)
    for size in (-1, "many"):
        source.size = lambda file, size=size: size  # type: ignore
        with pytest.raises(
            ModelError, match=f"a size of {size!r}, wanted a number of bytes or None"
        ):
            cml.load(source)


def test_a_source_without_its_graph():
    with pytest.raises(ModelError, match="'pak:net' has no 'graph.nnef'"):
        cml.load(FileSource({}))
    with pytest.raises(ModelError, match="cannot read 'net.onnx': No such file in 'pak:net'"):
        cml.load(FileSource({}, "net.onnx"))


def test_bytes_of_an_archive(tmp_path):
    cml.save(cml.load(FileSource(files())), tmp_path / "m.tgz")
    data = (tmp_path / "m.tgz").read_bytes()
    for model in (
        data,
        bytearray(data),
        memoryview(data),
        FileSource({"net.tgz": data}, "net.tgz"),
    ):
        assert_array_equal(cml.load(model).constants["w"], VALUES)
    with pytest.raises(ModelError, match="'<bytes>' is damaged"):
        cml.load(data[:-3])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.encode(), "are NNEF's text, which has no weights"),
        (b"# a comment\n\n" + TEXT.encode(), "are NNEF's text, which has no weights"),
        (b"PK\3\4" + bytes(99), "103 bytes are a zip archive: unpack it"),
        (tensor_bytes(VALUES), "are a tensor file"),
        (b"", "these 0 bytes are empty"),
    ],
)
def test_invalid_bytes_are_refused(data, message):
    with raises(CmlError, message):
        cml.load(data)


def test_invalid_model_arguments_are_refused():
    with pytest.raises(InputError, match="cml.ModelSource, which has .*: name, size, read lacking"):
        cml.load(type("Half", (), {"graph": "graph.nnef"})())
    with pytest.raises(InputError, match="the model: wanted a path"):
        cml.load(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [b"", b"short", b"another text of the same size!", b"x" * 99])
@pytest.mark.parametrize("suffix", [".onnx", ".param", ".nnef"])
def test_file_changed_during_loading_is_refused(tmp_path, written, suffix, monkeypatch):
    """A file that is rewritten between the check of its size and its reading raises a
    ``ModelError``."""
    path = tmp_path / f"graph{suffix}"
    path.write_bytes(b"the text of a file before that")
    size = FolderSource.size

    def size_then_change(self, file):
        nbytes = size(self, file)
        path.write_bytes(written)
        os.utime(path, ns=(1, 1))
        return nbytes

    monkeypatch.setattr(FolderSource, "size", size_then_change)
    with pytest.raises(cml.ModelError, match="changed while it was read: load it again"):
        cml.load(path)


def test_documented_pak_file_source_runs(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "game.pk3", "w", zipfile.ZIP_DEFLATED) as pak:
        for name, data in files().items():
            pak.writestr(f"nets/upres/{name}", data)
    monkeypatch.chdir(tmp_path)
    namespace = {"cml": cml}
    exec(example("docs/your_model.md", "class PakModel"), namespace)
    assert_array_equal(namespace["graph"].constants["w"], VALUES)
    assert isinstance(namespace["PakModel"], type)
