"""The records of a cooked file are the same in docs/cooked.md, in Python and in C."""

from __future__ import annotations

import re
from struct import Struct

import pytest

from cml_engine.cooked import form
from cml_engine.cooked.form import CookedLimits
from tests.players.deno import ROOT

DOCS = (ROOT / "docs" / "cooked.md").read_text()
C = (ROOT / "players" / "c" / "cml.c").read_text()
JAVASCRIPT = (ROOT / "players" / "web" / "cml.js").read_text()
#: by its name in C: the record in Python, and the text before its table in the docs
RECORDS = {
    "header_row": (form.HEADER, "## Header"),
    "section_row": (form.SECTION, "## Section table"),
    "kernel_row": (form.KERNEL, "## `kernels`"),
    "plan_row": (form.PLAN_HEADER, "## `plan`"),
    "step_row": (form.STEP, "**Step**"),
    "binding": (form.BINDING, ""),
    "tensor_row": (form.TENSOR, "**Input and output**"),
    "piece_row": (form.PIECE, "**Constant**"),
    "guess_row": (form.DEVICE, ""),
    "factor_row": (form.FACTOR, ""),
    "golden_row": (form.GOLDEN_TENSOR, ""),
}
_TYPES = {"u32": "I", "u64": "Q", "f64": "d", "string": "II"}
_C_TYPES = {
    "uint32_t": "I", "uint64_t": "Q", "double": "d", "text_row": "II", "table_row": "II",
    "code_row": "QII", "binding": "IIQQ", "cml_limits": "QQII",
}  # fmt: skip


def fields(record: Struct) -> str:
    """Returns a letter for each field, b for each byte."""
    counted = re.findall(r"(\d*)([A-Za-z])", record.format)
    return "".join(("b" if kind == "s" else kind) * int(count or 1) for count, kind in counted)


def fields_in_docs(heading: str) -> tuple[str, list[int]]:
    """Returns the fields of the table after the heading, and the offsets that its rows state."""
    table = DOCS[DOCS.index(heading) :].split("|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    found, starts = "", []
    for row in table.splitlines():
        start, kind = (cell.strip() for cell in row.strip("|").split("|")[:2])
        starts.append(int(start))
        for part in kind.split(", "):
            count, name = re.fullmatch(r"((?:\d+ × )*)(.+)", part).groups()
            if size := re.fullmatch(r"(\d+) bytes", name):
                found += "b" * int(size[1])
                continue
            times, (more, name) = 1, re.fullmatch(r"(\d* ?)(\w+)", name).groups()
            for number in re.findall(r"\d+", count + more):
                times *= int(number)
            found += _TYPES[name] * times
    return found, starts


def fields_in_c(name: str) -> str:
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", C, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    body = re.sub(r"struct {(.*?)} (\w+\[)", lambda m: f"uint32_t {m[2]}3 * ", body)
    found = ""
    for kind, names in re.findall(r"(\w+) ([^;]+);", body):
        letters = "b" if kind in ("uint8_t", "char") else _C_TYPES[kind]
        for one in names.split(","):
            size = re.search(r"\[(.*)\]", one)
            constants = {"SPACES": 3, "AXES": 4, "DIMS": 8}
            found += letters * (eval(size[1], {}, constants) if size else 1)
    return found


def offsets(letters: str) -> dict[int, int]:
    """Returns the offset of each field, in order."""
    sizes, at, found = {"b": 1, "I": 4, "Q": 8, "d": 8}, 0, {}
    for index, letter in enumerate(letters):
        found[index] = at
        at += sizes[letter]
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_the_same_everywhere(name):
    record, heading = RECORDS[name]
    assert fields_in_c(name) == fields(record)
    if heading:
        found, starts = fields_in_docs(heading)
        assert found == fields(record)
        assert set(starts) <= set(offsets(found).values())


def test_limits_and_the_format_are_the_same_everywhere():
    limits = CookedLimits()
    in_c = re.search(r"if \(!trusted\) found = \(cml_limits\){(.*?)};", C)[1]
    values = [eval(one.replace("(uint64_t)", "")) for one in in_c.split(", ")]
    assert values == [limits.code_bytes, limits.device_bytes, limits.kernels, limits.steps]
    in_javascript = re.search(r"const LIMITS = {(.*?)};", JAVASCRIPT)[1]
    pairs = (pair.split(": ") for pair in in_javascript.strip().split(", "))
    assert {name: eval(value) for name, value in pairs} == {
        name: getattr(limits, name) for name in CookedLimits.__slots__
    }
    assert f"head.format != {form.FORMAT})" in C
    assert f"FORMAT = {form.FORMAT}, HEADER = {form.HEADER.size};" in JAVASCRIPT
    assert f"| 8 | u32 | format, {form.FORMAT} |" in DOCS
