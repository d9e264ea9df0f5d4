"""The disk cache of compiled shaders: one file each, verified before use and recompiled if invalid.

A file is a header line (format, type of code, compiler version, SHA-256 of the code), then the
code. The file name is the digest of everything that determines the shader except the compiler,
which the header states. A different compiler version recompiles the shader; a machine without a
compiler uses the file as it is. An empty file beside them marks code that a software driver has
compiled too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.data_folders import cache_folder

#: SPIR-V as bytes, or WGSL as text
Code = bytes | str
_FORMAT = 1
#: larger than any header line
_HEADER_BYTES = 4096


def shader_file(digest: str) -> Path:
    """Returns the path of the cache file of the shader with this digest, which may not exist."""
    return cache_folder() / "shaders" / f"{digest}.shader"


def driver_file(code: Code, driver: str) -> Path:
    """Returns the path of an empty file that exists once ``driver`` has compiled ``code``."""
    return shader_file(_hash(driver, _body(code))).with_suffix(".driver")


def cached(digest: str, compiler: str | None, compile: Callable[[], Code]) -> Code:
    """Returns the code of the shader ``digest`` from its file, else compiles and stores it.

    ``compiler`` is the name and version of the installed compiler. If it is ``None``, code of
    any version is accepted. A file that is truncated, changed, foreign or from another compiler
    counts as missing and is replaced. If the file cannot be written, the code is still returned.
    """
    file = shader_file(digest)
    code = _read(file, compiler)
    if code is None:
        code = compile()
        with contextlib.suppress(OSError):
            write_atomically(file, _content(code, compiler))
    return code


def _content(code: Code, compiler: str | None) -> bytes:
    body = _body(code)
    code_type = "wgsl" if isinstance(code, str) else "spirv"
    header = {
        "format": _FORMAT, "kind": code_type, "compiler": compiler, "sha256": _hash(code_type, body)
    }  # fmt: skip
    return json.dumps(header).encode() + b"\n" + body


def _body(code: Code) -> bytes:
    return code.encode() if isinstance(code, str) else code


def _hash(context: str, body: bytes) -> str:
    """Returns the SHA-256 of the code and its type or its driver, in hexadecimal."""
    return hashlib.sha256(context.encode() + b"\n" + body).hexdigest()


def _read(file: Path, compiler: str | None) -> Code | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    line = content[:_HEADER_BYTES].partition(b"\n")[0]
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    body = content[len(line) + 1 :]
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        return None
    if header.get("sha256") != _hash(str(header.get("kind")), body):
        return None
    if compiler is not None and header.get("compiler") != compiler:
        return None
    return body.decode(errors="replace") if header.get("kind") == "wgsl" else body
