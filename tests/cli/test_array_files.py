"""Tests of tensor files: values survive, damage is found, and a failed write loses nothing."""

import errno
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cml_engine.distributed.sources import first_shape
from cml_engine.errors import InputError
from cml_engine.io import arrays as array_files
from cml_engine.io import pictures
from cml_engine.io.arrays import sample_shape
from cml_engine.ir.graph import Fact
from cml_engine.tools.cli import main
from tests.fixtures.messages import raises
from tests.fixtures.models import write_model

FACT = Fact("scalar", (1, 3, 4, 5))

# --- damage

ARRAY = np.linspace(0, 1, 60, dtype=np.float32).reshape(FACT.shape)


@pytest.mark.parametrize("suffix", [".npz", ".png"])
def test_flipped_bit_is_detected_or_harmless(tmp_path, rng, suffix):
    path = tmp_path / f"in{suffix}"
    array_files.write_outputs({"x": path}, {"x": ARRAY})
    encoded = path.read_bytes()
    before = array_files.read(path, "x", FACT)
    for at in range(0, len(encoded), 3):
        damaged = bytearray(encoded)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            decoded = array_files.read(path, "x", FACT)
        except InputError as error:
            assert "cannot read" in str(error) or "got" in str(error)
        else:
            assert_array_equal(decoded, before)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".png"])
def test_every_length_of_a_cut_file(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    array_files.write_outputs({"x": path}, {"x": ARRAY})
    encoded = path.read_bytes()
    for size in range(0, len(encoded), 5):
        path.write_bytes(encoded[:size])
        with pytest.raises(InputError, match="cannot read"):
            array_files.read(path, "x", FACT)


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
        array_files.read(path, "x", FACT)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "|b1", "<i8", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_every_type_are_read_unchanged(tmp_path, rng, dtype, order):
    array = np.asarray(rng.integers(0, 2, FACT.shape), dtype, order=order)
    np.save(tmp_path / "in.npy", array)
    np.savez_compressed(tmp_path / "in.npz", other=array)
    for suffix in (".npy", ".npz"):
        decoded = array_files.read(tmp_path / f"in{suffix}", "x", FACT)
        assert decoded.dtype == array.dtype
        assert_array_equal(decoded, array)


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
        inputs = ["-i", f"x={tmp_path}/x.npy", "--backend", "cpu"]
        return main(["run", str(model), *inputs, *flags])

    return run


def test_outputs_of_any_name_are_saved_in_one_archive(two, tmp_path):
    assert two(f"allow_pickle={tmp_path}/o.npz", f"file={tmp_path}/two/../o.npz") == 0
    with np.load(tmp_path / "o.npz") as archive:
        assert sorted(archive.files) == ["allow_pickle", "file"]
        assert_array_equal(archive["allow_pickle"], ARRAY)
        assert_array_equal(archive["file"], -ARRAY)


@pytest.mark.parametrize("suffix", [".npy", ".png", ".PNG"])
def test_two_outputs_in_one_file_are_refused_before_the_run(two, tmp_path, suffix, capsys):
    assert two(f"allow_pickle={tmp_path}/o{suffix}", f"file={tmp_path}/two/../o{suffix}") == 2
    notice = capsys.readouterr().err
    assert "would hold the outputs 'allow_pickle' and 'file'" in notice and ".npz for all" in notice
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


def test_an_output_that_cannot_be_written_is_an_input_error(tmp_path):
    for name, file, says in (
        ("z", "x.npy", "there is no output 'z'"),
        ("x", "x.xyz", "files of type '.xyz'"),
        ("x", "x.png", "wants scalar"),
        ("x", "none/x.npy", "no folder"),
    ):
        with pytest.raises(InputError, match=says):
            array_files.write_outputs({name: tmp_path / file}, {"x": ARRAY[0]})
    assert not list(tmp_path.iterdir())


def test_output_into_a_model_file_is_refused(tmp_path):
    (tmp_path / "graph.nnef").write_text("old")
    for model in (tmp_path, tmp_path / "graph.nnef"):
        with pytest.raises(InputError, match="graph.nnef' is the model's own: name another file"):
            array_files.check_place(tmp_path / "graph.nnef", str(model))
        array_files.check_place(tmp_path / "trace.json", str(model))


@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
def test_spellings_in_another_case_are_one_file_on_windows_and_macos(tmp_path, monkeypatch, system):
    """No output replaces another, or the model, where file names have no case."""
    monkeypatch.setattr("sys.platform", system)
    is_same = system != "linux"
    files = {"x": tmp_path / "out.npz", "y": tmp_path / "OUT.npz"}
    array_files.write_outputs(files, {"x": ARRAY, "y": ARRAY})
    assert {p.name for p in tmp_path.iterdir()} == {"out.npz", *([] if is_same else ["OUT.npz"])}
    with np.load(tmp_path / "out.npz") as stored:
        assert set(stored) == ({"x", "y"} if is_same else {"x"})
    for place, model in (("Net.tgz", "net.TGZ"), ("m/Graph.NNEF", "M")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        with raises(InputError, "is the model's own") if is_same else nullcontext():
            array_files.check_place(tmp_path / place, tmp_path / model)


# --- shapes that a model leaves open


def test_open_extents_are_taken_from_sample_files(tmp_path):
    open_shape = (None, 3, None, None)
    np.savez(tmp_path / "s.npz", x=np.zeros((9, 3, 4, 5), np.float32))
    np.save(tmp_path / "s.npy", np.zeros((9, 1, 3, 4, 5), np.float32))
    np.save(tmp_path / "flat.npy", np.zeros((4, 5), np.float32))
    for name, expected in {"s.npz": (1, 3, 4, 5), "s.npy": (1, 3, 4, 5), "flat.npy": None}.items():
        assert sample_shape(str(tmp_path / name), "x", open_shape) == expected
    assert sample_shape(str(tmp_path / "s.npz"), "x", None) is None
    assert first_shape(str(tmp_path / "*.npz"), "x", open_shape) == (9, 3, 4, 5)
    with pytest.raises(InputError, match=r"no such file. Wanted"):
        first_shape(str(tmp_path / "*.png"), "x", open_shape)
