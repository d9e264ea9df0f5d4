"""Tests of NNEF tensor files and of safetensors files: every type, and invalid files."""

import json
import struct

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import InputError, TensorFileError
from cml_engine.nnef.files.safetensors import read_safetensors
from cml_engine.nnef.files.tensor_file import (
    ItemType,
    MemoryBlob,
    read_stored,
    tensor_bytes,
)
from tests.fixtures.messages import raises


def round_trip(array, bits=None, item=None):
    return read_stored(MemoryBlob(tensor_bytes(array, bits, item), "t.dat")).values


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("order", "<>")
def test_floats(bits, order, rng):
    array = rng.normal(size=(2, 3, 4)).astype(f"{order}f{bits // 8}")
    values = round_trip(array)
    assert values.dtype == np.dtype(f"<f{bits // 8}")
    assert_array_equal(values, array)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(1, 65))
def test_integers_of_every_width(bits, signed, rng):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    dtype = np.int64 if signed else np.uint64
    array = rng.integers(low, high, size=(3, 7), dtype=dtype, endpoint=True)
    array.flat[:2] = low, high
    for item in (
        (ItemType.INT, ItemType.QUANTIZED_INT)
        if signed
        else (ItemType.UINT, ItemType.QUANTIZED_UINT)
    ):
        data = tensor_bytes(array, bits, item)
        assert len(data) == 128 + -(-21 * bits // 8)
        assert_array_equal(round_trip(array, bits, item), array)


def test_odd_widths_are_packed_from_the_top():
    assert tensor_bytes(np.array([1, 2, 15], np.uint8), 4)[128:] == bytes([0x12, 0xF0])
    assert tensor_bytes(np.array([0x123456], np.uint32), 24)[128:] == bytes([0x56, 0x34, 0x12])
    assert tensor_bytes(np.array([True, False, True]))[128:] == bytes([0b10100000])


def test_chunks_of_packed_integers_join():
    array = (np.arange(300_001) % 8).astype(np.uint8)
    assert_array_equal(round_trip(array, 3), array)


def test_bools(rng):
    array = rng.random((3, 5)) < 0.5
    assert_array_equal(round_trip(array), array)
    assert_array_equal(round_trip(array, 8), array)
    assert round_trip(np.array(True)).shape == ()


@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 3), (1,) * 8])
def test_shapes(shape):
    assert round_trip(np.zeros(shape, np.float32)).shape == shape


def test_the_deprecated_sign_of_unsigned_integers():
    data = bytearray(tensor_bytes(np.array([-1], np.int8).view(np.uint8)))
    data[52] = 1
    assert read_stored(MemoryBlob(bytes(data), "t")).values.tolist() == [-1]


GOOD = tensor_bytes(np.zeros((2, 3), np.float32))


def patched(offset, value):
    return GOOD[:offset] + value + GOOD[offset + len(value) :]


def word(*values):
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "wanted a header of 128 bytes, got 0"),
        (GOOD[:-1], "truncated: float32 [2, 3] wants 152 bytes, got 151"),
        (GOOD + b"x", "too long: float32 [2, 3] wants 152 bytes, got 153"),
        (patched(0, b"PK"), "wanted the magic bytes 4E EF, got 50 4B"),
        (patched(2, b"\2"), "version 2.0 is unknown: wanted 1.0"),
        (patched(4, word(20)), "takes 24 bytes, but the header says 20"),
        (patched(8, word(9)), "rank 9: wanted at most 8"),
        (patched(12, word(2**32 - 1, 2**32 - 1)), "[4294967295, 4294967295] takes 73,786,976"),
        (patched(44, word(65)), "float of 65 bits: wanted 16 or 32 or 64"),
        (patched(44, word(0, 1)), "uint of 0 bits: wanted 1 to 64"),
        (patched(44, word(2, 5)), "bool of 2 bits: wanted 1 or 8"),
        (patched(48, word(6)), "item type 6 is unknown: wanted 0 to 5"),
    ],
)
def test_damaged_tensor_file_is_named(data, message):
    with raises(TensorFileError, message) as error:
        read_stored(MemoryBlob(data, "w.dat"))
    assert "'w.dat' is damaged" in str(error.value)


def test_unsupported_values_are_refused_on_writing():
    for array, bits, message in [
        (np.zeros((1,) * 9, np.float32), None, "rank 9"),
        (np.zeros(1, np.complex64), None, "cannot hold complex64"),
        (np.array([16]), 4, "do not fit in 4 bits"),
        (np.array([1.5]), 8, "float of 8 bits"),
    ]:
        with pytest.raises(TensorFileError, match=message):
            tensor_bytes(array, bits)


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
    return cml.nnef.MemoryModel(
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
    weights = loaded(safetensors(w=(dtype, stored)), dtype=declared)
    expected = {"scalar": VALUES, "logical": VALUES > 2, "integer": VALUES.astype(np.int32)}
    assert_array_equal(weights, expected[declared], strict=True)
    assert not weights.flags.writeable


def test_a_file_and_labels_with_a_slash(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(
        safetensors(**{"a.w": ("F32", VALUES), "n.num_batches_tracked": ("I64", np.array(5))})
    )
    graph = cml.load(model(label="/a.w"), weights=tmp_path / "w.safetensors")
    assert_array_equal(graph.constants["w"], VALUES)


def test_extents_of_1_may_be_missing():
    weights = loaded(safetensors(w=("F32", VALUES.reshape(6))), shape="[1, 6]")
    assert_array_equal(weights, VALUES.reshape(1, 6))


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
