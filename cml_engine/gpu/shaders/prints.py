"""The implementation of ``CML_PRINT("label", value)`` in kernels.

Only sources that use it get a definition, so the digests of all other kernels do not change. The
definition is empty unless the variant prints. In a printing variant labels become numbers, and
every call appends a record of :data:`RECORD` words to a buffer behind the tensors: the label with
the value's type, workgroup, thread, and up to four numbers. The records of one thread are in the
order of its calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cml_engine.errors import ShaderCompileError
from cml_engine.gpu.shaders.includes import included, with_includes

_NAME = "CML_PRINT"
#: the definition in a kernel that does not print
NOTHING = f"#define {_NAME}(label, value)"
#: the function that replaces the calls
_FUNCTION = "cml_print"
RECORD = 7
#: the buffer's capacity in records
ROOM = 16384
NBYTES = 4 * (1 + RECORD * ROOM)
#: value types in the order of their numbers in records (each has four vector sizes), with their
#: conversions to 32-bit words
_TYPES = {"float": "asuint", "int": "asuint", "uint": "asuint", "bool": "uint{n}"}
_NUMPY = (np.float32, np.int32, np.uint32, np.bool_)
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # skips comments
    rf'|\b{_NAME}\b(?:\s*\(\s*(?:"(?P<label>(?:[^"\\\n]|\\.)*)"\s*,)?)?',
    re.DOTALL,
)
_MAIN = re.compile(r"\bvoid\s+main\s*\(([^()]*)\)")
_SEMANTIC = re.compile(r"(\w+)\s*:\s*(SV_\w+)")

_HLSL = """\
[[vk::binding({binding})]] RWStructuredBuffer<Atomic<uint>> cml_printed;
static uint2 cml_printer;
void cml_print_record(uint head, uint4 words) {{
    uint record[] = {{ head, cml_printer.x, cml_printer.y, words.x, words.y, words.z, words.w }};
    uint number = cml_printed[0].add(1u);
    uint at = 1u + number * {words}u;
    if (number < {room}u) {{
        for (uint k = 0u; k < {words}u; ++k) {{ cml_printed[at + k].store(record[k]); }}
    }}
}}
"""


def names_print(source: str, folder: Path) -> bool:
    """Returns True if the source or one of its includes contains ``CML_PRINT``."""
    return _NAME in source or any(_NAME in text for text in included(source, folder).values())


def declarations(binding: int) -> str:
    """Returns HLSL for the print buffer at ``binding`` and for the functions that write to it."""
    lines = [_HLSL.format(binding=binding, room=ROOM, words=RECORD)]
    for type_index, (name, conversion) in enumerate(_TYPES.items()):
        for n in range(1, 5):
            components = "".join([f"{conversion.format(n=n)}(value)", ", 0u" * (4 - n)])
            value = f"{name}{n if n > 1 else ''} value"
            head = 4 * type_index + n - 1
            lines.append(
                f"void {_FUNCTION}(uint label, {value}) "
                f"{{ cml_print_record(label * 16u + {head}u, uint4({components})); }}"
            )
    return "\n".join(lines)


def with_prints(source: str, folder: Path) -> str:
    """Returns a whole kernel source with printing enabled.

    Calls get numbers instead of labels, and ``main`` stores its workgroup and thread. Raises
    :class:`ShaderCompileError` if a label is not a string literal.
    """
    _check(source)
    for file, text in included(source, folder).items():
        _check(f'#line 1 "{file.as_posix()}"\n{text}')
    source = _flat(source, folder)
    numbers = {label: number for number, label in enumerate(_labels(source))}

    def call_of(match: re.Match[str]) -> str:
        if match["label"] is None:
            return match[0]
        return f"{_FUNCTION}({numbers[match['label']]}u," + "\n" * match[0].count("\n")

    return _MAIN.sub(_main, _TOKENS.sub(call_of, source))


def _check(source: str) -> None:
    for match in _TOKENS.finditer(source):
        if match[0].startswith(_NAME) and match["label"] is None:
            first, _, before = source[: match.start()].rpartition("#line ")[2].partition("\n")
            number, _, file = first.partition(" ")
            raise ShaderCompileError(
                f"{file.strip(chr(34))}:{int(number) + before.count(chr(10))}: wanted "
                f'{_NAME}("label", value), its label a text in quotes, got '
                f"`{source[match.start() :].partition(chr(10))[0]}`"
            )


def explained(refusal: str) -> str:
    """Returns the compiler's diagnostics, with advice if ``CML_PRINT`` got an unsupported type."""
    if _FUNCTION not in refusal:
        return refusal
    diagnostics = refusal.partition("\nnote")[0]
    return (
        f"{diagnostics}\n"
        f"{_NAME} takes a float, an int, a uint, a bool, or a vector: give it such a part"
    )


def labels_of(source: str, folder: Path) -> list[str]:
    """Returns the distinct labels of ``CML_PRINT`` calls, in the order of their numbers.

    :func:`with_prints` writes these numbers into the calls.
    """
    return _labels(_flat(source, folder))


def _flat(source: str, folder: Path) -> str:
    """Returns the source with its includes inlined if they print, else unchanged.

    Inlining would change the line numbers.
    """
    in_files = any(_NAME in text for text in included(source, folder).values())
    return with_includes(source, folder) if in_files else source


def _labels(source: str) -> list[str]:
    labels = (match["label"] for match in _TOKENS.finditer(source))
    return list(dict.fromkeys(label for label in labels if label is not None))


def _main(match: re.Match[str]) -> str:
    """Returns an HLSL entry point that stores workgroup and thread, then calls the original.

    ``match`` is the head of the original ``main``, which is renamed.
    """
    params = match[1]
    names = {semantic: name for name, semantic in _SEMANTIC.findall(params)}
    arguments = ", ".join(names.values())
    for type_name, semantic in (("uint3", "SV_GroupID"), ("uint", "SV_GroupIndex")):
        if semantic not in names:
            names[semantic] = f"cml_{semantic}"
            params += f", {type_name} {names[semantic]} : {semantic}"
    return (
        f"void main({params}) {{ cml_printer = uint2(CML_GROUP({names['SV_GroupID']}), "
        f"{names['SV_GroupIndex']}); cml_main({arguments}); }} void cml_main({match[1]})"
    )


def format_records(
    data: np.ndarray[tuple[int], np.dtype[np.uint32]], labels: list[str]
) -> Iterator[str]:
    """Yields a line per record of a print buffer, by workgroup, thread and order of calls."""
    count = min(int(data[0]), ROOM)
    records = data[1 : 1 + count * RECORD].reshape(count, RECORD)
    for i in np.lexsort(records[:, 2:0:-1].T):  # a stable sort
        head, group, thread = (int(bits) for bits in records[i, :3])
        label, type_index, size = head // 16, head // 4 % 4, head % 4 + 1
        values = [_value(bits, type_index) for bits in records[i, 3 : 3 + size]]
        value = values[0] if size == 1 else f"({', '.join(values)})"
        yield f"{labels[label]} = {value}  workgroup {group} thread {thread}"


def _value(bits: np.uint32, type_index: int) -> str:
    if _NUMPY[type_index] is np.bool_:
        return "true" if bits else "false"
    return str(bits.view(_NUMPY[type_index]))
