"""Writes the files that follow from declarations in Python.

    python generate.py            # writes
    python generate.py --check    # says what is not current, with exit code 1

From the scheduler: the numbers of its decisions in C (``players/c/src/planning.h``). From the
schema of the cooked format: the records in C (``players/c/src/format.h``) and the tables of
``docs/cooked.md``. From the operators' signatures: the types of the methods of
``cml.GraphBuilder``.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cml_engine.cooked import schema, wgsl
from cml_engine.cooked.records import PackedRow
from cml_engine.nnef.expansion.signatures import Param, Signature, operator_signatures
from cml_engine.scheduler import frame, frame_timings
from cml_engine.scheduler.planning import controller, cost_model, plan, policy

ROOT = Path(__file__).resolve().parent
C_HEADER = ROOT / "players/c/src/format.h"
C_PLANNING = ROOT / "players/c/src/planning.h"
DOCS = ROOT / "docs/cooked.md"
OPERATORS = ROOT / "cml_engine/formats/operator_methods.pyi"
_NAMES = {"B": "uint8_t", "I": "uint32_t", "Q": "uint64_t", "f": "float", "d": "double"}
_DOC_NAMES = {"I": "u32", "Q": "u64", "f": "f32", "d": "f64"}
#: words in docs/cooked.md for records that are part of others
_DOC_RECORDS = {schema.Text: "string", schema.Table: "table", schema.Code: "code"}


def _values(*modules: tuple[ModuleType, str]) -> dict[str, Any]:
    """Returns constants of modules by their names, without the underscore of private ones."""
    return {
        name.lstrip("_"): getattr(module, name)
        for module, names in modules
        for name in names.split()
    }


#: whole numbers that C needs, by name
CONSTANTS: dict[str, int] = _values(
    (
        schema,
        "FORMAT MOST_SECTIONS SECTION_ALIGNMENT TABLE_ALIGNMENT MOST_DIMENSIONS MOST_TEXT "
        "MOST_PARAMS MOST_TENSORS MOST_INPUTS MOST_DEVICES MOST_FACTORS MOST_SMALLER "
        "VALUE_ALIGNMENT SOURCE_AXES TRUSTED SUBGROUPS F16",
    ),
    (wgsl, "MOST_WGSL MOST_DEPTH MOST_PENDING MOST_NAMES MOST_ELEMENTS MOST_EXPANDED"),
)
#: tags of sections of which a file has at most one
SINGLE_SECTIONS = str([tag for tag, (_, most) in schema.COUNTS.items() if most == 1])[1:-1]
#: numbers with which every player decides, by their names in C
PLANNING: dict[str, float] = {
    **_values(
        (
            cost_model,
            "_LAST SETTLED _CHANGED _NEAR _KNOWN_ERROR _UNKNOWN_ERROR _MOST_ERROR _RATIOS "
            "_SHORTEST _GUESSED_SAMPLES _MOST_UNKNOWN _CLIP _USUAL _LITTLE _DRIFT_WEIGHT",
        ),
        (controller, "_AIMED_SHARE _SMALL _ENOUGH _WINDOW _PRIOR"),
        (plan, "_MIN_SHARE _PROBE_SHARE"),
        (policy, "STARVED_MS CATCH_UP_MS STICKINESS_MS"),
        (frame, "_APART_EVERY"),
        (frame_timings, "_LATE _GROWTH _DECAY _MOST_BACK_OFF _BELIEVED _SMOOTHED LONGEST"),
    ),
    "TELLING_LAUNCHES": cost_model._TELLING,
    "TELLING_SHARE": controller._TELLING,
    "LEAST_AIM": controller._LEAST_SHARE,
    "SKIP_EVERY": frame_timings._SKIP_EVERY,
}


def records() -> list[type[PackedRow]]:
    """Returns the record classes of the cooked format in the order of their declarations."""
    found = vars(schema).values()
    return [
        x for x in found if isinstance(x, type) and issubclass(x, PackedRow) and x is not PackedRow
    ]


def _snake(record: type[PackedRow]) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()
    return name if name.endswith(("_row", "_head", "_header")) else f"{name}_row"


# --- C


def c_header() -> str:
    limits = schema.CookedLimits()
    lines = [
        "/* Written by `python generate.py` from cml_engine/cooked/schema.py: the records",
        " * of a cooked file as they lie in it (docs/cooked.md). Numbers are little-endian, as",
        " * on all machines that have WebGPU. */",
        "#ifndef CML_FORMAT_H",
        "#define CML_FORMAT_H",
        "",
        "#include <stdint.h>",
        "",
        "/* clang-format off */",
        "enum {",
        *(f"    COOKED_{name} = {value}," for name, value in CONSTANTS.items()),
        "};",
        f"#define COOKED_MOST_BYTES {schema.MOST_BYTES}ull",
        f"#define COOKED_MOST_AMOUNT {schema.MOST_AMOUNT!r}",
        f"#define COOKED_SINGLE_SECTIONS {{{SINGLE_SECTIONS}}}".replace("'", '"'),
        f"#define COOKED_DEFAULT_LIMITS {{{limits.code_bytes}ull, {limits.device_bytes}ull, "
        f"{limits.kernels}, {limits.steps}}}",
        "#define COOKED_HAS_SIZE(row, bytes) "
        "typedef char row##_has_padding[sizeof(row) == (bytes) ? 1 : -1]",
        *(line for record in records() for line in _c_struct(record)),
        "/* clang-format on */",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _c_struct(record: type[PackedRow]) -> Iterator[str]:
    name = _snake(record)
    yield ""
    yield f"typedef struct {name} {{"
    for field in record.FIELDS:
        kind = _NAMES[field.of] if isinstance(field.of, str) else _snake(field.of)
        array = f"[{field.count}]" if field.count else ""
        yield f"    {kind} {field.name}{array}; /* {field.meaning} */"
        if field.reserved:
            yield f"    uint8_t reserved_{field.offset + field.size}[{field.reserved}];"
    yield f"}} {name};"
    yield f"COOKED_HAS_SIZE({name}, {record.SIZE});"


def c_planning() -> str:
    lines = [
        "/* Written by `python generate.py` from scheduler/planning/, which explains them. */",
        "#ifndef CML_PLANNING_H",
        "#define CML_PLANNING_H",
        "",
        *(f"#define PLAN_{name} {value!r}" for name, value in PLANNING.items()),
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


# --- documentation


def documentation() -> str:
    """Returns the text of docs/cooked.md with the tables of its records replaced."""
    text = DOCS.read_text("utf-8")
    for record in records():
        begin = f"<!-- {record.__name__} -->\n"
        if begin in text:
            rows = ["| offset | type | what |", "|---|---|---|", *_doc_rows(record, 0)]
            text = _replace_between(text, begin, "\n<!-- end -->", "\n".join(rows))
    return text


def _doc_rows(record: type[PackedRow], start: int) -> Iterator[str]:
    for field in record.FIELDS:
        at = start + field.offset
        if isinstance(field.of, str):
            name = f"{field.count} bytes" if field.of == "B" else _DOC_NAMES[field.of]
            times = f"{field.count} × " if field.count and field.of != "B" else ""
            yield f"| {at} | {times}{name} | {field.meaning} |"
        elif field.count:
            parts = ", ".join(_DOC_NAMES[str(part.of)] for part in field.of.FIELDS)
            yield f"| {at} | {field.count} × ({parts}) | {field.meaning} |"
        elif field.of in _DOC_RECORDS:
            yield f"| {at} | {_DOC_RECORDS[field.of]} | {field.meaning} |"
        else:
            yield from _doc_rows(field.of, at)
        if field.reserved:
            yield f"| {at + field.size} | {field.reserved} bytes | reserved |"


def _replace_between(text: str, begin: str, end: str, body: str) -> str:
    first = text.index(begin) + len(begin)
    return text[:first] + body + text[text.index(end, first) :]


# --- operators


def operator_methods() -> str:
    """Returns the source of a type stub with the operator methods of ``cml.GraphBuilder``."""
    lines = [
        "# Written by `python generate.py` from the operators' signatures.",
        "from collections.abc import Sequence",
        "",
        "from cml_engine.formats.graph_builder import Operand, Tensor",
        "",
        "class OperatorMethods:",
    ]
    signatures = operator_signatures()
    names = sorted(signatures.keys() - {"external", "variable"})
    return "\n".join([*lines, *(_operator_method(signatures[name]) for name in names)]) + "\n"


def _operator_method(declared: Signature) -> str:
    params = ["self", *map(_operator_param, declared.params)]
    optional = [param.endswith("...") for param in params]
    if not all(optional[optional.index(True) :] if True in optional else ()):
        params.insert(optional.index(True), "*")  # required ones follow: by keyword only
    if declared.generic:
        params.append("dtype: str = ...")
    is_one = len(declared.results) == 1 and declared.results[0].type.kind != "array"
    result = "Tensor" if is_one else "tuple[Tensor, ...]"
    return f"    def {_python_name(declared.name)}({', '.join(params)}) -> {result}: ..."


def _operator_param(param: Param) -> str:
    kind = str(param.type)
    if param.is_tensor:
        found = "Sequence[Operand]" if kind.endswith("[]") else "Operand"
    else:
        plain = {"scalar": "float", "integer": "int", "string": "str", "logical": "bool"}
        item = {**plain, "?": "float", "(integer, integer)": "tuple[int, int]"}
        found = f"Sequence[{item[kind[:-2]]}]" if kind.endswith("[]") else item[kind]
    return f"{_python_name(param.name)}: {found}{'' if param.required else ' = ...'}"


def _python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if old")
    check = parser.parse_args().check
    stale = []
    for path, text in (
        (C_HEADER, c_header()),
        (C_PLANNING, c_planning()),
        (DOCS, documentation()),
        (OPERATORS, operator_methods()),
    ):
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(text, "utf-8", newline="\n")
    for name in stale:
        print(f"{name}: {'not current, run python generate.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
