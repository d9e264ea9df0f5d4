"""Tests that damaged and malicious cooked files only raise an error of the engine."""

import struct

import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.cooked.schema import (
    BindingRow,
    FileHeader,
    KernelRow,
    KernelsHead,
    PlanHead,
    PlanStepRow,
    SectionRow,
)
from cml_engine.gpu.shaders import compilers
from cml_engine.io.load_limits import OverBudget
from tests.fixtures.cooked import (
    BAD_CONSTANTS,
    BOMBS,
    bomb,
    changed,
    content_of,
    counter,
    sealed,
    sections,
    small_model,
    with_bad_constant,
)

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
ENDLESS = cml.CookedLimits(1 << 64, 1 << 64, 1 << 64, 1 << 64)


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
    for length in (0, 10, 63, 64, len(cooked) - 1):
        file.write_bytes(cooked[:length])
        with pytest.raises(cml.CorruptArtifact):
            cml.load_cooked(file)


def test_swapped_sections_are_refused(cooked):
    for i in range(len(sections(cooked)) - 1):
        made = bytearray(cooked)
        at = FileHeader.SIZE + i * SectionRow.SIZE
        rows = (
            made[at : at + SectionRow.SIZE],
            made[at + SectionRow.SIZE : at + 2 * SectionRow.SIZE],
        )
        made[at : at + 2 * SectionRow.SIZE] = rows[1] + rows[0]
        refused(sealed(made))


