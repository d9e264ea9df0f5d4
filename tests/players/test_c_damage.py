"""Tests that damaged and malicious cooked files give an error in the C player and do no harm."""

import random
import struct

import pytest

from cml_engine.cooked import cook
from cml_engine.cooked.schema import FileHeader, SectionRow
from cml_engine.gpu.shaders import compilers
from scheduler.tools.commands import cooked_guesses
from tests.fixtures.cooked import (
    BAD_CONSTANTS,
    BOMBS,
    bomb,
    changed,
    counter,
    sealed,
    sections,
    with_bad_constant,
    with_code,
)
from tests.players.building import SANITIZED, build
from tests.players.playing import run_play

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")
CORRUPT, STALE, LIMIT = 2, 3, 8


@pytest.fixture(scope="module")
def program():
    return build("check.c", "-O1", *SANITIZED)


@pytest.fixture(scope="module")
def cooked():
    return cook(counter(), ["portable"], player=True, guesses=cooked_guesses()[:1])


@pytest.fixture
def said(program, tmp_path):
    """A function that takes a file's bytes and returns the C player's status (0: valid) and
    message."""

    def look(data):
        file = tmp_path / "x.cml"
        file.write_bytes(data)
        run = run_play(program, file)
        assert run.returncode == 0, run.stderr
        status, _, text = run.stdout.partition(" ")
        return 0 if status == "whole\n" else int(status), text

    return look


def put(at, form, value):
    def change(content):
        struct.pack_into(form, content, at, value)

    return change


def test_a_whole_file_is_whole(said, cooked):
    assert said(cooked)[0] == 0


def test_every_byte_and_every_length_counts(program, cooked, tmp_path):
    file = tmp_path / "flip.cml"
    file.write_bytes(cooked)
    run = run_play(program, "--flip", file)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(cooked)} bytes, 0 accepted" in run.stdout


def test_no_byte_harms_whose_hashes_match(program, cooked, tmp_path):
    file = tmp_path / "sealed.cml"
    file.write_bytes(cooked)
    run = run_play(program, "--sealed", file)
    assert run.returncode == 0, run.stdout + run.stderr
    refused = int(run.stdout.split()[0])
    assert refused > 1000


def test_sections_that_changed_places_are_refused(said, cooked):
    for i in range(len(sections(cooked)) - 1):
        made = bytearray(cooked)
        at = FileHeader.SIZE + i * SectionRow.SIZE
        rows = (
            made[at : at + SectionRow.SIZE],
            made[at + SectionRow.SIZE : at + 2 * SectionRow.SIZE],
        )
        made[at : at + 2 * SectionRow.SIZE] = rows[1] + rows[0]
        assert said(sealed(made))[0] == CORRUPT


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**32, 2**31])
@pytest.mark.parametrize("field", [8, 16])
def test_huge_lengths_take_no_memory(said, cooked, field, value):
    for i in range(len(sections(cooked))):
        made = bytearray(cooked)
        struct.pack_into("<Q", made, FileHeader.SIZE + i * SectionRow.SIZE + field, value)
        assert said(sealed(made))[0] == CORRUPT


@pytest.mark.parametrize(
    ("name", "at", "form", "value"),
    [
        ("bindings outside", 16, "<Q", 0),  # the arena has no bytes
        ("steps beyond", 112, "<I", 2**31),
        ("steps elsewhere", 116, "<I", 2**32 - 8),
        ("alignment", 40, "<I", 3),
        ("weights", 24, "<Q", 2**63),
        ("FLOPs", 88, "<d", float("nan")),
        ("more inputs than there may be", 128, "<I", 65),
    ],
)
def test_plans_that_reach_outside_are_refused(said, cooked, name, at, form, value):
    status, text = said(changed(cooked, "plan", put(at, form, value)))
    assert status == CORRUPT and text, name


def test_a_step_with_a_kernel_that_is_not_there(said, cooked):
    plan = next(at for tag, at, _ in sections(cooked) if tag == "plan")
    (steps,) = struct.unpack_from("<I", cooked, plan + 116)
    status, text = said(changed(cooked, "plan", put(steps, "<I", 77)))
    assert status == CORRUPT and "kernel" in text


def test_another_format_is_stale(said, cooked):
    made = bytearray(cooked)
    made[8] = 9
    status, text = said(bytes(made))
    assert status == STALE and "format 9" in text


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_takes_too_much_is_refused_before_it_is_unpacked(
    program, cooked, tmp_path, name
):
    file = tmp_path / "bomb.cml"
    file.write_bytes(bomb(cooked, name))
    run = run_play(program, "--limited", file)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{LIMIT} the file states") and BOMBS[name] in run.stdout


@pytest.mark.parametrize(("offset", "form", "value"), BAD_CONSTANTS)
def test_a_constant_that_is_none_is_refused(said, cooked, offset, form, value):
    status, text = said(with_bad_constant(cooked, offset, form, value))
    assert status == CORRUPT and "constant 0" in text


@pytest.mark.parametrize("at", [56, 64, 72, 76])
def test_a_header_that_understates_is_refused(said, cooked, at):
    made = bytearray(cooked)
    made[at] -= 1 if made[at] else -1
    status, text = said(bytes(made))
    assert status == CORRUPT and "states" in text


@pytest.mark.gpu
def test_a_device_that_lacks_something_says_what(gpu, cooked, tmp_path):
    program = build("play.c", *SANITIZED, device=True)
    file = tmp_path / "needs.cml"
    file.write_bytes(changed(cooked, "plan", put(64, "<I", 1 << 30)))
    run = run_play(program, file)
    assert run.returncode == 1
    assert "needs maxComputeInvocationsPerWorkgroup 1073741824" in run.stderr


@pytest.mark.gpu
def test_a_stranger_s_file_does_no_harm(gpu, cooked, tmp_path):
    """A wrong byte in the plan gives an error or a run, but no memory error and no panic."""
    program = build("play.c", *SANITIZED, device=True)
    chance = random.Random(1)
    size = next(n for tag, _, n in sections(cooked) if tag == "plan")
    file = tmp_path / "stranger.cml"
    for _ in range(4):
        file.write_bytes(changed(cooked, "plan", put(chance.randrange(size), "B", 0x41)))
        run = run_play(program, file, "--most", "40")  # it may request endless work
        assert run.returncode in (0, 1), run.stderr
        assert "Sanitizer" not in run.stderr and "panicked" not in run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("language", "trust", "said"),
    [
        ("WGSL", (), "the device refused"),
        ("WGSL", ("--trusted",), "the device refused"),
        # wgpu-native would end the process, because untrusted SPIR-V is not validated
        ("SPIR-V", (), "needs kernels in WGSL"),
    ],
)
def test_code_that_does_not_compile_is_an_error(gpu, cooked, tmp_path, language, trust, said):
    """A cooked file whose kernels are not valid shader code gives an error and no panic.

    Its hashes match.
    """
    nonsense = {"SPIR-V": b"\x03\x02\x23\x07" + 60 * b"no", "WGSL": b"this is no WGSL"}[language]
    file = tmp_path / "nonsense.cml"
    code = (nonsense, b"") if language == "SPIR-V" else (b"", nonsense)
    file.write_bytes(with_code(cooked, *code))
    run = run_play(build("play.c", *SANITIZED, device=True), file, *trust)
    assert run.returncode == 1
    assert said in run.stderr and "panicked" not in run.stderr
