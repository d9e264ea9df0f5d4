"""The includes of an HLSL source: finding, hashing and inlining them.

The files of a shader must be known without the compiler, which is slow and may not be installed.
Includes therefore name their files in quotes or angle brackets. If the compiler reads a file that
was not found this way, the shader is rejected.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from cml_engine.ops.kernel_files import KERNEL_FOLDER

_INCLUDE = re.compile(
    r'^[ \t]*(?:/\*.*?\*/[ \t]*)?#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE
)
_UNDEFINED = re.compile(r"undefined identifier '(\w+)'")
_INCLUDE_LINE = re.compile(_INCLUDE.pattern + r".*$", re.MULTILINE)


def read_source(file: Path) -> str:
    """Returns the text of a source file; reads it again only if the file has changed."""
    stat = file.stat()
    return _read(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=512)
def _read(file: Path, _changed: int, _size: int) -> str:
    return file.read_text(encoding="utf-8")


def included(source: str, folder: Path) -> dict[Path, str]:
    """Returns the text, by path, of every file that the source includes directly or indirectly.

    Includes are searched for in the folder of the including file, in ``folder``, then among the
    engine's own.
    """
    texts: dict[Path, str] = {}
    _collect(source, folder, folder, texts)
    return texts


def _collect(source: str, including: Path, folder: Path, texts: dict[Path, str]) -> None:
    for names in _INCLUDE.findall(source):
        file = _find(names[0] or names[1], including, folder)
        if file is not None and file not in texts:
            texts[file] = read_source(file)
            _collect(texts[file], file.parent, folder, texts)


def _find(name: str, *folders: Path) -> Path | None:
    candidates = (folder / name for folder in (*folders, KERNEL_FOLDER / "include"))
    return next((file.resolve() for file in candidates if file.is_file()), None)


def with_missing_includes(diagnostics: str) -> str:
    """Returns a compiler's diagnostics, with the includes that define what it does not know."""
    names = dict.fromkeys(_UNDEFINED.findall(diagnostics))
    lines = [diagnostics]
    for name in names:
        file = next((f for f in _engine_includes() if _defines(name, read_source(f))), None)
        if file is not None:
            lines.append(f"{name} is in the engine's '{file.name}': #include \"{file.name}\"")
    return "\n".join(lines)


def _defines(name: str, text: str) -> bool:
    pattern = rf"^(?:\w+[ \t]+{name}\s*\([^;]*?\)\s*\{{|#define[ \t]+{name}\b)"
    return re.search(pattern, text, re.MULTILINE) is not None


def _engine_includes() -> list[Path]:
    return sorted((KERNEL_FOLDER / "include").glob("*.hlsli"))


def digest_of(source: str, folder: Path) -> str:
    """Returns a hexadecimal digest of the source and of every file that it includes."""
    hasher = hashlib.sha256()
    for text in (source, *included(source, folder).values()):
        encoded = text.encode()
        hasher.update(len(encoded).to_bytes(8, "little") + encoded)
    return hasher.hexdigest()


def with_includes(source: str, folder: Path) -> str:
    """Returns the source with its includes inlined.

    An include that is not found stays as it is.
    """
    return _expanded(source, folder, folder, set())


def _expanded(source: str, including: Path, folder: Path, seen: set[Path]) -> str:
    def text_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        file = _find(name, including, folder)
        if file is None:
            return match[0]
        text = read_source(file)
        if file in seen and "#pragma once" in text:
            return f"// {name} is above"
        seen.add(file)
        expansion = _expanded(text.replace("#pragma once", ""), file.parent, folder, seen)
        return f"// ---- {name}\n{expansion}\n// ---- end of {name}"

    return _INCLUDE_LINE.sub(text_of, source)
