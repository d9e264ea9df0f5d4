"""Tests of safetensors files: valid ones of every type, and damaged ones."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import InputError, TensorFileError
from cml_engine.nnef.files.safetensors import read_safetensors
from cml_engine.nnef.files.tensor_file import MemoryBlob

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def packed(header, data, pad=0):
    """Returns the bytes of a safetensors file with that header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(**tensors):
    """Returns the bytes of a safetensors file; each tensor is given as (type, array).

    They are stored one after the other.
    """
    header = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in tensors.items():
        header[name] = entry(dtype, list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return packed(header, data, pad=3)


def model(dtype="scalar", label="w", shape="[2, 3]"):
    return cml.MemoryModel(
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external(shape = [1]);\n"
        f"    w = variable<{dtype}>(shape = {shape}, label = '{label}');\n"
        "    y = select(true, w, w);\n}\n"
    )


def loaded(data, **more):
    return cml.load(model(**more), weights=data).constants["w"]


def bfloat16(array):
    return (array.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.filterwarnings("ignore::cml_engine.nnef.NnefWarning")
@pytest.mark.parametrize(
    ("dtype", "stored", "declared"),
    [
        ("F32", VALUES, "scalar"),
        ("F16", VALUES.astype(np.float16), "scalar"),
        ("F64", VALUES.astype(np.float64), "scalar"),
        ("BF16", bfloat16(VALUES), "scalar"),
        ("BOOL", VALUES > 2, "logical"),
        *(
            (f"{sign}{bits}", VALUES.astype(f"{sign.lower()}{bits // 8}"), "integer")
            for sign in "IU"
            for bits in (8, 16, 32, 64)
        ),
    ],
)
def test_every_type(dtype, stored, declared):
    found = loaded(safetensors(w=(dtype, stored)), dtype=declared)
    assert_array_equal(found, VALUES > 2 if dtype == "BOOL" else VALUES)
    assert not found.flags.writeable


def test_a_file_and_labels_with_a_slash(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(
        safetensors(**{"a.w": ("F32", VALUES), "n.num_batches_tracked": ("I64", np.array(5))})
    )
    graph = cml.load(model(label="/a.w"), weights=tmp_path / "w.safetensors")
    assert_array_equal(graph.constants["w"], VALUES)


def test_extents_of_1_may_be_missing():
    found = loaded(safetensors(w=("F32", VALUES.reshape(6))), shape="[1, 6]")
    assert_array_equal(found, VALUES.reshape(1, 6))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ww": VALUES}, "'<weights>' has no tensor 'w' (near: 'ww')"),
        ({}, "'<weights>' has no tensor 'w':"),
        ({"w": VALUES, "w2": VALUES, "v": VALUES}, "has 'w2' and 1 more, which no variable of"),
        ({"w": VALUES.T}, "'<weights>: w' has shape [3, 2], the variable wants [2, 3]"),
        ({"w": VALUES.reshape(6)}, "'<weights>: w' has shape [6], the variable wants [2, 3]"),
    ],
)
def test_mismatched_names_and_shapes_are_refused(tensors, message):
    with pytest.raises(TensorFileError) as error:
        loaded(safetensors(**{name: ("F32", array) for name, array in tensors.items()}))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "stored", "declared", "message"),
    [
        ("F8_E4M3", VALUES.astype(np.uint8), "scalar", "is of type F8_E4M3: wanted one of F16"),
        ("I8", VALUES.astype(np.int8), "scalar", "holds int items of 8 bits, the variable wants"),
        ("I64", VALUES.astype(np.int64) + 2**40, "integer", "wanted integers of 32 bits"),
        ("F32", VALUES, "logical", "holds float items of 32 bits, the variable wants logical"),
    ],
)
def test_mismatched_types_are_refused(dtype, stored, declared, message):
    with pytest.raises(TensorFileError) as error:
        loaded(safetensors(w=(dtype, stored)), dtype=declared)
    assert message in str(error.value) and "graph.nnef:5:9" in str(error.value)


def test_every_truncation():
    data = safetensors(w=("F32", VALUES), v=("I8", np.zeros(3, np.int8)))
    assert len(read_safetensors(MemoryBlob(data, "w"))) == 2
    for end in range(len(data)):
        with pytest.raises(TensorFileError, match="damaged or no safetensors file"):
            read_safetensors(MemoryBlob(data[:end], "w"))


F4 = entry("F32", [1], 0, 4)
DAMAGED = {
    "a length beyond the file": (b"\xff" * 8 + b"{}", "a header of 18,446,744"),
    "no JSON": (packed(b"{'w': 1}", b""), "is no JSON"),
    "no UTF-8": (packed(b'{"\xff": 1}', b""), "is no JSON"),
    "nested without end": (packed(b"[" * 10**6, b""), "is nested too deep"),
    "a list": (packed([], b""), "is no JSON object"),
    "a name twice": (packed(b'{"w": 1, "w": 2}', b""), "a name stands twice"),
    "digits without end": (packed(b'{"w": ' + b"9" * 10**5 + b"}", b""), "is no JSON"),
    "no tensor": (packed({"w": 5}, b""), "'w' is no tensor with a dtype"),
    "no shape": (packed({"w": {**F4, "shape": "x"}}, bytes(4)), "has no shape"),
    "an extent that is true": (packed({"w": entry("F32", [True], 0, 4)}, bytes(4)), "no shape"),
    "a shape of 2^63": (packed({"w": entry("F32", [2**40, 2**40], 0, 4)}, bytes(4)), "takes 4,83"),
    "offsets that are real": (packed({"w": entry("F32", [1], 0.0, 4)}, bytes(4)), "data_offsets"),
    "offsets beyond the file": (packed({"w": entry("F32", [2], 0, 8)}, bytes(4)), "truncated"),
    "a tensor too short": (packed({"w": entry("F32", [2], 0, 4)}, bytes(4)), "takes 8 bytes"),
    "shared bytes": (packed({"w": F4, "v": F4}, bytes(4)), "'v' shares bytes with another"),
    "a hole": (packed({"w": entry("F32", [1], 4, 8)}, bytes(8)), "'w' begins behind a hole"),
    "bytes left over": (packed({"w": F4}, bytes(5)), "too long"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files(what):
    data, message = DAMAGED[what]
    with pytest.raises(TensorFileError) as error:
        loaded(data)
    assert message in str(error.value)


def test_missing_safetensors_and_models_without_weights(tmp_path):
    with pytest.raises(InputError, match="cannot read the weights '.*none.safetensors': there is"):
        cml.load(model(), weights=tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="wanted a path or bytes, got int"):
        cml.load(model(), weights=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bytes of a model: weights cannot be given for ONNX"):
        cml.load(b"\x08\x08", weights=b"")
