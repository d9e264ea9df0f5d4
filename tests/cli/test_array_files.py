"""Tests of tensor files: values survive, damage is found, and a failed write loses nothing."""

import errno
import struct
import zipfile
import zlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from cml_engine.distributed.sources import first_shape
from cml_engine.errors import InputError
from cml_engine.io import arrays as array_files
from cml_engine.io import pictures
from cml_engine.io.arrays import sample_shape
from cml_engine.ir.graph import Fact
from cml_engine.tools.cli import main
from tests.fixtures.messages import raises
from tests.fixtures.models import write_model

HEIGHT, WIDTH = 4, 5


def fact(channels, height=HEIGHT, width=WIDTH):
    return Fact("scalar", (1, channels, height, width))


# --- pictures


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(samples, depth, colour, *more, filter=0):
    """Returns a PNG of the samples as bytes.

    ``filter`` is PNG's row filter: 0 none, 1 left, 2 up. ``more`` are further chunks behind the
    header.
    """
    height, width, channels = samples.shape
    rows = samples.astype(">u2" if depth == 16 else "u1").view("u1").reshape(height, -1)
    back = channels * depth // 8
    left = np.pad(rows, ((0, 0), (back, 0)))[:, :-back]
    up = np.pad(rows, ((1, 0), (0, 0)))[:-1]
    coded = rows - {0: 0, 1: left, 2: up}[filter]
    raw = np.pad(coded, ((0, 0), (1, 0)), constant_values=filter).tobytes()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    parts = (head, *more, chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = KINDS = {0: 1, 2: 3, 4: 2, 6: 4}


def read(tmp_path, data, channels):
    path = tmp_path / "in.png"
    path.write_bytes(data)
    return array_files.read(path, "x", fact(channels))


@pytest.mark.parametrize("filter", [0, 1, 2])
@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("colour", KINDS)
def test_samples_of_every_kind_and_depth_are_read_exactly(tmp_path, rng, colour, depth, filter):
    largest = 2**depth - 1
    samples = rng.integers(0, largest + 1, (HEIGHT, WIDTH, KINDS[colour]))
    samples[0, 0], samples[0, 1], samples[0, 2] = 0, largest, largest // 2
    if colour in (GREY_ALPHA, COLOUR_ALPHA):
        samples[..., -1] = largest
    data = png(samples, depth, colour, filter=filter)
    planes = samples.transpose(2, 0, 1)[None] / largest
    colours = planes if colour in (GREY, COLOUR) else planes[:, :-1]
    of_three = np.repeat(colours, 3, 1) if colours.shape[1] == 1 else colours
    alpha = np.ones((1, 1, HEIGHT, WIDTH))
    found = {channels: read(tmp_path, data, channels) for channels in (1, 3, 4)}
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    assert_allclose(found[3], of_three, atol=1e-7)
    assert_allclose(found[4], np.concatenate([of_three, alpha], 1), atol=1e-7)
    luma = np.tensordot([0.299, 0.587, 0.114], of_three[0], 1)[None, None]
    assert_allclose(found[1], luma, atol=1e-6)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("colour", [GREY_ALPHA, COLOUR_ALPHA])
def test_transparency_is_a_fourth_channel_or_refused(tmp_path, rng, colour, depth):
    samples = rng.integers(0, 2**depth, (HEIGHT, WIDTH, KINDS[colour]))
    samples[1, 1, -1] = 7
    data = png(samples, depth, colour)
    alpha = read(tmp_path, data, 4)[0, 3]
    assert_allclose(alpha, samples[..., -1] / (2**depth - 1), atol=1e-7)
    for channels in (1, 3):
        with pytest.raises(InputError, match="has transparent pixels and the model takes"):
            read(tmp_path, data, channels)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("colour", [GREY, COLOUR])
def test_a_transparent_colour_is_read_as_alpha(tmp_path, rng, colour, depth):
    samples = rng.integers(0, 2**depth, (HEIGHT, WIDTH, KINDS[colour]))
    key = samples[2, 3]
    data = png(samples, depth, colour, chunk(b"tRNS", key.astype(">u2").tobytes()))
    wanted = (samples != key).any(-1).astype(np.float32)
    assert_array_equal(read(tmp_path, data, 4)[0, 3], wanted)
    with pytest.raises(InputError, match="transparent"):
        read(tmp_path, data, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_pictures_of_few_colours(tmp_path, rng, mode):
    pixels = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(tmp_path / "few.png")
    wanted = np.asarray(image.convert("RGB"), np.float32).transpose(2, 0, 1)[None] / 255
    found = array_files.read(tmp_path / "few.png", "x", fact(3))
    assert_allclose(found, wanted, atol=1e-7)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (fact(3, 8, 8), "wanted shape [1, 3, 8, 8], got [1, 3, 4, 5]. Another shape is"),
        (fact(2), "a PNG holds scalar[1,C,H,W]"),
        (Fact("scalar", (3, 4, 5)), "Give an .npy instead"),
        (Fact("integer", (1, 3, 4, 5)), "Give an .npy instead"),
    ],
)
def test_picture_of_another_shape_is_refused(tmp_path, wanted, says):
    (tmp_path / "in.png").write_bytes(png(np.zeros((HEIGHT, WIDTH, 3)), 8, COLOUR))
    with raises(InputError, says):
        array_files.read(tmp_path / "in.png", "x", wanted)


