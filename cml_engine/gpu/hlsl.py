"""A kernel variant's HLSL source -> SPIR-V, compiled once per machine.

What is compiled is a generated prelude (slice, parameters, tensors) before the kernel's own file.
The result is kept on disk under a key of everything that could change it: source, included files,
defines, prelude and compiler version. A second process compiles nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import shaders_hlsl
from cml_engine.errors import InputError, ShaderCompileError
from cml_engine.folders import cache_folder
from cml_engine.gpu import slang
from cml_engine.gpu.params import parse_params
from cml_engine.layout import PACKED_TYPES

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_INCLUDE_LINE = re.compile(_INCLUDE.pattern + r".*$", re.MULTILINE)

#: SPIR-V's numbers of the instructions that is_misread looks at
_OP_LABEL, _OP_LOOP_MERGE, _OP_SWITCH = 248, 246, 251

_PRELUDE = """\
// The workgroups of this launch: [cml_first, cml_end) of the dispatch, in rows of cml_stride.
[[vk::binding(0)]] cbuffer CmlSlice { uint cml_first; uint cml_end; uint cml_stride; };
#define CML_GROUP(gid) (cml_first + (gid).x + (gid).y * cml_stride)
"""


@dataclass(frozen=True)
class ShaderKey:
    """Everything that makes one kernel variant: equal keys are the same pipeline."""

    path: Path
    params: str
    tensors: int
    defines: tuple[tuple[str, str], ...]
    trusted: bool
    #: generated HLSL that declares the tensors and the entry point
    interface: str = ""
    #: the kernel's HLSL, where it is not what stands in ``path``
    inline: str = ""

    @property
    def label(self) -> str:
        shown = " ".join(f"{k}={v}" for k, v in self.defines)
        return f"{self.path.name} {shown}".strip()


def shader_key(
    path: str | Path,
    params: str,
    tensors: int,
    defines: Mapping[str, int | str],
    trusted: bool,
    *,
    interface: str = "",
    inline: str = "",
) -> ShaderKey:
    """The key of a variant; a bare file name is looked up in ``shaders_hlsl/``."""
    return ShaderKey(
        Path(path) if inline else resolve(path),
        params,
        tensors,
        tuple(sorted((k, str(v)) for k, v in defines.items())),
        trusted,
        interface,
        inline,
    )


def resolve(path: str | Path) -> Path:
    """The kernel's file: a bare name is one of ours, anything else is the caller's."""
    path = Path(path)
    own = shaders_hlsl.FOLDER / path
    found = own if len(path.parts) == 1 and own.is_file() else path
    if not found.is_file():
        raise InputError(f"kernel source '{path}' not found (nor in {shaders_hlsl.FOLDER})")
    return found


def resolved_source(key: ShaderKey) -> str:
    """What the compiler sees: defines, prelude, and the kernel's file with its line numbers."""
    lines = [f"#define {name} {value}" for name, value in key.defines]
    lines += [_PRELUDE, parse_params(key.params).hlsl()]
    if any(value in PACKED_TYPES for _, value in key.defines):
        lines.append('#include "packed4.hlsli"')
    lines += [key.interface] if key.interface else _tensors(key.tensors)
    lines.append(f'#line {_first_line(key)} "{key.path.as_posix()}"')
    return "\n".join(lines) + "\n" + own_source(key)


def own_source(key: ShaderKey) -> str:
    """The kernel's own HLSL."""
    return key.inline or key.path.read_text(encoding="utf-8")


def _tensors(count: int) -> list[str]:
    lines = []
    for i in range(count):
        lines += [f"#ifndef T{i}_TYPE", f"#define T{i}_TYPE float", "#endif"]
        lines.append(f"[[vk::binding({i + 2})]] RWStructuredBuffer<T{i}_TYPE> T{i};")
    return lines


def _first_line(key: ShaderKey) -> int:
    """Where an inline source begins in the Python file that has it; 1 where it is not found."""
    if not key.inline or not key.path.is_file():
        return 1
    before, found, _ = key.path.read_text(encoding="utf-8").partition(key.inline)
    return before.count("\n") + 1 if found else 1


