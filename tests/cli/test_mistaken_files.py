"""Tests of the messages for what people give in place of a model: what it is, and the next step."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import CmlError
from cml_engine.nnef.files.tensor_file import tensor_bytes
from tests.fixtures.models import SCALED, FileSource, write_model
from tests.fixtures.ncnn_models import write as write_ncnn

POINTER = (
    f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 21474836\n".encode()
)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>" + bytes(4096)
LFS = "a pointer of Git LFS in place of the file: fetch the file, with 'git lfs pull'"
WEB = "a web page: download the file itself, not the page that shows it"


def zipped(name):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, b"model")
    return packed.getvalue()


#: what people give, by a name: its bytes, and what the message says for every format
GIVEN = {
    "pointer": (POINTER, LFS),
    "pointer with a mark": (b"\xef\xbb\xbf" + POINTER, LFS),
    "page": (PAGE, WEB),
    "page in other letters": (b"\n <!-- saved -->\n<HTML lang='en'>", WEB),
    "zip": (zipped("model/m.onnx"), "a zip archive: unpack it and give the model in it"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive: unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd\0\0", "packed by zstd: unpack it"),
    "pickle": (pickle.dumps({"w": [1.0]}), "a pickle, as PyTorch writes them: export the model"),
    "zipped pickle": (zipped("archive/data.pkl"), "a pickle, as PyTorch writes them: export the"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file, as Keras writes them: export"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(99), "a TensorFlow Lite model: export the model"),
    "ort": (b"\x20\0\0\0ORTM" + bytes(99), "ONNX Runtime's own format: give the .onnx that it"),
    "gguf": (b"GGUF\3\0\0\0", "a GGUF file of weights without a network: export the model"),
    "safetensors": (b"\x08\0\0\0\0\0\0\0{\"a\":{}}", "a safetensors file of weights without a net"),
    "array": (b"\x93NUMPY\1\0v\0{'descr'", "an array of NumPy's: give the model"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(9), "a picture: give the model"),
    "tensor": (tensor_bytes(np.ones(3, np.float32)), "a tensor file of NNEF: give the folder"),
    "binary param": (b"\xdd\x85\x76\0\2\0\0\0", "binary form of a .param: give the .param of text"),
    "no end": (bytes(4096), "full of zeros, as downloads are that did not end: download it again"),
    "nothing": (b"", "empty: export or download it again"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["onnx", "nnef", "param", "tgz", "bytes"])
@pytest.mark.parametrize("name", GIVEN)
def test_files_that_are_no_model_are_named(tmp_path, name, suffix, refused):
    data, said = GIVEN[name]
    if suffix == "bytes":
        with pytest.raises(CmlError) as error:
            cml.load(data)
        message = str(error.value)
    else:
        (tmp_path / f"m.{suffix}").write_bytes(data)
        message = refused(f"info {tmp_path}/m.{suffix}")
        assert message.count("\n") == 1  # one sentence, in one line
    assert said in message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"error": "Not Found"}', 'text that begins with \'{"error": "Not Found"}\': export or'),
        (b"404: Not Found", "text that begins with '404: Not Found': export or download it again"),
        (b"<?xml version='1.0'?><Error/>", "text that begins with '<?xml version='1.0'?><Error/>'"),
        (gzip.compress(b"model", mtime=0), "packed by gzip: unpack it"),
    ],
)
def test_answers_of_a_server_in_place_of_onnx(tmp_path, data, said):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(CmlError) as error:
        cml.load(path)
    assert said in str(error.value)


@pytest.mark.parametrize(("data", "said"), [(POINTER, LFS), (PAGE, WEB)])
def test_weights_that_are_not_there_are_named(tmp_path, data, said):
    """A page may be longer than the weights, which would then be read from it."""
    text = SCALED.replace("scaled = mul(x, 2.0);", "w = variable<scalar>(shape = [1, 2, 1, 1], "
                          "label = 'w'); scaled = mul(x, w);")  # fmt: skip
    folder = write_model(tmp_path / "net", text)
    (folder / "w.dat").write_bytes(data)
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "w.safetensors").write_bytes(data)
    param = write_ncnn(tmp_path, ["Input i 0 1 in 0=4", "Scale s 1 1 in out 0=4"], data)
    for load in (
        lambda: cml.load(folder),
        lambda: cml.load(folder, weights=tmp_path / "w.safetensors"),
        lambda: cml.load(param),
        lambda: cml.load(FileSource({"graph.nnef": text.encode(), "w.dat": data})),
    ):
        with pytest.raises(CmlError) as error:
            load()
        assert said in str(error.value)
    good = len(header).to_bytes(8, "little") + header + np.ones(2, "f4").tobytes()
    assert cml.load(folder, weights=good).constants["w"].tolist() == [[[[1]], [[1]]]]


@pytest.mark.parametrize(("data", "said"), [(POINTER, LFS), (PAGE, WEB)])
def test_external_data_that_is_not_there_is_named(tmp_path, data, said):
    onnx = pytest.importorskip("onnx")
    from tests.fixtures.onnx_models import model

    network = model("h = Add(x, v); y = Add(h, w)", weights=dict.fromkeys("vw", np.ones(4, "f4")))
    place = {"save_as_external_data": True, "size_threshold": 0, "location": "m.onnx.data"}
    onnx.save(network, tmp_path / "m.onnx", **place)
    (tmp_path / "m.onnx.data").write_bytes(data)
    with pytest.raises(CmlError) as error:
        cml.load(tmp_path / "m.onnx")
    assert f"m.onnx.data' is {said}" in str(error.value)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(
        CmlError, match="put that file beside the model, for models above 2 GB have"
    ):
        cml.load(tmp_path / "m.onnx")
    assert cml.load(tmp_path / "m.onnx", random_weights=1).inputs == ("x",)


@pytest.mark.parametrize(("data", "said"), [(POINTER, LFS), (PAGE, WEB)])
def test_inputs_and_cooked_files_that_are_not_there_are_named(tmp_path, data, said, refused):
    text = SCALED.replace("[1, 2, 3, 5]", "[1, 3, 8, 8]")
    folder = write_model(tmp_path / "net", text)
    for suffix in ("npy", "npz", "png", "tif"):
        (tmp_path / f"x.{suffix}").write_bytes(data)
        words = f"run {folder} -i x={tmp_path}/x.{suffix} --backend cpu"
        assert f"x.{suffix}' is {said}" in refused(words)
    assert said in refused(f"quantize {folder} {tmp_path}/out -i x={tmp_path}/x.npz")
    (tmp_path / "net.cml").write_bytes(data)
    assert said in refused(f"info {tmp_path}/net.cml")


def test_open_extents_that_are_written_as_numbers(tmp_path, refused):
    pytest.importorskip("onnx")
    from tests.fixtures.onnx_models import model, saved

    network = model("y = Relu(x)", "x: [1, 3, 8, 8]")
    for axis in (2, 3):
        network.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = -1
    path = saved(network, tmp_path / "m.onnx")
    message = refused(f"info {path}")
    assert "input 'x' is float32[1,3,?,?]" in message
    assert "say --shape x=1,3,N,N with numbers" in message
    assert cml.load(path, shapes=(1, 3, 4, 5)).facts["y"].shape == (1, 3, 4, 5)


def test_other_forms_of_ncnn_are_named(tmp_path, refused):
    (tmp_path / "m.param.bin").write_bytes(b"\xdd\x85\x76\0\2\0\0\0")
    message = refused(f"info {tmp_path}/m.param.bin")
    assert "it is the binary form of an ncnn .param. Give the .param of text" in message
    path = tmp_path / "own.param"
    path.write_text("7767517\n2 1\npnnx.Input in0 0 1 0\npnnx.Output out0 1 0 0\n")
    assert "the file is pnnx's own, not ncnn's: give the .ncnn.param" in refused(f"info {path}")
