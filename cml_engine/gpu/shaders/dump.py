"""The dump of kernel variants to files: the compiler's input and its output, for inspection.

``Gpu.dump_kernels = folder`` (or ``CML_DUMP_KERNELS``, or ``--dump-kernels``) writes these files
for every pipeline built from then on:

- ``NAME.hlsl``: the resolved source, complete in itself: defines, parameters, accessors, includes.
  It is Slang's HLSL; its translation ``NAME.d3d.hlsl`` is plain HLSL, which DXC takes;
- ``NAME.spv`` and ``NAME.spvasm``: the SPIR-V for the engine's kernels, and its text;
- ``NAME.wgsl``: the WGSL for a game's kernels;
- ``NAME.metal``, ``NAME.d3d.hlsl``, ``NAME.glsl``: the same kernel as the compiler writes it for
  other platforms. wgpu's own translation is not accessible; this is close to it.

``kernels.txt`` lists the variant of each name. ``NAME.steps.json`` has every step of a network: its
kernel's file, the values of its parameters, and its tensors with type, layout and range of memory.
``cml run --dump-values`` adds the content of each tensor before or after its step.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePath

import numpy as np

from cml_engine.compiler.plan import KernelCode, Plan
from cml_engine.errors import InputError
from cml_engine.gpu.shaders import compilers
from cml_engine.gpu.shaders.hlsl import ShaderKey, Variant, compile_spirv, digest, standalone_source
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.output_folder import file_below, file_stem

#: the compiler's targets and the suffixes of their files
_TARGETS = {
    "spirv-asm": "spvasm",
    "wgsl": "wgsl",
    "metal": "metal",
    "hlsl": "d3d.hlsl",
    "glsl": "glsl",
}
INDEX = "kernels.txt"
#: pipelines are built by several threads, and the index is read before it is written
_one_by_one = threading.Lock()


def dump_kernel(key: Variant, folder: str | Path) -> Path:
    """Writes one variant's files into the folder and returns the path of its HLSL.

    A cooked variant has no HLSL; its code is written and that path is returned. Raises
    :class:`InputError` if the folder cannot be written.
    """
    dump = _dump if isinstance(key, ShaderKey) else _dump_code
    with _writing(folder):
        return dump(key, Path(folder))  # type: ignore[arg-type]


def dump_steps(plan: Plan, keys: Sequence[Variant], folder: str | Path) -> Path:
    """Writes the steps of a plan, with the variant of each, as JSON and returns the file's path.

    Raises :class:`InputError` if the folder cannot be written.
    """
    rows = [
        {
            "step": step.index,
            "operator": step.full_title,
            "kernel": key.label if step.cpu_part else _file_name(key),
            "workgroups": step.groups,
            "parameters": step.cooked.params.hex() if step.cooked else dict(step.params),
            "tensors": [asdict(tensor) for tensor in plan.bound_tensors(step)],
        }
        for step, key in zip(plan.steps, keys, strict=True)
    ]
    with _writing(folder):
        text = json.dumps(rows, indent=1, default=lambda value: np.asarray(value).tolist())
        return _write(Path(folder), f"{file_stem(plan.name)}.steps.json", text)


@contextmanager
def _writing(folder: str | Path) -> Iterator[None]:
    """Lets one thread write at a time; errors of the file system become :class:`InputError`."""
    try:
        with _one_by_one:
            yield
    except OSError as error:
        raise InputError(
            f"--dump-kernels: cannot write into '{folder}': {error.strerror or error}"
        ) from error


def _file_name(key: Variant) -> str:
    """Returns the name of the file with the variant's HLSL, or with its cooked code."""
    if isinstance(key, ShaderKey):
        return f"{key.path.stem}-{digest(key, 'spirv')[:8]}.hlsl"
    suffix = "wgsl" if isinstance(key.code(), str) else "spv"
    # a label from a foreign cooked file is untrusted
    return f"{file_stem(PurePath(key.label.partition(' ')[0]).stem)}-{key.content[:8]}.{suffix}"


def _dump_code(key: KernelCode, folder: Path) -> Path:
    return _write(folder, _file_name(key), key.code())


def source_file(key: ShaderKey) -> tuple[str, str]:
    """Returns the name and the text of one variant's HLSL file. Compiles nothing."""
    return _file_name(key), standalone_source(key)


def _dump(key: ShaderKey, folder: Path) -> Path:
    name, source = source_file(key)
    hlsl = _write(folder, name, source)
    _write(folder, f"{hlsl.stem}.spv", compile_spirv(key))
    for suffix, text in _translations(source, key).items():
        _write(folder, f"{hlsl.stem}.{suffix}", text)
    _add_to_index(key, hlsl)
    return hlsl


def _write(folder: Path, name: str, content: bytes | str) -> Path:
    path = file_below(folder, name)
    write_atomically(path, content)
    return path


def _translations(source: str, key: ShaderKey) -> dict[str, bytes]:
    """Returns the kernel in every target language, by file suffix.

    A translation that fails is the compiler's diagnostics as a comment.
    """
    translations: dict[str, bytes] = {}
    for target, suffix in _TARGETS.items():
        request = compilers.Request(source, key.path, target)
        try:
            translations[suffix] = compilers.compile(request).rstrip(b"\0")
        except compilers.CompilerError as error:
            translations[suffix] = f"// no translation to {target}:\n// {error}\n".encode()
    return translations


def _add_to_index(key: ShaderKey, hlsl: Path) -> None:
    """Adds the variant to the index unless it is listed already."""
    index = hlsl.with_name(INDEX)
    checks = "without naga's checks" if key.trusted else "with naga's checks"
    line = f"{hlsl.stem}  {key.path}  {checks}  {key.label}\n"
    content = index.read_text(encoding="utf-8") if index.is_file() else ""
    if line not in content:
        _write(hlsl.parent, INDEX, content + line)
