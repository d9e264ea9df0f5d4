"""Damaged models: any bytes give a graph or a CmlError, quickly."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cml_engine import nnef
from cml_engine.errors import CmlError
from cml_engine.nnef.files.quant import parse_quant
from cml_engine.nnef.files.tensor_file import MemoryBlob, read_stored, tensor_bytes
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse, parse_document
from cml_engine.nnef.text.printer import print_document

TEXT = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
fragment f<? = scalar>(a: tensor<?>[], n: integer = 2, p: (integer, scalar)[] = [(1, 2.0)])
    -> (b: tensor<?>) { b = concat([for t in a, i in range_of(a) if i < n yield t], axis = 0); }
fragment g(x: tensor<scalar>, n: integer) -> (y: tensor<scalar>)
{ y = x * g(x, n - 1) if n > 0 else select(x < 1e-3 && !(x == 2.0), -x, x ^ 2.0); }
graph net(x) -> (y, z)
{
    x = external<scalar>(shape = [1, 2, 3]);  # a comment
    v = variable<scalar>(shape = [2, 3], label = 'v');
    i = variable<integer>(shape = [2], label = "i");
    [a, b] = split(x, axis = 1, ratios = [1] * 2);
    m, s = moments(a, axes = [1, 2][0:1] + [0]);
    y = f([g(b, 3), m], p = [(3 / 2, 1.0)]);
    z = cast<integer>(gather(v, i)) ;
    u = update(v, clamp(v, -1, 6.5));
}
"""

WORDS = (
    "graph fragment extension version tensor scalar integer ? < > <= [ ] ( ) { } , ; : = -> + - * "
    "/ ^ ! && || in for if else yield 0 1 -1 1e999 9999999999999 0.5 'a' \"b\" true x y f g relu "
    "conv range_of([0]*1000000) length_of shape_of(x) external variable update split # '"
)
TOKENS = [*WORDS.split(), "\n", " ", "\x00", "\u00e9"]

MODEST = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

edits = st.lists(
    st.tuples(st.integers(0, len(TEXT)), st.integers(0, 12), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "v.dat").write_bytes(tensor_bytes(np.ones((2, 3), np.float32)))
    (tmp_path / "i.dat").write_bytes(tensor_bytes(np.array([0, 1])))
    (tmp_path / "graph.nnef").write_text(TEXT)
    return tmp_path


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnef.NnefWarning)
        yield


def edited(text: str, changes: list[tuple[int, int, str]]) -> str:
    for at, length, token in changes:
        text = text[:at] + token + text[at + length :]
    return text


def primitive(op: str) -> bool:
    fragments = nnef.expansion.signatures.standard_fragments()
    return op in fragments and fragments[op].body is None


def test_the_undamaged_model_loads(folder: Path) -> None:
    assert len(nnef.load(folder, primitive).nodes) > 10


@MODEST
@given(edits)
def test_edited_text(folder: Path, changes: list[tuple[int, int, str]]) -> None:
    (folder / "graph.nnef").write_text(edited(TEXT, changes), encoding="utf-8")
    try:
        nnef.load(folder, primitive)
    except CmlError as error:
        assert str(error)


@MODEST
@given(edits)
def test_what_still_parses_survives_printing(changes: list[tuple[int, int, str]]) -> None:
    try:
        document = parse(edited(TEXT, changes))
    except CmlError:
        return
    assert parse(print_document(document)) == document


@MODEST
@given(st.lists(st.sampled_from(TOKENS), max_size=60).map(" ".join))
def test_strings_of_tokens(text: str) -> None:
    for complete in (text, f"graph g(x) -> (y) {{ y = {text}"):
        try:
            parse_document(SourceText(complete, "fuzz"))
        except CmlError as error:
            assert str(error)


@MODEST
@given(st.binary(max_size=200))
def test_any_bytes_as_text(folder: Path, data: bytes) -> None:
    (folder / "graph.nnef").write_bytes(data)
    with pytest.raises(CmlError):
        nnef.load(folder, primitive)


QUANT = '"v": zero_point_linear_quantize(zero_point = [[1], [2]], scale = 0.5, bits = 8);'


@MODEST
@given(edits.map(lambda changes: edited(QUANT, [(a % 80, n, t) for a, n, t in changes])))
def test_edited_quantisation(folder: Path, text: str) -> None:
    (folder / "v.dat").write_bytes(tensor_bytes(np.ones((2, 3), np.int8), 5))
    (folder / "graph.quant").write_text(text, encoding="utf-8")
    try:
        parse_quant(text)
        nnef.load(folder, primitive)
    except CmlError as error:
        assert str(error)


headers = st.lists(
    st.tuples(
        st.sampled_from([0, 2, *range(4, 60, 4)]),
        st.sampled_from([0, 1, 2, 3, 5, 7, 8, 24, 31, 64, 65, 2**16, 2**31, 2**32 - 1])
        | st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=5,
)


@MODEST
@given(headers, st.integers(-140, 20))
def test_damaged_tensor_files(changes: list[tuple[int, int]], more: int) -> None:
    data = bytearray(tensor_bytes(np.arange(6, dtype=np.int32).reshape(2, 3)))
    for offset, value in changes:
        struct.pack_into("<I", data, offset, value)
    damaged = bytes(data[:more] if more < 0 else data + bytes(more))
    try:
        stored = read_stored(MemoryBlob(damaged, "fuzz.dat"))
    except CmlError as error:
        assert str(error)
    else:
        assert stored.values.nbytes <= 64 * len(damaged)


def with_right_checksums(tar: bytearray) -> bytearray:
    """Corrects the checksum of every block that begins like a header of one of the model's
    files."""
    for at in range(0, len(tar) - 511, 512):
        if tar[at : at + 1] in (b"g", b"v", b"i", b".") and tar[at + 257 : at + 262] == b"ustar":
            tar[at + 148 : at + 156] = b" " * 8
            tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    return tar


@MODEST
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from([0, 100, 124, 125, 135, 148, 156, 257, 345, 512, 600]),
            st.sampled_from([b"\0", b"x", b"L", b"S", b"2", b"7777", b"\x80\xff", b"\xff", b"-1"])
            | st.binary(min_size=1, max_size=12),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.integers(-2000, 600),
)
def test_damaged_archives(
    folder: Path, changes: list[tuple[int, int, bytes]], mend: bool, more: int
) -> None:
    """The contents are damaged and packed again, so gzip's checksum is right."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("graph.nnef", "v.dat", "i.dat"):
            tar.add(folder / name, name)
    data = bytearray(content.getvalue()[: 8 * 512])
    for block, field, value in changes:
        at = (512 * block + field) % len(data)
        data[at : at + len(value)] = value
    if mend:
        data = with_right_checksums(data)
    data = data[:more] if more < 0 else data + bytes(more)
    path = folder / "model.tgz"
    path.write_bytes(gzip.compress(bytes(data), 1))
    try:
        nnef.load(path, primitive)
    except CmlError as error:
        assert str(error)
