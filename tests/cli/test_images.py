"""Tests of pictures on the command line: bit depths, floats, alpha, scaled numbers, tiles."""

import struct
import sys
import zlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from cml_engine.errors import InputError
from cml_engine.io import arrays as array_files
from cml_engine.io.named_file import NamedFile, named_file
from cml_engine.ir.graph import Fact
from tests.fixtures.messages import raises
from tests.fixtures.models import write_model

HEIGHT, WIDTH = 5, 7
#: the rounding error of a number in [0, 1] by type of file: half a step
STEPS = {
    "png": 0.5 / 255,
    "png:bits=16": 0.5 / 65535,
    "tif:bits=8": 0.5 / 255,
    "tif:bits=16": 0.5 / 65535,
    "tif": 0.0,
    "tiff:bits=32": 0.0,
    "exr": 0.0,
    "exr:bits=16": 2**-12,
}


def needs(kind):
    """Skips the test unless the library is installed that reads files of this suffix."""
    pytest.importorskip({"tif": "tifffile", "exr": "OpenEXR", "png": "PIL"}[kind[:3]])


def fact(channels):
    return Fact("scalar", (1, channels, HEIGHT, WIDTH))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", STEPS)
def test_written_images_round_trip(tmp_path, rng, kind, channels):
    needs(kind)
    value = rng.random((1, channels, HEIGHT, WIDTH), np.float32)
    value[0, :, 0, :2] = 0, 1
    file, written = named_file(f"{tmp_path}/a:b.{kind}"), value
    if STEPS[kind] and not kind.startswith("exr"):  # whole numbers
        written, value = value.copy(), value.copy()
        written[0, 0, 1, :4], value[0, 0, 1, :4] = (-1, 2, np.nan, np.inf), (0, 1, 0, 1)
    if not STEPS[kind]:
        value[0, 0, 1, :3] = -3.5, 1e6, np.inf
    array_files.check_outputs({"y": file}, {"y": fact(channels)})
    array_files.write_outputs({"y": file}, {"y": written})
    decoded = array_files.read(file.path, "y", fact(channels))
    assert decoded.dtype == np.float32
    assert_allclose(decoded, value, rtol=0, atol=STEPS[kind] * 1.01)
    open_shape = (None, channels, None, None)
    assert array_files.shape_of(file.path, "y", open_shape) == fact(channels).shape
    assert array_files.shape_of(file.path, "y", (1, None, None, None)) is None
    with pytest.raises(InputError, match=rf"the model wants \[1, {channels}, 999, \?\]"):
        array_files.shape_of(file.path, "y", (1, channels, 999, None))


def test_tiff_planes_and_integers_are_read(tmp_path, rng):
    tifffile = pytest.importorskip("tifffile")
    samples = rng.integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(np.uint16)
    apart = np.ascontiguousarray(samples.transpose(2, 0, 1))
    tifffile.imwrite(tmp_path / "a.tif", apart, photometric="rgb", planarconfig="separate")
    decoded = array_files.read(tmp_path / "a.tif", "x", fact(3))
    assert_allclose(decoded[0].transpose(1, 2, 0), samples / 65535, atol=1e-7)
    tifffile.imwrite(tmp_path / "b.tif", samples[..., 0].astype(np.int16))
    with pytest.raises(InputError, match="samples of type int16"):
        array_files.read(tmp_path / "b.tif", "x", fact(1))


def test_depth_and_half_floats_of_exr(tmp_path, rng):
    openexr = pytest.importorskip("OpenEXR")
    depth = rng.random((HEIGHT, WIDTH)).astype(np.float16)
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with openexr.File(header, {"Z": depth}) as file:
        file.write(str(tmp_path / "z.exr"))
    decoded = array_files.read(tmp_path / "z.exr", "x", fact(1))
    assert_array_equal(decoded[0, 0], depth.astype(np.float32))


def test_alpha_is_dropped_only_on_request(tmp_path, rng):
    value = rng.random((1, 4, HEIGHT, WIDTH), np.float32)
    array_files.write_outputs({"y": tmp_path / "a.png"}, {"y": value})
    with pytest.raises(InputError, match="a.png:alpha=drop"):
        array_files.read(tmp_path / "a.png", "x", fact(3))
    decoded = array_files.read(named_file(f"{tmp_path}/a.png:alpha=drop"), "x", fact(3))
    assert_allclose(decoded, value[:, :3], atol=0.51 / 255)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    for kind, package in (("tif", "tifffile"), ("exr", "OpenEXR")):
        monkeypatch.setitem(sys.modules, package, None)
        (tmp_path / f"a.{kind}").write_bytes(b"")
        for call in (
            lambda kind=kind: array_files.read(tmp_path / f"a.{kind}", "x", fact(1)),
            lambda kind=kind: array_files.check_outputs(
                {"x": tmp_path / f"b.{kind}"}, {"x": fact(1)}
            ),  # fmt: skip
        ):
            with pytest.raises(InputError, match=rf"needs the package {package}: pip install"):
                call()


