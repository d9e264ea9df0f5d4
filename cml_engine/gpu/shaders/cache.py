"""Compiled shaders on disk: a file each, checked before it is used, else made again.

A file is one line that says what it holds (the format, the kind of code, the compiler that made
it, the code's SHA-256), then the code. Its name is the digest of everything that went into the
shader but the compiler, which the file states itself: with another compiler than that it is made
again, and on a machine without one it serves as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.folders import cache_folder

#: SPIR-V, or the text of WGSL
Code = bytes | str
_FORMAT = 1
#: more than any first line
_HEADER_BYTES = 4096


def shader_file(digest: str) -> Path:
    """Where the shader of this digest lies."""
    return cache_folder() / "shaders" / f"{digest}.shader"


def cached(digest: str, compiler: str | None, compile: Callable[[], Code]) -> Code:
    """The code of the shader ``digest``: from its file, else from ``compile()``, which is kept.

    ``compiler`` is the name and version of the one that is here, ``None`` where none is: then
    whatever the file holds is right. A file that is cut off, changed, foreign or of another
    compiler counts as missing and is replaced; one that cannot be written is only slower.
    """
    file = shader_file(digest)
    code = _read(file, compiler)
    if code is None:
        code = compile()
        with contextlib.suppress(OSError):
            write_atomically(file, _content(code, compiler))
    return code


def _content(code: Code, compiler: str | None) -> bytes:
    body = code.encode() if isinstance(code, str) else code
    kind = "wgsl" if isinstance(code, str) else "spirv"
    header = {
        "format": _FORMAT, "kind": kind, "compiler": compiler, "sha256": _hash(kind, body)
    }  # fmt: skip
    return json.dumps(header).encode() + b"\n" + body


def _hash(kind: str, body: bytes) -> str:
    """Of the code and of what it is to be read as."""
    return hashlib.sha256(kind.encode() + b"\n" + body).hexdigest()


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