def test_picture_size_is_checked_before_allocation(tmp_path):
    data = bytearray(png(np.zeros((HEIGHT, WIDTH, 3)), 8, COLOUR))
    data[16:29] = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 16, COLOUR, 0, 0, 0)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    with pytest.raises(InputError, match=r"got \[1, 3, 2147483647, 2147483647\]"):
        read(tmp_path, bytes(data), 3)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_are_read_as_they_were_written(tmp_path, rng, channels):
    array = rng.random((1, channels, HEIGHT, WIDTH)).astype(np.float32)
    array[0, 0, 0, :4] = (-1, 2, np.nan, np.inf)
    array_files.write_outputs({"x": tmp_path / "out.png"}, {"x": array})
    found = array_files.read(tmp_path / "out.png", "x", fact(channels))
    wanted = np.clip(np.nan_to_num(array, nan=0, posinf=1), 0, 1)
    assert np.abs(found - wanted).max() <= 0.51 / 255


# --- damage

ARRAY = np.linspace(0, 1, HEIGHT * WIDTH * 3, dtype=np.float32).reshape(1, 3, HEIGHT, WIDTH)


@pytest.mark.parametrize("suffix", [".npz", ".png"])
def test_flipped_bit_is_detected_or_harmless(tmp_path, rng, suffix):
    path = tmp_path / f"in{suffix}"
    array_files.write_outputs({"x": path}, {"x": ARRAY})
    whole = path.read_bytes()
    before = array_files.read(path, "x", fact(3))
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = array_files.read(path, "x", fact(3))
        except InputError as error:
            assert "cannot read" in str(error) or "got" in str(error)
        else:
            assert_array_equal(found, before)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".png"])
def test_every_length_of_a_cut_file(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    array_files.write_outputs({"x": path}, {"x": ARRAY})
    whole = path.read_bytes()
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cannot read"):
            array_files.read(path, "x", fact(3))


def npy(header):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HEADERS = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999), }": "got [9999999999,",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3, 4, 5), }": "got [-1, 3, 4, 5]",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1, 3, 4, 5), }": "items of type object",
    "{'descr': '<U9999999', 'fortran_order': False, 'shape': (1, 3, 4, 5), }": "items of type",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 4, 5), }": "it ends early",
    "{'descr': '<f4', 'shape': (1, 3, 4, 5), }": "cannot read",
    "[" * 100: "cannot read",
    "nonsense": "cannot read",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("header", HEADERS)
def test_hostile_headers(tmp_path, header, packed):
    path = tmp_path / ("in.npz" if packed else "in.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", npy(header))
    else:
        path.write_bytes(npy(header))
    with raises(InputError, HEADERS[header]):
        array_files.read(path, "x", fact(3))


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "|b1", "<i8", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_every_type_are_read_unchanged(tmp_path, rng, dtype, order):
    array = np.asarray(rng.integers(0, 2, (1, 3, HEIGHT, WIDTH)), dtype, order=order)
    np.save(tmp_path / "in.npy", array)
    np.savez_compressed(tmp_path / "in.npz", other=array)
    for suffix in (".npy", ".npz"):
        found = array_files.read(tmp_path / f"in{suffix}", "x", fact(3))
        assert found.dtype == array.dtype
        assert_array_equal(found, array)


