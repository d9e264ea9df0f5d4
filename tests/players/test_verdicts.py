"""Tests that the Python, C and JavaScript players give the same verdict on any cooked file."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from scheduler.tools.commands import cooked_guesses
from tests.fixtures.cooked import BOMBS, bomb, changed, counter, rebuilt, sections
from tests.fixtures.damage import damaged
from tests.fixtures.reader import READERS
from tests.players.building import SANITIZED, build
from tests.players.deno import deno_command, find_deno

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


@pytest.fixture(scope="module")
def whole():
    """The bytes of an undamaged cooked file; players read all of it except its description."""
    return cook(counter(), ["portable", "software"], player=True, guesses=cooked_guesses()[:2])


def corpus(whole: bytes, count: int, seed: int) -> list[bytes]:
    """Returns cooked files: an undamaged one, bombs, ``count`` with changed fields, and damaged
    ones.

    The hashes and totals match.
    """
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    sizes = [(tag, size) for tag, _, size in sections(whole)]
    found = [
        whole,
        b"",
        whole[:-1],
        whole + b"\0",
        rebuilt(whole, {"meta": b"null"}),
        *(bomb(whole, name) for name in BOMBS),
    ]
    for _ in range(count):
        tag, size = chance.choice(sizes)
        form = chance.choice("IQdB")
        width = struct.calcsize(form)
        if chance.random() < 0.2 or size < width:
            found.append(damaged("cooked", whole, rng))
            continue
        at, value = chance.randrange(size // width) * width, chance.choice(_VALUES[form])
        found.append(changed(whole, tag, put(at, form, value)))
    return found


def put(at: int, form: str, value: float) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(f"<{form}", content, at, value)


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
def test_all_players_say_the_same(whole, count, seed, tmp_path):
    (tmp_path / "cooked").mkdir()
    files = [tmp_path / "cooked" / f"{i}.cml" for i in range(count + 5 + len(BOMBS))]
    for file, data in zip(files, corpus(whole, count, seed), strict=True):
        file.write_bytes(data)
    wanted = [by_python(file) for file in files]
    verdicts = [verdict for verdict, _ in wanted]
    assert verdicts[:5] == ["loads", *["CorruptArtifact"] * 4]
    assert {"loads", "CorruptArtifact", "OverBudget"} <= {*verdicts} <= {"loads", *ERRORS.values()}
    names = "".join(f"{file}\n" for file in files)
    program = build("check.c", "-O1", *SANITIZED)
    by_c = lines([program, "-"], names)
    for number, (verdict, reason) in enumerate(wanted):  # it does not read the section `meta`
        assert by_c[number] == verdict or "its description" in reason, (number, reason)
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    told = deno_command("run", "-A", "--no-check", "tests/players/web/reader.js")
    by_javascript = lines(told["args"], names, cwd=told["cwd"], env=told["env"])
    for number, (verdict, reason) in enumerate(wanted):
        assert by_javascript[number] == verdict, (number, reason)
