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
from cml_engine.cooked import PROFILES, cook
from cml_engine.cooked.schema import (
    SECTION_ALIGNMENT,
    FileHeader,
    KernelsHead,
    PlanHead,
    SectionRow,
    TensorRow,
    Text,
)
from cml_engine.gpu.shaders import compilers
from cml_engine.ir.limits import Limits
from cml_engine.scheduler.tools.commands import cooked_guesses
from tests.fixtures.cooked import (
    BAD_CONSTANTS,
    BOMBS,
    HALVES,
    bomb,
    changed,
    content_of,
    counter,
    put,
    rebuilt,
    sealed,
    sections,
    wide_model,
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
#: invalid values by record and by the offset and format of a field: each file is refused
_BAD_FIELDS: dict[str, dict[tuple[int, str], Sequence[float]]] = {
    "plan": {
        (16, "<Q"): (0, 64, 2**63),  # an arena smaller than its bindings
        (24, "<Q"): (0, 2**63), (32, "<Q"): (2**63,), (40, "<I"): (3,), (88, "<d"): (float("nan"),),
        (128, "<I"): (65,),  # more inputs than there may be
        (144, "<Q"): (0,),  # an empty table that lies in the head
        **{(at, "<I"): (2**31, 2**32 - 1) for at in range(112, 160, 4) if at != 128},
    },
    "steps": {
        (0, "<I"): (77,), (4, "<I"): (0, 2**32 - 1), (8, "<I"): (5000,), (12, "<I"): (1,),
        (16, "<I"): (0, 9), (20, "<I"): (2**30,), (24, "<I"): (0,),
    },
    "bindings": {
        (0, "<I"): (9,), (4, "<I"): (1,), (8, "<Q"): (16, 2**20, 2**63),
        (16, "<Q"): (0, 6, 2**20, 2**40, 2**63),
    },
    "outputs": {(56, "<Q"): (2**20, 2**63), (64, "<Q"): (2**20, 2**63)},
    "updates": {(24, "<I"): (0, 1)},  # the target lies in the space of the source
    "kernels": {
        (40, "<I"): (24,), (48, "<I"): (8,), (56, "<Q"): (2**63,), (64, "<I"): (0, 2**31),
    },
}  # fmt: skip


#: the alignment of offsets, the storage buffers, the lanes of a subgroup, and 1 for a CPU
_DEVICES = {
    "a discrete GPU": (32, 16, 32, 0, 1),
    "a discrete GPU without shader-f16": (32, 16, 32, 0, 0),
    "the least that WebGPU guarantees": (256, 8, 0, 0, 0),
    "llvmpipe, 512 bits": (32, 32, 16, 1, 1),
    "llvmpipe, 256 bits": (32, 32, 8, 1, 1),
    "llvmpipe, 128 bits": (32, 32, 4, 1, 1),
    "llvmpipe without subgroups": (32, 32, 0, 1, 1),
    "SwiftShader": (256, 10, 4, 1, 0),
}


@pytest.fixture(scope="module")
def whole():
    """The bytes of an undamaged cooked file; players read all of it except its description."""
    return cook(counter(), ["portable", "software"], player=True, guesses=cooked_guesses()[:2])


def with_gap(whole: bytes) -> bytes:
    """Returns a file with a gap of zeros before its last section that is larger than the alignment
    needs."""
    rows = sections(whole)
    last = rows[-1][1]
    content = bytearray(whole[:last] + bytes(SECTION_ALIGNMENT) + whole[last:])
    struct.pack_into("<Q", content, 16, len(content))
    place = FileHeader.SIZE + (len(rows) - 1) * SectionRow.SIZE + 8
    struct.pack_into("<Q", content, place, last + SECTION_ALIGNMENT)
    return sealed(content)


def with_one_name() -> bytes:
    """Returns a file of one plan whose outputs have the same name."""
    data = cook(counter(), ["portable"], golden=False, player=True)
    first = PlanHead.read(next(content_of(data, "plan"))).outputs.offset

    def rename(plan: bytearray) -> None:
        second = first + TensorRow.SIZE
        plan[second : second + Text.SIZE] = plan[first : first + Text.SIZE]

    return changed(data, "plan", rename)


def known(whole: bytes) -> Iterator[tuple[bytes, str]]:
    """Yields an undamaged cooked file and systematically damaged ones, with the right verdict.

    "refused" is any verdict but "loads".
    """
    head = PlanHead.read(next(content_of(whole, "plan")))
    (meta,) = content_of(whole, "meta")
    yield whole, "loads"
    yield whole[:8] + b"\x09" + whole[9:], "StaleArtifact"
    yield from ((bomb(whole, name), "OverBudget") for name in BOMBS)
    for record, fields in _BAD_FIELDS.items():
        tag = "kernels" if record == "kernels" else "plan"
        start = {"plan": 0, "kernels": KernelsHead.SIZE}.get(record)
        start = getattr(head, record).offset if start is None else start
        for (at, form), values in fields.items():
            for value in values:
                yield changed(whole, tag, put(start + at, form, value)), "refused"
    corrupt = [b"", whole[:-1], whole + b"\0", rebuilt(whole, {"meta": b"null"})]
    corrupt += [rebuilt(whole, {"meta": [meta, meta + b" "]})]
    corrupt += [rebuilt(whole, {"graph": [meta, meta + b" "]})]
    corrupt += [with_bad_constant(whole, *field) for field in BAD_CONSTANTS]
    lengths = [("<Q", 16, n) for n in (0, len(whole) - 1, 2**63)]
    for form, at, value in (*lengths, *(("<I", 12, n) for n in (0, 1, 200, 2**31))):
        content = bytearray(whole)  # the number of sections lies at 12
        struct.pack_into(form, content, at, value)
        corrupt += [bytes(content)]
    corrupt += [with_gap(whole), with_one_name()]
    for at in (56, 64, 72, 76):  # a header that understates
        less = bytearray(whole)
        less[at] -= 1 if less[at] else -1
        corrupt += [bytes(less)]
    for index, (tag, _, _) in enumerate(sections(whole)):
        row = FileHeader.SIZE + index * SectionRow.SIZE
        for field in (8, 16):
            for value in (2**31, 2**32, 2**63, 2**64 - 1):
                content = bytearray(whole)
                struct.pack_into("<Q", content, row + field, value)
                corrupt += [sealed(content)]
        if index:  # it has changed places with the one before
            content = bytearray(whole)
            before, end = row - SectionRow.SIZE, row + SectionRow.SIZE
            content[before:end] = content[row:end] + content[before:row]
            corrupt += [sealed(content)]
        content = bytearray(whole)
        content[row + len(tag) - 1] += 1  # a tag that readers ignore
        if tag in ("guess", "golden"):
            yield sealed(content), "loads"
        else:
            corrupt += [sealed(content)]
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
    expected = [by_python(file) for file in files]
    verdicts = [verdict for verdict, _ in expected]
    for number, (_, verdict) in enumerate(right):
        found = verdicts[number]
        assert found == verdict or (verdict == "refused" and found != "loads"), expected[number]
    assert {*verdicts} <= {"loads", *ERRORS.values()}
    names = "".join(f"{file}\n" for file in files)
    program = build("check.c", "-O1", *SANITIZED)
    by_c = lines([program, "-"], names)
    for number, (verdict, reason) in enumerate(expected):  # it does not read the section `meta`
        assert by_c[number] == verdict or "its description" in reason, (number, reason)
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    told = deno_command("run", "-A", "--no-check", READER)
    by_javascript = lines(told["args"], names, cwd=told["cwd"], env=told["env"])
    for number, (verdict, reason) in enumerate(expected):
        assert by_javascript[number] == verdict, (number, reason)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The path of a small cooked file, since every one of its bytes is changed."""
    file = tmp_path_factory.mktemp("small") / "small.cml"
    file.write_bytes(cook(counter(), ["portable"], golden=False, player=True))
    return file


def test_every_byte_and_every_length_counts(small):
    """C and JavaScript refuse a file with one changed byte, and the file cut at any length."""
    accepted = f"{small.stat().st_size} bytes, 0 accepted"
    by_c = run_play(build("check.c", "-O1", *SANITIZED), "--flip", small)
    assert by_c.returncode == 0, by_c.stdout + by_c.stderr
    assert accepted in by_c.stdout
    by_javascript = run_deno("run", "-A", "--no-check", READER, "--flip", small)
    assert by_javascript.stdout == f"{accepted}\n"


def test_changed_bytes_with_matching_hashes_are_safe(small):
    run = run_play(build("check.c", "-O1", *SANITIZED), "--sealed", small)
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(run.stdout.split()[0]) > 1000, "refused"


def test_players_choose_the_same_plan_for_every_device(tmp_path):
    """Every driver that runs shaders on the CPU gets a plan that was made for such drivers, and
    only devices with shader-f16 one that multiplies in 16 bits."""
    file = tmp_path / "net.cml"
    file.write_bytes(cook(wide_model(24), options=HALVES, player=True, golden=False))
    cooked = cml.load_cooked(file, trusted=True).cooked_form
    assert any(plan.needs.lanes for plan in cooked.plans)
    chosen = []
    for alignment, buffers, lanes, is_software, has_f16 in _DEVICES.values():
        limits = Limits(
            alignment, alignment, 1 << 27, 1 << 30, max_storage_buffers=buffers,
            software=bool(is_software), subgroup_size=lanes, half_arithmetic=bool(has_f16),
        )  # fmt: skip
        plan, _ = cooked.choose(limits)
        assert plan is not None
        assert plan.needs.software == is_software
        assert plan.profile.endswith("-f16") == (has_f16 and not is_software)
        chosen.append(plan.profile)
    assert set(chosen) >= {*PROFILES, "discrete-f16"} - {"portable"}
    devices = "".join(f"{' '.join(map(str, device))}\n" for device in _DEVICES.values())
    program = build("check.c", "-O1", *SANITIZED)
    run = subprocess.run([program, "--plans", file], input=devices, capture_output=True, text=True)
    assert run.stdout.split() == chosen, run.stderr