# --- outputs

TWO = """version 1.0;
graph two(x) -> (allow_pickle, file)
{
    x = external<scalar>(shape = [1, 3, 4, 5]);
    allow_pickle = copy(x);
    file = neg(x);
}
"""


@pytest.fixture
def two(tmp_path):
    np.save(tmp_path / "x.npy", ARRAY)
    model = write_model(tmp_path / "two", TWO)

    def run(*outputs):
        flags = [flag for output in outputs for flag in ("-o", output)]
        given = ["-i", f"x={tmp_path}/x.npy", "--backend", "cpu"]
        return main(["run", str(model), *given, *flags])

    return run


def test_outputs_of_any_name_are_saved_in_one_archive(two, tmp_path):
    assert two(f"allow_pickle={tmp_path}/o.npz", f"file={tmp_path}/two/../o.npz") == 0
    with np.load(tmp_path / "o.npz") as found:
        assert sorted(found.files) == ["allow_pickle", "file"]
        assert_array_equal(found["allow_pickle"], ARRAY)
        assert_array_equal(found["file"], -ARRAY)


@pytest.mark.parametrize("suffix", [".npy", ".png", ".PNG"])
def test_two_outputs_in_one_file_are_refused_before_the_run(two, tmp_path, suffix, capsys):
    assert two(f"allow_pickle={tmp_path}/o{suffix}", f"file={tmp_path}/two/../o{suffix}") == 2
    said = capsys.readouterr().err
    assert "would hold the outputs 'allow_pickle' and 'file'" in said and ".npz for all" in said
    assert not (tmp_path / f"o{suffix}").exists()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".png"])
def test_full_disk_keeps_the_old_file_with_a_message(two, tmp_path, capsys, monkeypatch, suffix):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / f"o{suffix}"
    out.write_bytes(b"old")
    monkeypatch.setattr(np.lib.format, "write_array", full)
    monkeypatch.setattr(pictures, "write", full)
    monkeypatch.setattr(np, "save", full)
    assert two(f"file={out}") == 2
    assert f"cannot write '{out}': No space left on device" in capsys.readouterr().err
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted((f"o{suffix}", "two", "x.npy"))


def test_check_place_changes_nothing(tmp_path):
    (tmp_path / "there").write_text("old")
    before = (tmp_path / "there").stat().st_mtime_ns
    array_files.check_place(tmp_path / "there")
    array_files.check_place(tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").stat().st_mtime_ns == before
    for place, says in (("no/such", "no folder"), (".", "Is a directory")):
        with pytest.raises(InputError, match=says):
            array_files.check_place(tmp_path / place)


def test_output_into_a_model_file_is_refused(tmp_path):
    (tmp_path / "graph.nnef").write_text("old")
    for model in (tmp_path, tmp_path / "graph.nnef"):
        with pytest.raises(InputError, match="graph.nnef' is the model's own: name another file"):
            array_files.check_place(tmp_path / "graph.nnef", str(model))
        array_files.check_place(tmp_path / "trace.json", str(model))


# --- shapes that a model leaves open


def test_open_extents_are_taken_from_sample_files(tmp_path):
    known = (None, 3, None, None)
    np.savez(tmp_path / "s.npz", x=np.zeros((9, 3, 4, 5), np.float32))
    np.save(tmp_path / "s.npy", np.zeros((9, 1, 3, 4, 5), np.float32))
    np.save(tmp_path / "flat.npy", np.zeros((4, 5), np.float32))
    for name, wanted in {"s.npz": (1, 3, 4, 5), "s.npy": (1, 3, 4, 5), "flat.npy": None}.items():
        assert sample_shape(str(tmp_path / name), "x", known) == wanted
    assert sample_shape(str(tmp_path / "s.npz"), "x", None) is None
    assert first_shape(str(tmp_path / "*.npz"), "x", known) == (9, 3, 4, 5)
    with pytest.raises(InputError, match=r"no such file. Wanted"):
        first_shape(str(tmp_path / "*.png"), "x", known)
