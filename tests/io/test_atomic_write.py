"""Tests that ``write_atomically`` writes a file completely or not at all."""

import errno
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cml_engine.io import atomic_write, write_atomically
from tests.fixtures.pages import ROOT

posix = pytest.mark.skipif(os.name != "posix", reason="needs the modes and files of POSIX")


@pytest.mark.parametrize("content", [b"new", "new", lambda file: file.write(b"new")])
def test_content_in_every_form_and_the_folder_with_it(tmp_path, content):
    write_atomically(tmp_path / "a" / "b" / "file", content)
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"
    write_atomically(str(tmp_path / "a" / "b" / "file"), "newer ü")
    assert (tmp_path / "a" / "b" / "file").read_text(encoding="utf-8") == "newer ü"


def disk_full(file):
    file.write(b"half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(file):
    file.write(b"half of it")
    raise KeyboardInterrupt


def fault(file):
    raise ValueError("not a picture")


@pytest.mark.parametrize("content", [disk_full, interrupted, fault])
@pytest.mark.parametrize("before", [b"old", None])
def test_failed_write_leaves_the_folder_unchanged(tmp_path, content, before):
    file = tmp_path / "file"
    if before:
        file.write_bytes(before)
    with pytest.raises((OSError, KeyboardInterrupt, ValueError)) as caught:
        write_atomically(file, content)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == (
        {"file": before} if before else {}
    )
    if content is disk_full:
        assert str(caught.value) == f"[Errno 28] No space left on device: {str(file)!r}"


@pytest.mark.parametrize("closes", [True, False])
def test_a_file_that_is_open_elsewhere_is_replaced_once_it_is_closed(tmp_path, monkeypatch, closes):
    """Windows refuses to replace an open file; a program that keeps it open is an error."""
    file, refusals, replace = tmp_path / "file", iter(range(3 if closes else 10**9)), os.replace
    file.write_bytes(b"old")

    def replace_closed(source, target):
        if next(refusals, None) is not None:
            raise PermissionError(errno.EACCES, "Access is denied", str(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_closed)
    monkeypatch.setattr(atomic_write, "_PATIENCE_S", 60.0 if closes else 0.05)
    if closes:
        write_atomically(file, b"new")
    else:
        with pytest.raises(PermissionError, match=re.escape(repr(str(file)))):
            write_atomically(file, b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"new" if closes else b"old"]


def test_concurrent_writers_all_succeed(tmp_path):
    file = tmp_path / "file"
    contents = [bytes([i]) * 5000 for i in range(8)]

    def write(content):
        for _ in range(20):
            write_atomically(file, content)
            assert file.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["folder", "folder/file/below"])
def test_unwritable_path_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    with pytest.raises(OSError, match=re.escape(str(tmp_path / place)[:-6])):
        write_atomically(tmp_path / place, "text")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["file"]


@posix
def test_file_mode_is_default_or_preserved(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "new", "text")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new").chmod(0o600)
    write_atomically(tmp_path / "new", "more")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


@posix
def test_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    """A read-only file is not replaced, although its folder would allow that; PermissionError
    names it."""
    file = tmp_path / "file"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root has access to every file
    with pytest.raises(PermissionError, match=re.escape(str(file))):
        write_atomically(file, "new")
    assert file.read_text() == "old"


@posix
def test_links_are_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    for text in ("one", "two"):
        write_atomically(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "file").read_text() == text


@posix
def test_pipes_and_devices_are_written_as_they_are(tmp_path):
    write_atomically("/dev/null", "text")
    code = "from cml_engine.io.atomic_write import write_atomically as w; w('/dev/stdout', 'text')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"text"
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="/dev/full"):
            write_atomically("/dev/full", "text")


#: writes a temporary source for the compiler, in a temporary folder
ALLOWED = {"gpu/shaders/compilers.py"}
WRITES = re.compile(
    r"\.write_(text|bytes)\(|np\.save\w*\(path|\.save\(path|savefig\(path|mkstemp|\.part[\"']"
    r"|path\.open\([^)]*[\"'][wax]b?\+?[\"']"
)


def test_all_writes_use_atomic_write():
    found = {
        path.relative_to(ROOT / package).as_posix(): line.strip()
        for package in ("cml_engine", "scheduler", "demo_game")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if WRITES.search(line)
    }
    assert "io/atomic_write.py" in found  # the search finds a writer
    assert found.keys() - ALLOWED == {"io/atomic_write.py"}, found
