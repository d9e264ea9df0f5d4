"""Tests that the Python, C and JavaScript players give the same verdict on any cooked file."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.cooked.schema import FileHeader, SectionRow
from cml_engine.gpu.shaders import compilers
from scheduler.tools.commands import cooked_guesses
from tests.fixtures.cooked import (
    BAD_CONSTANTS,
    BOMBS,
    bomb,
    changed,
    content_of,
    counter,
    put,
    rebuilt,
    sealed,
    sections,
    with_bad_constant,
)
from tests.fixtures.damage import damaged
from tests.fixtures.reader import READERS
from tests.players.building import SANITIZED, build
from tests.players.deno import deno_command, find_deno, run_deno
from tests.players.playing import run_play

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")
#: the answers of C and JavaScript, and Python's error
ERRORS = {
    "whole": "loads",
    "2": "CorruptArtifact",
    "3": "StaleArtifact",
    "8": "OverBudget",
    "InputError": "OverBudget",
}
_VALUES = {
    "I": (0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 65, 255, 256, 4096, 65536, 2**31, 2**32 - 8, 2**32 - 1),
    "Q": (0, 1, 4, 8, 16, 64, 256, 2**31, 2**32, 2**40, 2**48, 2**53, 2**60, 2**62, 2**64 - 1),
    "d": (0.0, -0.0, -1.0, 1e-300, 1e-12, 1e300, 1e301, float("inf"), float("nan")),
    "B": tuple(range(256)),
}  # fmt: skip
READER = "tests/players/web/reader.js"
#: damage to the header of a plan: offset, format, value
_BAD_PLANS = [
    (16, "<Q", 0),  # an arena smaller than its bindings
    (40, "<I", 3),  # an alignment
    (88, "<d", float("nan")),
    (116, "<I", 2**32 - 8),  # steps beyond the section
    (128, "<I", 65),  # more inputs than there may be
]


@pytest.fixture(scope="module")
def whole():
    """The bytes of an undamaged cooked file; players read all of it except its description."""
    return cook(counter(), ["portable", "software"], player=True, guesses=cooked_guesses()[:2])


def known(whole: bytes) -> Iterator[tuple[bytes, str]]:
    """Yields an undamaged cooked file and systematically damaged ones, with the right verdict."""
    plan = next(content_of(whole, "plan"))
    steps, bindings, outputs = (struct.unpack_from("<I", plan, at)[0] for at in (116, 124, 140))
    (meta,) = content_of(whole, "meta")
    yield whole, "loads"
    yield whole[:8] + b"\x09" + whole[9:], "StaleArtifact"
    yield from ((bomb(whole, name), "OverBudget") for name in BOMBS)
    for at, form, value in ((24, "<Q", 2**63), (112, "<I", 2**31)):  # the weights, the steps
        yield changed(whole, "plan", put(at, form, value)), "OverBudget"
    corrupt = [b"", whole[:-1], whole + b"\0", rebuilt(whole, {"meta": b"null"})]
    corrupt += [rebuilt(whole, {"meta": [meta, meta + b" "]})]
    corrupt += [rebuilt(whole, {"graph": [meta, meta + b" "]})]
    corrupt += [with_bad_constant(whole, *field) for field in BAD_CONSTANTS]
    corrupt += [changed(whole, "plan", put(*field)) for field in _BAD_PLANS]
    corrupt += [changed(whole, "plan", put(steps, "<I", 77))]  # a kernel that is not there
    for at in (bindings + 8, bindings + 16, outputs + 56, outputs + 64):
        corrupt += [changed(whole, "plan", put(at, "<Q", 1 << value)) for value in (20, 63)]
    for at in (56, 64, 72, 76):  # a header that understates
        less = bytearray(whole)
        less[at] -= 1 if less[at] else -1
        corrupt += [bytes(less)]
    for index, (tag, _, _) in enumerate(sections(whole)):
        row = FileHeader.SIZE + index * SectionRow.SIZE
        for field in (8, 16):
            for value in (2**31, 2**32, 2**63, 2**64 - 1):
                made = bytearray(whole)
                struct.pack_into("<Q", made, row + field, value)
                corrupt += [sealed(made)]
        if index:  # it has changed places with the one before
            made = bytearray(whole)
            before, end = row - SectionRow.SIZE, row + SectionRow.SIZE
            made[before:end] = made[row:end] + made[before:row]
            corrupt += [sealed(made)]
        made = bytearray(whole)
        made[row + len(tag) - 1] += 1  # a tag that readers ignore
        if tag in ("guess", "golden"):
            yield sealed(made), "loads"
        else:
            corrupt += [sealed(made)]
    yield from ((data, "CorruptArtifact") for data in corrupt)


def anything(whole: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yields ``count`` files with random fields or random damage, whose hashes and totals match."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    sizes = [(tag, size) for tag, _, size in sections(whole)]
    for _ in range(count):
        tag, size = chance.choice(sizes)
        form = chance.choice("IQdB")
        width = struct.calcsize(form)
        if chance.random() < 0.2 or size < width:
            yield damaged("cooked", whole, rng)
            continue
        at, value = chance.randrange(size // width) * width, chance.choice(_VALUES[form])
        yield changed(whole, tag, put(at, f"<{form}", value))


def by_python(path: Path) -> tuple[str, str]:
    """Returns Python's verdict on a file (``loads`` or an error's name) and the error's message."""
    try:
        READERS["cooked"](path)
    except cml.CmlError as error:
        return type(error).__name__, str(error)
    return "loads", ""


