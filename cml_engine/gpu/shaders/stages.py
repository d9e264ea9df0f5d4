"""Shaders of the host's own renderer (vertex, fragment, compute): HLSL to SPIR-V, cached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cml_engine.errors import InputError, ShaderCompileError
from cml_engine.gpu.shaders import compilers
from cml_engine.gpu.shaders.cache import cached
from cml_engine.gpu.shaders.hlsl import is_misread
from cml_engine.gpu.shaders.includes import digest_of, read_source

STAGES = ("vertex", "fragment", "compute")


@dataclass(frozen=True, slots=True)
class StageKey:
    """One shader of a render or compute pipeline: its file, stage, entry point and defines."""

    path: Path
    stage: str
    entry: str
    defines: tuple[tuple[str, int | str], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.path.name}:{self.entry}"


def compile_stage(key: StageKey) -> bytes:
    """Returns SPIR-V of the stage, from the cache if possible; its entry point is called ``main``.

    Raises :class:`ShaderCompileError` if the source is rejected.
    """
    if key.stage not in STAGES:
        raise InputError(f"unknown stage '{key.stage}'; one of {', '.join(STAGES)}")
    if not key.path.is_file():
        raise InputError(f"shader source '{key.path}' not found")
    code = cached(_digest(key), compilers.version(), lambda: _compile(key))
    assert isinstance(code, bytes)
    return code


def _compile(key: StageKey) -> bytes:
    source = f'{_defines(key)}#line 1 "{key.path.as_posix()}"\n{read_source(key.path)}'
    request = compilers.Request(source, key.path, "spirv", key.stage, key.entry)
    try:
        code = compilers.compile(request)
    except compilers.CompilerError as error:
        raise ShaderCompileError(f"shader '{key.label}' does not compile:\n{error}") from None
    if is_misread(code):
        raise ShaderCompileError(
            f"shader '{key.label}' has a loop with `continue` or `return`, which the driver's "
            "translator misreads in SPIR-V: write the loop without it"
        )
    return code


def _defines(key: StageKey) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in key.defines)


def _digest(key: StageKey) -> str:
    """Returns a digest of everything that determines the stage's SPIR-V."""
    content = digest_of(_defines(key) + read_source(key.path), key.path.parent)
    parts = (compilers.OPTIONS, key.stage, key.entry, content)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