@pytest.mark.parametrize(
    "text, options",
    [
        ("a.png", {}),
        ("C:\\maps\\a.png", {}),
        ("a.png:scale=8848,shift=-400", {"scale": 8848.0, "shift": -400.0}),
        ("C:\\a.b\\h.tif:bits=16", {"bits": 16}),
        ("x=1:y.png", {}),
    ],
)
def test_options_after_a_file_name_are_parsed(text, options):
    file = named_file(text)
    assert {n: getattr(file, n) for n in options} == options
    assert str(file) == (text.rpartition(":")[0] if options else text)
    assert bool(options) == (file != NamedFile(file.path))


@pytest.mark.parametrize(
    "option, says",
    [
        ("scale=big", "scale=big"),
        ("gamma=2", "no option 'gamma'; wanted one of scale, shift, bits, alpha"),
        ("bits=12", "'bits=12': wanted bits of 8, 16, 32"),
        ("alpha=blend", "alpha of keep, drop"),
    ],
)
def test_unknown_options_after_a_file_name_are_refused(option, says):
    with pytest.raises(InputError, match=says):
        named_file(f"a.png:{option}")


def test_a_bit_depth_that_a_format_lacks_is_refused(tmp_path):
    file = named_file(f"{tmp_path}/a.png:bits=32")
    with pytest.raises(InputError, match="samples of 8 or 16 bits"):
        array_files.check_outputs({"y": file}, {"y": fact(1)})


# --- PNG files from other programs


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
    decoded = {channels: read(tmp_path, data, channels) for channels in (1, 3, 4)}
    assert {array.dtype for array in decoded.values()} == {np.dtype(np.float32)}
    assert_allclose(decoded[3], of_three, atol=1e-7)
    assert_allclose(decoded[4], np.concatenate([of_three, alpha], 1), atol=1e-7)
    luma = np.tensordot([0.299, 0.587, 0.114], of_three[0], 1)[None, None]
    assert_allclose(decoded[1], luma, atol=1e-6)


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
    expected = (samples != key).any(-1).astype(np.float32)
    assert_array_equal(read(tmp_path, data, 4)[0, 3], expected)
    with pytest.raises(InputError, match="transparent"):
        read(tmp_path, data, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_pictures_of_few_colours(tmp_path, rng, mode):
    pixels = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(tmp_path / "few.png")
    expected = np.asarray(image.convert("RGB"), np.float32).transpose(2, 0, 1)[None] / 255
    decoded = array_files.read(tmp_path / "few.png", "x", fact(3))
    assert_allclose(decoded, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (
            Fact("scalar", (1, 3, 8, 8)),
            "wanted shape [1, 3, 8, 8], got [1, 3, 5, 7]. Another",
        ),
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


# --- commands

DOUBLE = """version 1.0;
graph double(x) -> (y) { x = external<scalar>(shape = [1, 1, 16, 16]); y = mul(x, 2.0); }
"""
SMOOTH = """version 1.0;
extension KHR_enable_operator_expressions;
graph smooth(x) -> (y)
{
    x = external<scalar>(shape = [1, 1, 16, 16]);
    k = constant<scalar>(shape = [1, 1, 3, 3], value = [0.125]);
    y = conv(conv(x, k, 0.0), k, 0.0, border = 'reflect');
}
"""


def test_a_height_map_through_cml_run(tmp_path, rng, run_cml, refused):
    heights = rng.integers(0, 65536, (16, 16)).astype(np.uint16)
    Image.fromarray(heights).save(tmp_path / "h.png")
    model = write_model(tmp_path / "m.nnef", DOUBLE)
    source = f"x={tmp_path}/h.png:scale=1000,shift=-100"
    out = f"y={tmp_path}/o.png:scale=0.0005,shift=0.1,bits=16"
    npy = f"-i {source} -o y={tmp_path}/o.npy --backend cpu"
    run_cml(f"run {model} {npy}")
    assert_allclose(
        np.load(tmp_path / "o.npy")[0, 0], 2 * (heights / 65535 * 1000 - 100), atol=1e-3
    )
    run_cml(f"run {model} -i {source} -o {out} --backend cpu")
    with Image.open(tmp_path / "o.png") as image:
        assert np.abs(np.asarray(image).astype(int) - heights).max() <= 1
    assert "scale=x" in refused(f"run {model} -i x={tmp_path}/h.png:scale=x")


def test_tiles_through_cml_run(tmp_path, rng, run_cml, refused):
    model = write_model(tmp_path / "m.nnef", SMOOTH)
    large = rng.random((1, 1, 45, 37), np.float32)
    np.save(tmp_path / "x.npy", large)
    files = f"-i x={tmp_path}/x.npy --backend cpu"
    whole = f"--shape x=1,1,45,37 -o y={tmp_path}/whole.npy"
    run_cml(f"run {model} {files} {whole}")
    tiled = f"--tile 16 --overlap 3 -o y={tmp_path}/tiled.npy"
    assert "scalar[1,1,45,37]" in run_cml(f"run {model} {files} {tiled}").out
    assert_allclose(np.load(tmp_path / "tiled.npy"), np.load(tmp_path / "whole.npy"), atol=1e-6)
    assert "--overlap needs --tile" in refused(f"run {model} {files} --overlap 3")
    assert "keep nothing" in refused(f"run {model} {files} --tile 6 --overlap 3")
