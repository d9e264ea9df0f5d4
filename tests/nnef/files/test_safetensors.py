"""Tests of safetensors files: valid ones of every type, and damaged ones."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import InputError, TensorFileError
from cml_engine.nnef.files.safetensors import read_safetensors
from cml_engine.nnef.files.tensor_file import MemoryBlob
from tests.fixtures.messages import raises

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def packed(text, data):
    """Returns the bytes of a safetensors file with that header, valid or not."""
    return len(text).to_bytes(8, "little") + text + data


def tensor(shape, offsets, names="w"):
    """Returns a header of float32 tensors with this shape and these offsets, as JSON."""
    entry = f'{{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}'
    return "{" + ", ".join(f'"{name}": {entry}' for name in names) + "}"


def safetensors(**tensors):
    """Returns the bytes of a safetensors file; each tensor is given as (type, array).

    They are stored one after the other.
    """
    header = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return packed(json.dumps(header).encode() + b"   ", data)


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
    with raises(TensorFileError, message):
        loaded(safetensors(**{name: ("F32", array) for name, array in tensors.items()}))


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


#: headers, the number of bytes behind them, and a part of the message
DAMAGED = {
    "no JSON": ("{'w': 1}", 0, "is no JSON"),
    "no UTF-8": (b'{"\xff": 1}', 0, "is no JSON"),
    "nested without end": ("[" * 10**6, 0, "is nested too deep"),
    "a list": ("[]", 0, "is no JSON object"),
    "a name twice": ('{"w": 1, "w": 2}', 0, "a name stands twice"),
    "digits without end": ('{"w": ' + "9" * 10**5 + "}", 0, "is no JSON"),
    "no tensor": ('{"w": 5}', 0, "'w' is no tensor with a dtype"),
    "no shape": (tensor('"x"', "[0, 4]"), 4, "has no shape"),
    "an extent that is true": (tensor("[true]", "[0, 4]"), 4, "no shape"),
    "a shape of 2^63": (tensor("[1099511627776, 1099511627776]", "[0, 4]"), 4, "takes 4,83"),
    "offsets that are real": (tensor("[1]", "[0.0, 4]"), 4, "data_offsets"),
    "offsets beyond the file": (tensor("[2]", "[0, 8]"), 4, "truncated"),
    "a tensor too short": (tensor("[2]", "[0, 4]"), 4, "takes 8 bytes"),
    "shared bytes": (tensor("[1]", "[0, 4]", "wv"), 4, "'v' shares bytes with another"),
    "a hole": (tensor("[1]", "[4, 8]"), 8, "'w' begins behind a hole"),
    "bytes left over": (tensor("[1]", "[0, 4]"), 5, "too long"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files(what):
    header, nbytes, message = DAMAGED[what]
    with raises(TensorFileError, message):
        loaded(packed(header if isinstance(header, bytes) else header.encode(), bytes(nbytes)))


def test_a_length_beyond_the_file_is_refused():
    with pytest.raises(TensorFileError, match="a header of 18,446,744"):
        loaded(b"\xff" * 8 + b"{}")


def test_missing_safetensors_and_models_without_weights(tmp_path):
    with pytest.raises(InputError, match="cannot read the weights '.*none.safetensors': there is"):
        cml.load(model(), weights=tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="wanted a path or bytes, got int"):
        cml.load(model(), weights=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bytes of a model: weights cannot be given for ONNX"):
        cml.load(b"\x08\x08", weights=b"")