def lines(command: Sequence[str | Path], names: str, **where: Any) -> list[str]:
    """Returns a reader's verdict on each of the files, as ``loads`` or the name of Python's error.

    ``names`` has one path per line.
    """
    run = subprocess.run(command, input=names, capture_output=True, text=True, **where)
    assert run.returncode == 0, run.stderr
    ready, *found = run.stdout.splitlines()
    assert ready == "ready" and len(found) == names.count("\n"), run.stderr
    return [ERRORS.get(line.split(" ")[0], line) for line in found]


@pytest.mark.parametrize(
    ("count", "seed"), [(400, 0), pytest.param(10_000, 1, marks=pytest.mark.long)]
)
def test_all_players_give_equal_verdicts(whole, count, seed, tmp_path):
    (tmp_path / "cooked").mkdir()
    right = list(known(whole))
    files = []
    for number, data in enumerate((*(data for data, _ in right), *anything(whole, count, seed))):
        files.append(tmp_path / "cooked" / f"{number}.cml")
        files[-1].write_bytes(data)
    wanted = [by_python(file) for file in files]
    verdicts = [verdict for verdict, _ in wanted]
    assert verdicts[: len(right)] == [verdict for _, verdict in right]
    assert {*verdicts} <= {"loads", *ERRORS.values()}
    names = "".join(f"{file}\n" for file in files)
    program = build("check.c", "-O1", *SANITIZED)
    by_c = lines([program, "-"], names)
    for number, (verdict, reason) in enumerate(wanted):  # it does not read the section `meta`
        assert by_c[number] == verdict or "its description" in reason, (number, reason)
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    told = deno_command("run", "-A", "--no-check", READER)
    by_javascript = lines(told["args"], names, cwd=told["cwd"], env=told["env"])
    for number, (verdict, reason) in enumerate(wanted):
        assert by_javascript[number] == verdict, (number, reason)


def test_every_byte_and_every_length_counts(whole, tmp_path):
    """C and JavaScript refuse a file with one changed byte, and the file cut at any length."""
    file = tmp_path / "flip.cml"
    file.write_bytes(whole)
    by_c = run_play(build("check.c", "-O1", *SANITIZED), "--flip", file)
    assert by_c.returncode == 0, by_c.stdout + by_c.stderr
    assert f"{len(whole)} bytes, 0 accepted" in by_c.stdout
    by_javascript = run_deno("run", "-A", "--no-check", READER, "--flip", file)
    assert by_javascript.stdout == f"{len(whole)} bytes, 0 accepted\n"


def test_changed_bytes_with_matching_hashes_are_safe(whole, tmp_path):
    file = tmp_path / "sealed.cml"
    file.write_bytes(whole)
    run = run_play(build("check.c", "-O1", *SANITIZED), "--sealed", file)
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(run.stdout.split()[0]) > 1000, "refused"
