"""Compilation of a kernel variant's HLSL source, cached on disk.

The compiled text is a generated prelude (slice, parameters, tensors) followed by the kernel's own
file. The result is stored on disk under a digest of everything that determines it: source, included
files, defines, prelude and compiler options. A second process compiles nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from cml_engine.compiler.plan import KernelCode, Plan, Step, variant_words
from cml_engine.errors import InputError, OperatorError, ShaderCompileError
from cml_engine.gpu.shaders import compilers, prints
from cml_engine.gpu.shaders.cache import Code, cached
from cml_engine.gpu.shaders.includes import (
    digest_of,
    read_source,
    with_includes,
    with_missing_includes,
)
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.layout import PACKED_TYPES
from cml_engine.ops.declaration.spec import WGSL_ONLY
from cml_engine.ops.declaration.split_bindings import FIRST_BINDING, declaration
from cml_engine.ops.kernel_files import KERNEL_FOLDER, kernel_file

_HLSL_READ = {"u": "{word}", "i": "asint({word})", "f": "asfloat({word})"}
_NUMPY = {"u": np.dtype(np.uint32), "i": np.dtype(np.int32), "f": np.dtype(np.float32)}
_FIELD = re.compile(r"^(\w+):([uif])(\d*)$")


@dataclass(frozen=True, slots=True)
class ParamField:
    name: str
    kind: str
    offset: int
    length: int | None

    @property
    def words(self) -> int:
        return 1 if self.length is None else self.length


@dataclass(frozen=True)
class ParamBlock:
    """The layout of one kernel's parameters: its fields in order, and the size in 32-bit words."""

    fields: tuple[ParamField, ...]
    words: int

    @property
    def vectors(self) -> int:
        """The size in ``uint4``; at least 1, because an empty uniform block is not legal."""
        return max(1, -(-self.words // 4))

    def pack(self, values: Mapping[str, object]) -> bytes:
        """Returns the uniform block's bytes for these values; pads short arrays with zeros.

        Raises ``ValueError`` if a value is missing, undeclared or too long.
        """
        block = np.zeros(4 * self.vectors, np.uint32)
        if unknown := set(values) - {f.name for f in self.fields}:
            raise ValueError(f"parameters {sorted(unknown)} are not declared by the kernel")
        for member in self.fields:
            if member.name not in values:
                raise ValueError(f"parameter '{member.name}' has no value")
            array = np.atleast_1d(np.asarray(values[member.name]))
            if array.size > member.words or (member.length is None and array.size != 1):
                raise ValueError(
                    f"parameter '{member.name}' holds {member.words} words, got {array.size}"
                )
            array = array.astype(_NUMPY[member.kind])
            block[member.offset : member.offset + array.size] = array.view(np.uint32)
        return block.tobytes()

    def hlsl(self) -> str:
        """Returns HLSL text with an accessor per field: ``alpha``, or ``shape(i)`` of an array."""
        lines = [f"[[vk::binding(1)]] cbuffer CmlParams {{ uint4 cml_params[{self.vectors}]; }};"]
        for f in self.fields:
            index = f"{f.offset}" if f.length is None else f"(uint(i)+{f.offset}u)"
            name = f.name if f.length is None else f"{f.name}(i)"
            if f.length is None:
                expression = f"cml_params[{f.offset // 4}][{f.offset % 4}]"
            else:
                expression = f"cml_params[{index}>>2u][{index}&3u]"
            lines.append(f"#define {name} {_HLSL_READ[f.kind].format(word=expression)}")
        return "\n".join(lines)


@lru_cache
def parse_params(declaration: str) -> ParamBlock:
    """Returns the layout that a declaration such as ``"n:u shape:u8"`` describes."""
    fields = []
    offset = 0
    for item in declaration.split():
        match = _FIELD.match(item)
        if match is None:
            raise ValueError(f"parameter '{item}' is not of the form name:u, name:i3 or name:f")
        name, type_code, length = match.groups()
        fields.append(ParamField(name, type_code, offset, int(length) if length else None))
        offset += fields[-1].words
    return ParamBlock(tuple(fields), offset)


#: SPIR-V opcodes that is_misread checks
_OP_LABEL, _OP_LOOP_MERGE, _OP_SWITCH = 248, 246, 251

_SHUFFLE = "subgroupShuffle("

_PRELUDE = """\
// The workgroups of this launch: [cml_first, cml_end) of the dispatch. If they need not fit one row
// (MANY_GROUPS), they are in rows of cml_stride, and the last row has some that are beyond the end.
[[vk::binding(0)]] cbuffer CmlSlice { uint cml_first; uint cml_end; uint cml_stride; };
#ifdef MANY_GROUPS
#define CML_GROUP(gid) (cml_first + (gid).x + (gid).y * cml_stride)
#define CML_EXISTS(group) ((group) < cml_end)
#else
#define CML_GROUP(gid) (cml_first + (gid).x)
#define CML_EXISTS(group) true
#endif
// The head of a kernel, and what its body begins with: the workgroup's number, or the thread's
#define CML_MAIN [numthreads(GROUP, 1, 1)] \\
    void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
#define CML_EACH_GROUP(number) uint number = CML_GROUP(gid); if (!CML_EXISTS(number)) { return; }
#define CML_EACH_THREAD(number, count) CML_EACH_GROUP(group) \\
    uint number = group * GROUP + lane; if (number >= count) { return; }
#define CML_UNROLL(type, i, count) [ForceUnroll] for (type i = 0; i < count; i++)
"""


@dataclass(frozen=True)
class ShaderKey:
    """Everything that determines one kernel variant: equal keys share a pipeline."""

    path: Path
    params: str
    tensors: int
    defines: tuple[tuple[str, str], ...]
    trusted: bool
    #: generated HLSL that declares the tensors and the entry point
    interface: str = ""
    #: the kernel's HLSL, if it is not the content of ``path``
    inline: str = ""
    #: digest of the kernel's HLSL and its includes
    content: str = ""
    #: True if CML_PRINT writes to a buffer, which counts as the last tensor
    prints: bool = False
    #: True if exp and log check their operand, because the driver's are wrong for NaN or 0
    guarded: bool = False
    #: the operators of the first step that uses the variant, for messages: ``conv+relu``
    operators: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """The kernel in words, for messages: ``conv.hlsl (conv+relu): rows 8, t0 type float4``."""
        operators = f" ({self.operators})" if self.operators else ""
        variant = variant_words(dict(self.defines))
        return f"{self.path.name}{operators}" + (f": {variant}" if variant else "")

    @property
    def params_bytes(self) -> int:
        """The size of the parameter block in bytes."""
        return 16 * parse_params(self.params).vectors

    @property
    def wgsl_only(self) -> bool:
        """True if the kernel uses a feature that naga cannot read from SPIR-V."""
        return any(name == WGSL_ONLY for name, _ in self.defines)

    def code(self) -> Code:
        """Returns the code for wgpu, compiled if it is not in the cache."""
        return compile_kernel(self)


def shader_key(
    path: str | Path,
    params: str,
    tensors: int,
    defines: Mapping[str, int | str],
    trusted: bool,
    *,
    interface: str = "",
    inline: str = "",
    content: str = "",
) -> ShaderKey:
    """Returns the key of a variant; a bare file name is looked up in ``shaders_hlsl/``.

    ``content`` is the result of :func:`kernel_content`, if it is known already.
    """
    file = Path(path) if inline else resolve(path)
    return ShaderKey(
        file,
        params,
        tensors,
        tuple(sorted((k, str(v)) for k, v in defines.items())),
        trusted,
        interface,
        inline,
        content or kernel_content(file, inline),
    )


def kernel_content(path: str | Path, inline: str = "") -> str:
    """Returns a digest of the kernel's HLSL and its includes, as the files are now.

    ``inline`` is the HLSL itself, if it is not the content of ``path``.
    """
    file = Path(path) if inline else resolve(path)
    return digest_of(inline or read_source(file), file.parent)


def resolve(path: str | Path) -> Path:
    """Returns the kernel's file: one of the engine's (``conv/conv.hlsl``), else the caller's.

    Raises :class:`InputError` if neither exists.
    """
    file = kernel_file(path) or Path(path)
    if not file.is_file():
        raise InputError(f"kernel source '{path}' not found (nor in {KERNEL_FOLDER})")
    return file


def resolved_source(key: ShaderKey) -> str:
    """Returns the compiler's input: defines, prelude, ``#line``, and the kernel's HLSL."""
    source = _source(key)
    return prints.with_prints(source, key.path.parent) if key.prints else source


def _source(key: ShaderKey) -> str:
    return f'{_prelude(key)}#line {_first_line(key)} "{key.path.as_posix()}"\n{kernel_source(key)}'


def printing(key: ShaderKey) -> ShaderKey:
    """Returns the variant with CML_PRINT enabled; the key itself if the kernel never prints."""
    return replace(key, tensors=key.tensors + 1, prints=True) if _names_print(key) else key


def guarded(key: Variant) -> Variant:
    """Returns the variant with a guarded exp and log; a cooked variant has no HLSL and stays."""
    return replace(key, guarded=True) if isinstance(key, ShaderKey) else key


def print_labels(key: ShaderKey) -> list[str]:
    """Returns the labels of the kernel's CML_PRINT calls; a label's index is its number."""
    return prints.labels_of(_source(key), key.path.parent)


def _names_print(key: ShaderKey) -> bool:
    return prints.names_print(kernel_source(key), key.path.parent)


def _prelude(key: ShaderKey) -> str:
    lines = [f"#define {name} {value}" for name, value in key.defines]
    lines += [_PRELUDE, parse_params(key.params).hlsl()]
    if any(value in PACKED_TYPES for _, value in key.defines):
        lines.append('#include "packed4.hlsli"')
    if key.guarded:
        lines.append('#include "guarded.hlsli"')
    lines += [key.interface] if key.interface else _tensors(key)
    if _names_print(key):
        binding = FIRST_BINDING + key.tensors - 1
        lines.append(prints.declarations(binding) if key.prints else prints.NOTHING)
    return "\n".join(lines) + "\n"


def kernel_source(key: ShaderKey) -> str:
    """Returns the kernel's own HLSL, without the prelude."""
    return key.inline or read_source(key.path)


def _tensors(key: ShaderKey) -> list[str]:
    """Returns HLSL lines that declare ``T0``, ``T1``, …, with one binding per tensor or part."""
    lines, defines, bound = list[str](), dict(key.defines), 0
    tensors = key.tensors - key.prints
    for i in range(tensors):
        if bound == tensors:
            break
        count, nbytes = (int(defines.get(f"T{i}_{n}", 1)) for n in ("PARTS", "PART_BYTES"))
        lines += [f"#ifndef T{i}_TYPE", f"#define T{i}_TYPE float", "#endif"]
        lines += declaration(f"T{i}", f"T{i}_TYPE", FIRST_BINDING + bound, count, nbytes)
        bound += count
    return lines


def _first_line(key: ShaderKey) -> int:
    """Returns an inline source's first line number in its Python file; 1 if it is not found."""
    if not key.inline or not key.path.is_file():
        return 1
    before, match, _ = key.path.read_text(encoding="utf-8").partition(key.inline)
    return before.count("\n") + 1 if match else 1


def compile_kernel(key: ShaderKey) -> Code:
    """Returns a variant's code for wgpu: SPIR-V for the engine's own kernels, WGSL for a game's.

    naga misreads SPIR-V in which a branch leaves two constructs at once (gfx-rs/wgpu#4449), and
    gives wrong numbers without a message. The compiler emits such branches for ``continue``. The
    engine's kernels avoid it; a game's kernels are compiled to WGSL, which naga reads correctly.

    A kernel that needs a feature missing in WGSL (atomics on plain buffers) is compiled to
    SPIR-V if nothing in it can be misread. Kernels with packed byte products also use WGSL,
    because naga cannot read these instructions in SPIR-V.
    """
    if key.wgsl_only:
        return for_naga(compile_wgsl(key))
    if not key.interface:
        return compile_spirv(key)
    return cached(digest(key, "wgsl"), compilers.version(), lambda: _portable(key))


def _portable(key: ShaderKey) -> Code:
    """Compiles the variant to WGSL, or to SPIR-V if WGSL lacks a feature that it uses.

    Raises :class:`ShaderCompileError` if naga would misread that SPIR-V.
    """
    try:
        text = _wgsl(key)
    except ShaderCompileError as refused:
        code = _compile(key, "spirv")
        if is_misread(code):
            raise ShaderCompileError(
                f"{refused.message}\nWhat WGSL lacks can be used only where no loop has a "
                "`continue` or a `return`: write the loop without them"
            ) from None
        return code
    return for_naga(text)


def compile_wgsl(key: ShaderKey) -> str:
    """Returns standard WGSL of the variant, from the cache if possible.

    Raises :class:`ShaderCompileError` if WGSL lacks a feature that the kernel uses.
    """
    code = cached(digest(key, "wgsl, unsigned lanes"), compilers.version(), lambda: _wgsl(key))
    assert isinstance(code, str)
    return code


def _wgsl(key: ShaderKey) -> str:
    return with_unsigned_lanes(_compile(key, "wgsl").rstrip(b"\0").decode())


def for_naga(wgsl: str) -> str:
    """Returns WGSL for naga: without ``enable subgroups``, and with unsigned lanes."""
    return with_unsigned_lanes(wgsl.replace("enable subgroups;", ""))


def with_unsigned_lanes(wgsl: str) -> str:
    """Returns WGSL with the lane arguments of subgroup shuffles converted to ``u32``.

    The standard allows signed lanes too; naga accepts only unsigned ones.
    """
    first, *calls = wgsl.split(_SHUFFLE)
    return first + "".join(_SHUFFLE + _with_unsigned_lane(call) for call in calls)


def _with_unsigned_lane(call: str) -> str:
    """Returns the text after ``subgroupShuffle(`` with the second argument as ``u32``."""
    depth, comma = 1, -1
    for position, letter in enumerate(call):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 1:
            comma = position
        if depth == 0:
            lane = call[comma + 1 : position].strip()
            lane = lane if lane.startswith("u32(") else f"u32({lane})"
            return f"{call[: comma + 1]} {lane}{call[position:]}"
    return call


def compile_spirv(key: ShaderKey) -> bytes:
    """Returns SPIR-V of the variant, from the cache if possible.

    Raises :class:`ShaderCompileError` if the source is rejected.
    """
    code = cached(digest(key, "spirv"), compilers.version(), lambda: _spirv(key))
    assert isinstance(code, bytes)
    return code


def _spirv(key: ShaderKey) -> bytes:
    code = _compile(key, "spirv")
    if not key.interface and is_misread(code):
        raise ShaderCompileError(
            f"kernel '{key.label}' has a loop with `continue`, which the driver's "
            "translator misreads in SPIR-V: write the loop without it"
        )
    return code


def is_misread(spirv: bytes) -> bool:
    """Returns True if the SPIR-V has a ``switch`` with a single case inside a loop.

    The compiler emits it for ``continue``. naga mistakes the branch that leaves the loop for one
    that leaves the switch.
    """
    module = memoryview(spirv).cast("I")
    position, open_loops = 5, set[int]()
    while position < len(module):
        length, opcode = module[position] >> 16, module[position] & 0xFFFF
        if opcode == _OP_LABEL:
            open_loops.discard(module[position + 1])
        elif opcode == _OP_LOOP_MERGE:
            open_loops.add(module[position + 1])
        elif opcode == _OP_SWITCH and length == 3 and open_loops:
            return True
        position += max(length, 1)
    return False


def _compile(key: ShaderKey, target: str) -> bytes:
    request = compilers.Request(resolved_source(key), key.path, target)
    try:
        return compilers.compile(request)
    except compilers.CompilerError as error:
        diagnostics = prints.explained(with_missing_includes(str(error)))
        raise ShaderCompileError(f"kernel '{key.label}' does not compile:\n{diagnostics}") from None


def digest(key: ShaderKey, target: str) -> str:
    """Returns a hexadecimal digest of all that determines the variant's code for this target."""
    # without paths and line numbers: the same kernel in another folder has the same digest
    source = _prelude(key) + kernel_source(key)
    parts = (compilers.OPTIONS, target, digest_of(source, key.path.parent))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def standalone_source(key: ShaderKey) -> str:
    """Returns the resolved source with its includes inlined, for Slang."""
    return with_includes(resolved_source(key), key.path.parent)


#: the source of a pipeline: HLSL, or code from a cooked file
Variant = ShaderKey | KernelCode


#: stands for the variant of a step on the CPU
NO_VARIANT = KernelCode("NumPy", 0, 0, True, "", bytes)


def step_keys(plan: Plan, contents: dict[tuple[str, str], str] | None = None) -> list[Variant]:
    """Returns the kernel variants of the plan's steps in order, with the files as they are now.

    It is :data:`NO_VARIANT` for a step on the CPU. ``contents`` caches the digests of files that
    were read already; new ones are added to it.
    """
    contents = {} if contents is None else contents
    return [_variant_of(step, contents) for step in plan.steps]


def _variant_of(step: Step, contents: dict[tuple[str, str], str]) -> Variant:
    if step.cpu_part is not None:
        return NO_VARIANT
    return step.cooked.kernel if step.cooked else step_key(step, contents)


def step_key(step: Step, contents: dict[tuple[str, str], str]) -> ShaderKey:
    """Returns the kernel variant of a step that is compiled from HLSL."""
    kernel = str(step.path), step.inline
    if kernel not in contents:
        contents[kernel] = kernel_content(*kernel)
    yield_to_frame()
    key = shader_key(
        step.path,
        step.params_layout,
        len(step.bindings),
        step.defines,
        step.trusted,
        interface=step.interface,
        inline=step.inline,
        content=contents[kernel],
    )
    return replace(key, operators=step.full_op)


def step_params(step: Step) -> bytes:
    """Returns the bytes of the step's parameter block.

    Raises :class:`OperatorError` if the parameters do not fit their declaration.
    """
    if step.cooked is not None:
        return step.cooked.params
    try:
        return parse_params(step.params_layout).pack(step.params)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ) as error:  # invalid parameters from an operator's lowering
        raise OperatorError(f"{step.title}: {error}", step.source) from error


STAGES = ("vertex", "fragment", "compute")


def compile_stage(path: Path, stage: str, entry: str, defines: Mapping[str, int | str]) -> bytes:
    """Returns SPIR-V of a shader of the host's renderer; its entry point is called ``main``.

    The code comes from the cache if possible. Raises :class:`ShaderCompileError` if the source is
    rejected.
    """
    if stage not in STAGES:
        raise InputError(f"unknown stage '{stage}'; one of {', '.join(STAGES)}")
    if not path.is_file():
        raise InputError(f"shader source '{path}' not found")
    head = "".join(f"#define {name} {value}\n" for name, value in sorted(defines.items()))
    source = read_source(path)

    def compile() -> bytes:
        text = f'{head}#line 1 "{path.as_posix()}"\n{source}'
        label = f"shader '{path.name}:{entry}'"
        try:
            code = compilers.compile(compilers.Request(text, path, "spirv", stage, entry))
        except compilers.CompilerError as error:
            diagnostics = with_missing_includes(str(error))
            raise ShaderCompileError(f"{label} does not compile:\n{diagnostics}") from None
        if is_misread(code):
            raise ShaderCompileError(
                f"{label} has a loop with `continue` or `return`, which the driver's "
                "translator misreads in SPIR-V: write the loop without it"
            )
        return code

    parts = (compilers.OPTIONS, stage, entry, digest_of(head + source, path.parent))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    code = cached(digest, compilers.version(), compile)
    assert isinstance(code, bytes)
    return code