@pytest.mark.parametrize("size", [1 << 31, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("field", [8, 16])
def test_a_section_of_any_length_anywhere_is_refused(cooked, field, size):
    for i in range(len(sections(cooked))):
        made = bytearray(cooked)
        U64.pack_into(made, FileHeader.SIZE + i * SectionRow.SIZE + field, size)
        refused(sealed(made))


def test_a_header_of_any_length_is_refused(cooked):
    for size in (0, len(cooked) - 1, 1 << 63):
        made = bytearray(cooked)
        U64.pack_into(made, 16, size)
        refused(made)
    for count in (0, 1, 200, 1 << 31):
        made = bytearray(cooked)
        U32.pack_into(made, 12, count)
        refused(made)


@pytest.mark.parametrize("tag", ["plan", "kernels", "strings", "graph", "golden", "meta", "guess"])
def test_a_changed_byte_in_a_section_loads_or_raises_an_engine_error(cooked, tag):
    """A section with one changed byte and a matching hash loads or raises an error of the engine.

    Some change of each section is refused.
    """
    if tag not in {row[0] for row in sections(cooked)}:
        return
    length = next(row[2] for row in sections(cooked) if row[0] == tag)
    kept = 0
    for place in range(min(length, 1200)):
        for bit in (0x01, 0xFF):

            def flip(content, place=place, bit=bit):
                content[place] ^= bit

            try:
                cml.load_cooked(changed(cooked, tag, flip), limits=ENDLESS)
                kept += 1
            except (cml.CorruptArtifact, cml.StaleArtifact):
                pass
    assert kept < 2 * length


def put(record, offset, kind, value):
    """Returns a function that writes ``value`` to one field of a record in a section's content."""

    def change(content):
        kind.pack_into(content, record + offset, value)

    return change


def table(data, number):
    """Returns the offset of one of the plan's tables, by its number, within the plan's section."""
    at = next(row[1] for row in sections(data) if row[0] == "plan")
    return U32.unpack_from(data, at + 116 + 8 * number)[0]


@pytest.mark.parametrize(
    "offset, value",
    [(8, 1 << 20), (8, 1 << 63), (8, 16), (16, 1 << 40), (16, 0), (16, 6), (0, 2), (0, 9), (4, 1)],
)
def test_binding_outside_memory_is_refused(cooked, offset, value):
    kind = U64 if offset >= 8 else U32
    start = table(cooked, 1)
    assert "plan 'portable'" in refused(changed(cooked, "plan", put(start, offset, kind, value)))
    assert start >= PlanHead.SIZE and BindingRow.SIZE == 24


@pytest.mark.parametrize(
    "offset, value",
    [
        (0, 99),
        (4, 0),
        (4, 0xFFFFFFFF),
        (8, 5000),
        (12, 1),
        (16, 0),
        (16, 9),
        (20, 1 << 30),
        (24, 0),
    ],
)
def test_invalid_step_is_refused(cooked, offset, value):
    start = table(cooked, 0)
    assert "damaged" in refused(changed(cooked, "plan", put(start, offset, U32, value)))
    assert PlanStepRow.SIZE == 96


@pytest.mark.parametrize("offset", [16, 24, 32])
@pytest.mark.parametrize("value", [0, 64, 1 << 63])
def test_plan_with_wrong_memory_sizes_is_refused(cooked, offset, value):
    if offset == 32 and value < 1 << 63:
        return  # a buffer may be larger than its binding
    refused(changed(cooked, "plan", put(0, offset, U64, value)))


@pytest.mark.parametrize("offset", range(112, 160, 4))
@pytest.mark.parametrize("value", [1 << 31, 0xFFFFFFFF])
def test_plan_with_wrong_table_offsets_is_refused(cooked, offset, value):
    refused(changed(cooked, "plan", put(0, offset, U32, value)))


@pytest.mark.parametrize(
    "offset, value", [(56, 1 << 63), (64, 0), (64, 1 << 31), (40, 24), (48, 8)]
)
def test_invalid_kernel_row_is_refused(cooked, offset, value):
    kind = U64 if offset == 56 else U32
    refused(changed(cooked, "kernels", put(8, offset, kind, value)))
    assert KernelRow.SIZE == 96


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [("code", put(0, 40, U64, 0), "code"), ("kernels", put(8, 68, U32, 64), "64 bytes")],
    ids=["it cannot be unpacked", "it unpacks to more than it says"],
)
def test_damaged_code_is_refused(cooked, section, change, said):
    graph = cml.load_cooked(changed(cooked, section, change), trusted=True)  # it takes SPIR-V
    with pytest.raises(cml.CorruptArtifact, match=said):
        for kernel in graph.cooked_form.kernels.values():
            kernel.kernel.code()


def test_inconsistent_graph_shapes_are_refused(cooked):
    def change(content):
        text = bytes(content)
        assert b'"second":["scalar",[1,4,6,6]]' in text or b'"scaled":["scalar",[1,4,6,6]]' in text
        content[:] = text.replace(b'"first":["scalar",[1,8,6,6]]', b'"first":["scalar",[1,9,6,6]]')
        content[:] = bytes(content).replace(
            b'"active":["scalar",[1,8,6,6]]', b'"active":["scalar",[1,9,6,6]]'
        )

    graph = cml.load_cooked(changed(cooked, "graph", change))
    with pytest.raises(cml.CorruptArtifact, match="shapes"):
        cml.Session(graph, "cpu")


def test_overlapping_variable_update_is_refused():
    data = cook(counter(), ["portable"])
    cml.load_cooked(data)
    start = table(data, 4)
    refused(changed(data, "plan", put(start, 24, U32, 0)))
    refused(changed(data, "plan", put(start, 24, U32, 1)))


def test_files_that_are_not_cooked_are_refused(tmp_path):
    assert "no cooked file" in refused(b"\x08\x07onnx" * 20)
    with pytest.raises(cml.InputError, match="No such file"):
        cml.load_cooked(tmp_path / "nothing.cml")
    with pytest.raises(cml.InputError, match="wanted a path"):
        cml.load_cooked(7)


# --- small files that need much memory or time


@pytest.mark.parametrize("name", BOMBS)
def test_compressed_bomb_is_refused_before_unpacking(cooked, name):
    data = bomb(cooked, name)
    assert len(data) < 3 << 20
    with pytest.raises(OverBudget, match=f"{BOMBS[name]}, the limit is .*trusted=True"):
        cml.load_cooked(data)
    with pytest.raises(OverBudget):
        cml.load_cooked(data, trusted=True, limits=cml.CookedLimits())


@pytest.mark.parametrize("offset, kind", [(56, U64), (64, U64), (72, U32), (76, U32)])
def test_header_understating_sizes_is_refused(cooked, offset, kind):
    made = bytearray(cooked)
    (stated,) = kind.unpack_from(made, offset)
    assert stated > 0
    kind.pack_into(made, offset, stated - 1)
    assert "totals" in refused(bytes(made))


def test_kernels_do_not_share_their_code(cooked):
    def share(content):
        first = content[KernelsHead.SIZE + 56 : KernelsHead.SIZE + 88]
        for at in range(KernelsHead.SIZE + KernelRow.SIZE, len(content), KernelRow.SIZE):
            content[at + 56 : at + 88] = first

    assert "code of a kernel lies at" in refused(changed(cooked, "kernels", share))


@pytest.mark.parametrize("field", [8, 20])
def test_steps_do_not_overlap_bindings_or_parameters(cooked, field):
    start = table(cooked, 0) + PlanStepRow.SIZE
    (value,) = U32.unpack_from(next(content_of(cooked, "plan")), start + field)
    refused(changed(cooked, "plan", put(start, field, U32, value - (1 if field == 8 else 16))))


@pytest.mark.parametrize(("offset", "form", "value"), BAD_CONSTANTS)
def test_invalid_constant_is_refused(cooked, offset, form, value):
    assert "constant 0" in refused(with_bad_constant(cooked, offset, form, value))
