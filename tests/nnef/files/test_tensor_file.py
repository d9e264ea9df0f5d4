"""Tests of NNEF tensor files: every item type, and invalid files."""

import struct

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cml_engine.errors import TensorFileError
from cml_engine.io.model_source import FolderSource, SourceFile
from cml_engine.nnef.files.tensor_file import (
    ItemType,
    MemoryBlob,
    read_header,
    read_stored,
    tensor_bytes,
    write_tensor,
)
from tests.fixtures.messages import raises


def round_trip(array, bits=None, item=None):
    return read_stored(MemoryBlob(tensor_bytes(array, bits, item), "t.dat")).values


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("order", "<>")
def test_floats(bits, order, rng):
    array = rng.normal(size=(2, 3, 4)).astype(f"{order}f{bits // 8}")
    found = round_trip(array)
    assert found.dtype == np.dtype(f"<f{bits // 8}")
    assert_array_equal(found, array)


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


def test_a_file_on_disk(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_tensor(tmp_path / "a" / "b.dat", array)
    assert_array_equal(
        read_stored(SourceFile(FolderSource(tmp_path, "graph.nnef"), "a/b.dat")).values, array
    )


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


def test_a_missing_file(tmp_path):
    with pytest.raises(TensorFileError, match="cannot read '.*w.dat': No such file"):
        read_header(SourceFile(FolderSource(tmp_path, "graph.nnef"), "w.dat"))
