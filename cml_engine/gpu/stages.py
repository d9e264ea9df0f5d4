"""Vertex, fragment and compute shaders of the host's own renderer: HLSL -> SPIR-V, cached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import shaders_hlsl
from cml_engine.errors import InputError, ShaderCompileError
from cml_engine.folders import cache_folder
from cml_engine.gpu import slang
from cml_engine.gpu.hlsl import included, is_misread, store

STAGES = ("vertex", "fragment", "compute")


@dataclass(frozen=True, slots=True)
class StageKey:
    """One stage of a pipeline."""

    path: Path
    stage: str
    entry: str
    defines: tuple[tuple[str, int | str], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.path.name}:{self.entry}"


def compile_stage(key: StageKey) -> bytes:
    """SPIR-V of the stage; its entry point is called ``main``."""
    if key.stage not in STAGES:
        raise InputError(f"unknown stage '{key.stage}'; one of {', '.join(STAGES)}")
    if not key.path.is_file():
        raise InputError(f"shader source '{key.path}' not found")
    cached = cache_folder() / f"{_digest(key)}.spv"
    try:
        return cached.read_bytes()
    except OSError:
        code = _compile(key)
        store(cached, code)
        return code


def _compile(key: StageKey) -> bytes:
    flags = [f"-I{key.path.parent}", f"-I{shaders_hlsl.FOLDER / 'include'}"]
    flags += [f"-D{name}={value}" for name, value in key.defines]
    try:
        code = slang.Slang.get().compile(key.path, flags, "spirv", key.stage, key.entry)
    except slang.SlangError as error:
        raise ShaderCompileError(f"shader '{key.label}' does not compile:\n{error}") from None
    if is_misread(code):
        raise ShaderCompileError(
            f"shader '{key.label}' has a loop with `continue` or `return`, which the driver's "
            "translator misreads in SPIR-V: write the loop without it"
        )
    return code


def _digest(key: StageKey) -> str:
    """Changes with everything that could change the stage's SPIR-V."""
    source = key.path.read_text(encoding="utf-8")
    hasher = hashlib.sha256(repr((slang.version(), key.stage, key.entry, key.defines)).encode())
    for text in (source, *included(source, key.path.parent, set())):
        hasher.update(text.encode())
    return hasher.hexdigest()
