"""Tests of models in archives: checksums are verified and sizes are limited."""

import gzip
import io
import random
import tarfile

import numpy as np
import pytest

from cml_engine.errors import ModelError
from cml_engine.io.load_limits import LoadLimits, load_budget
from cml_engine.nnef.files.tensor_file import tensor_bytes
from tests.nnef.conftest import load_native

TEXT = b"""version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [4, 4]);
    w = variable<scalar>(shape = [4, 4], label = 'w');
    v = variable<scalar>(shape = [4, 4], label = 'v');
    u = add(w, v);
    y = add(x, u);
}
"""
VALUES = {
    label: np.random.default_rng(i).normal(size=(4, 4)).astype(np.float32)
    for i, label in enumerate("wv")
}
FILES = [(f"{label}.dat", tensor_bytes(values)) for label, values in VALUES.items()]
FILES.append(("graph.nnef", TEXT))


def header(name, size, kind=b"0"):
    """Returns the 512 bytes of a member's tar header in the oldest format; ``size`` may be
    wrong."""
    block = bytearray(name.encode().ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2)
    block += b"%011o\0" % size + b"0" * 11 + b"\0" + b" " * 8 + kind
    block = block.ljust(512, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name, data, kind=b"0"):
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


END = bytes(1024)


def pack(path, content):
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def packed(path, format=tarfile.PAX_FORMAT, prefix=""):
    """Packs the model's files into a ``.tgz`` with the standard library and returns its path."""
    with tarfile.open(path, "w:gz", format=format) as tar:
        for name, data in FILES:
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def loaded(path):
    graph = load_native(path)
    assert [node.op for node in graph.nodes] == ["add", "add"]
    return dict(graph.constants)


def check_values(constants):
    assert constants.keys() == VALUES.keys()
    for name, values in VALUES.items():
        np.testing.assert_array_equal(constants[name], values)


@pytest.mark.parametrize(
    ("format", "longest"),
    [
        (tarfile.USTAR_FORMAT, "a" * 80 + "/b/" * 20),  # in two parts of the header
        (tarfile.GNU_FORMAT, "é" * 40 + "/" + "a/" * 40),
        (tarfile.PAX_FORMAT, "é" * 40 + "/" + "a/" * 40),
    ],
)
def test_every_format_is_read(tmp_path, format, longest):
    for prefix in ("", "./", "net/", longest):
        check_values(loaded(packed(tmp_path / "m.tgz", format, prefix)))


def test_archive_ignores_folders_and_other_files(tmp_path):
    content = header("net", 0, b"5") + member("net/readme.md", b"text" * 200)
    content += b"".join(member(f"net/{name}", data) for name, data in FILES) + END
    check_values(loaded(pack(tmp_path / "m.tgz", content)))
    check_values(loaded(pack(tmp_path / "m.tgz", content[:-1024])))  # without the zeros


def test_flipped_bit_in_an_archive_is_detected(tmp_path):
    """A flipped bit in an archive raises a ``ModelError``; fewer than ten bits change nothing
    instead.

    Those are in gzip's header, such as the packing time, or fill its last byte.
    """
    path = packed(tmp_path / "m.tgz")
    archive = path.read_bytes()
    chance = random.Random(0)
    undetected = []
    for at in range(0, len(archive), 2):
        damaged = bytearray(archive)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            check_values(loaded(path))
        except ModelError:
            continue
        undetected.append(at)
    assert len(undetected) < 10, undetected  # in gzip's header, and bits that fill its last byte


def test_damaged_tar_header_is_detected(tmp_path):
    """A damaged tar header raises a ``ModelError``, although gzip's own checksum is right."""
    content = b"".join(member(name, data) for name, data in FILES) + END
    starts = [content.index(name.encode().ljust(100, b"\0")) for name, _ in FILES]
    for start in starts:
        for at in range(start, start + 157, 7):
            damaged = bytearray(content)
            damaged[at] ^= 4
            with pytest.raises(ModelError, match=r"m\.tgz' is damaged \("):
                loaded(pack(tmp_path / "m.tgz", bytes(damaged)))


GOOD = b"".join(member(name, data) for name, data in FILES)
HOSTILE = {
    "more behind the end": (GOOD + END + member("w.dat", FILES[0][1]), "more behind its end"),
    "a size of many digits": (
        member("x", b"29 size=%s\n" % (b"9" * 20), b"x") + header("w.dat", 0), "it ends early"
    ),
    "a size below zero in words": (
        member("x", b"11 size=-5\n", b"x") + header("w.dat", 0), "a member of '-5' bytes"
    ),
    "a size beyond the stream": (header("w.dat", 2**33 - 1) + bytes(512), "it ends early"),
    "a header of 200 MiB": (header("x", 200 * 2**20, b"x"), "a header of 209,715,200 bytes"),
    "words without lengths": (member("x", b"path=graph.nnef\n", b"x"), "cannot be read"),
    "digits without end": (member("x", b"9" * 60_000, b"x"), "cannot be read"),
    "a sparse file": (header("w.dat", 512, b"S") + bytes(512), "'w.dat' is not a plain file"),
    "a sparse file in words": (
        member("x", b"22 GNU.sparse.major=1\n", b"x") + GOOD, "a file with holes"
    ),
    "a device": (header("graph.nnef", 0, b"3"), "'graph.nnef' is not a plain file"),
    "a name in words that leads out": (
        member("x", b"22 path=../graph.nnef\n", b"x") + header("y", 0), "leads out of the archive"
    ),
    "no archive": (TEXT * 20, "it is no tar archive"),
    "nothing": (b"", "has no graph.nnef in it"),
    "half a header": (GOOD + header("y", 0)[:300], "it ends early"),
    "a bomb": (member("big", bytes(50 * 2**20)) + GOOD, "unpacked, needs"),
    "files without end": (header("y", 0) * 1001, "a file in it needs"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives_are_refused(tmp_path, what):
    content, message = HOSTILE[what]
    with pytest.raises(ModelError) as error, load_budget(LoadLimits(steps=20_000)):
        loaded(pack(tmp_path / "m.tgz", content))
    assert message in str(error.value) and "m.tgz'" in str(error.value)


@pytest.mark.parametrize("more", [b"garbage", b"\0\0garbage", gzip.compress(b"more", mtime=0)])
def test_trailing_data_is_refused(tmp_path, more):
    path = packed(tmp_path / "m.tgz")
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(ModelError, match="is damaged"):
        loaded(path)


def test_every_length_of_a_cut_archive(tmp_path):
    path = packed(tmp_path / "m.tgz")
    archive = path.read_bytes()
    for size in range(2, len(archive), 4):
        path.write_bytes(archive[:size])
        with pytest.raises(ModelError, match="is damaged"):
            loaded(path)


def test_the_order_of_files_does_not_matter(tmp_path):
    """Weights are read in their stored order, without seeking back, whatever the graph's order
    is."""
    reads = []
    path = pack(tmp_path / "m.tgz", b"".join(member(n, d) for n, d in reversed(FILES)) + END)
    original = gzip.GzipFile.seek

    def seek(self, offset, whence=0):
        reads.append(offset)
        return int(original(self, offset, whence))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip.GzipFile, "seek", seek)
        constants = loaded(path)
    assert list(constants) == ["w", "v"]
    check_values(constants)
    assert reads == sorted(reads)
