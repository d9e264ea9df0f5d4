"""Tests that damaged and malicious cooked files only raise an error of the engine.

tests/players/test_verdicts.py has the fields that no value may be wrong in, for every player.
"""

import struct

import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.cooked.schema import KernelRow, KernelsHead, PlanHead, PlanStepRow
from cml_engine.gpu.shaders import compilers
from cml_engine.io.load_limits import OverBudget
from tests.fixtures.cooked import (
    BAD_CONSTANTS,
    BOMBS,
    bomb,
    changed,
    content_of,
    put,
    sections,
    small_model,
    with_bad_constant,
)

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")
ENDLESS = cml.cooked.CookedLimits(1 << 64, 1 << 64, 1 << 64, 1 << 64)


@pytest.fixture(scope="module")
def cooked():
    return cook(small_model(), ["portable"])


def refused(data):
    """Asserts that loading the file raises ``CorruptArtifact``; returns its message."""
    with pytest.raises(cml.CorruptArtifact) as found:
        cml.load_cooked(data, limits=ENDLESS)
    return str(found.value)


def test_every_byte_counts(cooked):
    code = next((at, at + size) for tag, at, size in sections(cooked) if tag == "code")
    for place in range(len(cooked)):
        if code[0] + 64 < place < code[1] - 64 and place % 8:
            continue  # samples the compressed code only
        damaged = bytearray(cooked)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(cml.StaleArtifact if 8 <= place < 12 else cml.CorruptArtifact):
            cml.load_cooked(damaged, limits=ENDLESS)


def test_truncated_or_extended_file_is_refused(cooked, tmp_path):
    for length in range(len(cooked)):
        with pytest.raises(cml.CorruptArtifact):
            cml.load_cooked(memoryview(cooked)[:length])
    refused(cooked + b"\0")
    file = tmp_path / "short.cml"
    newer = bytearray(cooked)
    newer[8] += 1
    for data in (newer, *(cooked[:length] for length in (0, 10, 63, 64, len(cooked) - 1))):
        file.write_bytes(data)
        with pytest.raises((cml.CorruptArtifact, cml.StaleArtifact), match=f"^{file}: "):
            cml.load_cooked(file)


def test_damage_to_a_plan_names_the_plan_and_the_place(cooked):
    steps = PlanHead.read(next(content_of(cooked, "plan"))).steps.offset
    message = refused(changed(cooked, "plan", put(steps, "<I", 99)))
    assert "plan 'portable'" in message and "damaged" in message
    assert "constant 0" in refused(with_bad_constant(cooked, *BAD_CONSTANTS[0]))


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [("code", put(40, "<Q", 0), "code"), ("kernels", put(76, "<I", 64), "64 bytes")],
    ids=["it cannot be unpacked", "it unpacks to more than it says"],
)
def test_damaged_code_is_refused(cooked, section, change, said):
    graph = cml.load_cooked(changed(cooked, section, change), trusted=True)  # it takes SPIR-V
    with pytest.raises(cml.CorruptArtifact, match=said):
        for kernel in graph.cooked_form.kernels.values():
            kernel.kernel.code()


def test_inconsistent_graph_shapes_are_refused(cooked):
    def change(content):
        for name in (b"first", b"active"):
            before = b'"%s":["scalar",[1,8,6,6]]' % name
            content[:] = content.replace(before, before.replace(b"8", b"9"))

    data = changed(cooked, "graph", change)
    assert data != cooked
    with pytest.raises(cml.CorruptArtifact, match="shapes"):
        cml.Session(cml.load_cooked(data), "cpu")


def test_files_that_are_not_cooked_are_refused(tmp_path):
    assert "no cooked file" in refused(b"\x08\x07onnx" * 20)
    with pytest.raises(cml.InputError, match=r"nothing.cml: cannot be read: No such file"):
        cml.load_cooked(tmp_path / "nothing.cml")
    with pytest.raises(cml.InputError, match="wanted a path"):
        cml.load_cooked(7)


@pytest.mark.parametrize("name", BOMBS)
def test_compressed_bomb_is_refused_before_unpacking(cooked, name):
    data = bomb(cooked, name)
    assert len(data) < 3 << 20
    with pytest.raises(
        OverBudget, match=f"({BOMBS[name]}|code_bytes), the limit is .*trusted=True"
    ):
        cml.load_cooked(data)
    with pytest.raises(OverBudget):
        cml.load_cooked(data, trusted=True, limits=cml.cooked.CookedLimits())


def test_kernels_do_not_share_their_code(cooked):
    def share(content):
        first = content[KernelsHead.SIZE + 56 : KernelsHead.SIZE + 88]
        for at in range(KernelsHead.SIZE + KernelRow.SIZE, len(content), KernelRow.SIZE):
            content[at + 56 : at + 88] = first

    assert "code of a kernel lies at" in refused(changed(cooked, "kernels", share))


@pytest.mark.parametrize(("field", "less"), [(8, 1), (20, 16)])
def test_steps_do_not_overlap_bindings_or_parameters(cooked, field, less):
    plan = next(content_of(cooked, "plan"))
    at = PlanHead.read(plan).steps.offset + PlanStepRow.SIZE + field
    (value,) = struct.unpack_from("<I", plan, at)
    refused(changed(cooked, "plan", put(at, "<I", value - less)))