def compile_kernel(key: ShaderKey) -> bytes | str:
    """What wgpu gets: SPIR-V of the engine's own kernels, WGSL of a game's.

    naga misreads SPIR-V in which a branch leaves two constructs at once (gfx-rs/wgpu#4449), which
    is what the compiler makes of ``continue``: wrong numbers and no message. Our kernels are
    written without; a game's go by way of WGSL, which is read right. What WGSL lacks (atomics on
    plain buffers) still goes as SPIR-V, if nothing in it can be misread.
    """
    if not key.interface:
        return compile_spirv(key)
    wgsl = cache_folder() / f"{digest(key)}.wgsl"
    spirv = wgsl.with_suffix(".safe.spv")
    for cached in (wgsl, spirv):
        if cached.is_file():
            return cached.read_text(encoding="utf-8") if cached is wgsl else cached.read_bytes()
    try:
        text = _compile(resolved_source(key), key, "wgsl").rstrip(b"\0").decode()
    except ShaderCompileError as refused:
        code = compile_spirv(key)
        if is_misread(code):
            raise ShaderCompileError(
                f"{refused.message}\nWhat WGSL lacks can be used only where no loop has a "
                "`continue` or a `return`: write the loop without them"
            ) from None
        store(spirv, code)
        return code
    # naga has subgroups, and refuses the line that asks for them
    text = text.replace("enable subgroups;", "")
    store(wgsl, text.encode())
    return text


def is_misread(spirv: bytes) -> bool:
    """Whether SPIR-V has a ``switch`` of one case inside a loop: the compiler's way to write
    ``continue``, out of which the loop is left by a branch that naga takes for the switch's own."""
    words = memoryview(spirv).cast("I")
    at, open_loops = 5, set[int]()
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        if code == _OP_LABEL:
            open_loops.discard(words[at + 1])
        elif code == _OP_LOOP_MERGE:
            open_loops.add(words[at + 1])
        elif code == _OP_SWITCH and length == 3 and open_loops:
            return True
        at += max(length, 1)
    return False


def compile_spirv(key: ShaderKey) -> bytes:
    """SPIR-V of the variant, from the cache if it is there."""
    cached = cache_folder() / f"{digest(key)}.spv"
    try:
        return cached.read_bytes()
    except OSError:
        code = _compile(resolved_source(key), key)
        if not key.interface and is_misread(code):
            raise ShaderCompileError(
                f"kernel '{key.label}' has a loop with `continue`, which the driver's translator "
                "misreads in SPIR-V: write the loop without it"
            ) from None
        store(cached, code)
        return code


def _compile(source: str, key: ShaderKey, target: str = "spirv") -> bytes:
    with tempfile.TemporaryDirectory(prefix="cml-hlsl-") as folder:
        file = Path(folder, f"{key.path.stem}.hlsl")
        file.write_text(source, encoding="utf-8")
        try:
            return slang.Slang.get().compile(file, include_flags(key), target)
        except slang.SlangError as error:
            raise ShaderCompileError(f"kernel '{key.label}' does not compile:\n{error}") from None


def include_flags(key: ShaderKey) -> list[str]:
    """Where ``#include`` looks: beside the kernel, then in the engine's own folder."""
    return [f"-I{key.path.parent}", f"-I{shaders_hlsl.FOLDER / 'include'}"]


def digest(key: ShaderKey) -> str:
    """Changes with everything that could change the variant's SPIR-V."""
    source, path = resolved_source(key), key.path
    hasher = hashlib.sha256(slang.version().encode())
    hasher.update(source.replace(str(path.parent.as_posix()), "").encode())
    for text in included(source, path.parent, set()):
        hasher.update(text.encode())
    return hasher.hexdigest()


def standalone_source(key: ShaderKey) -> str:
    """The resolved source with its includes in their places: one text that any compiler takes."""
    return _expanded(resolved_source(key), key.path.parent, set())


def _expanded(source: str, folder: Path, seen: set[Path]) -> str:
    def text_of(match: re.Match[str]) -> str:
        file = _find_include(match[1], folder)
        if file is None:
            return match[0]
        text = file.read_text(encoding="utf-8")
        if file in seen and "#pragma once" in text:
            return f"// {match[1]} is above"
        seen.add(file)
        shown = _expanded(text.replace("#pragma once", ""), file.parent, seen)
        return f"// ---- {match[1]}\n{shown}\n// ---- end of {match[1]}"

    return _INCLUDE_LINE.sub(text_of, source)


def _find_include(name: str, folder: Path) -> Path | None:
    candidates = (folder / name, shaders_hlsl.FOLDER / "include" / name)
    return next((file for file in candidates if file.is_file()), None)


def included(source: str, folder: Path, seen: set[Path]) -> list[str]:
    """The text of every file that the source includes, directly or not, each once."""
    texts: list[str] = []
    for name in _INCLUDE.findall(source):
        file = _find_include(name, folder)
        if file is not None and file not in seen:
            seen.add(file)
            text = file.read_text(encoding="utf-8")
            texts += [text, *included(text, file.parent, seen)]
    return texts


def store(cached: Path, code: bytes) -> None:
    """Write whole or not at all; a cache that cannot be written is only slower."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=cached.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, cached)
    except OSError:
        return
