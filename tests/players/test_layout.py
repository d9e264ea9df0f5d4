"""Tests that the C structs, the JavaScript readers and docs/cooked.md match the schema in
Python."""

from __future__ import annotations

import subprocess
import sys

from cml_engine.cooked.records import PackedRow, nested, raw, u32, u32s, u64
from tests.players.deno import ROOT


def test_generated_files_are_current():
    command = [sys.executable, "-m", "generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Point(PackedRow):
    x: int = u32("x", reserved=4)
    far: int = u64("a large number")


class Line(PackedRow):
    name: bytes = raw(8, "name")
    start: Point = nested(Point, "start")
    weights: tuple[int, ...] = u32s(2, "weights")


def test_a_record_reads_what_it_writes():
    line = Line(name=b"a line\0\0", start=Point(x=7, far=1 << 40), weights=(3, 4))
    data = line.to_bytes()
    assert len(data) == Line.SIZE == 32
    assert [field.offset for field in Line.FIELDS] == [0, 8, 24]
    assert Line.read(b"before" + data, 6) == line


def test_reserved_bytes_must_be_zero():
    data = bytearray(Point(x=1, far=2).to_bytes())
    data[4] = 1
    try:
        Point.read(data)
    except ValueError as error:
        assert "'x'" in str(error)
    else:
        raise AssertionError("a reserved byte was ignored")
