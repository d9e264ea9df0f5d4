"""Compiles the C player to WebAssembly, as ``players/web/core.js`` with the bytes in its text.

Run ``python -m players.build`` in the project's root; it needs the package ``ziglang`` of the extra
``players``.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORE = HERE / "web" / "core.js"
_FLAGS = (
    "--target=wasm32-wasi", "-std=c11", "-flto", "-ffp-contract=off",
    "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror",
)  # fmt: skip
_LINKED = ("-mexec-model=reactor", "-Wl,--strip-all", "-Wl,-z,stack-size=262144")
_SMALL = ("-Oz", "-fno-inline-functions")
#: sources that take the time of loading: optimized for speed, the others for size
_FAST = ("constants.c",)


class BuildError(Exception):
    """The core cannot be compiled; the message says what is missing, or what the compiler said."""


def build_core(target: Path = CORE) -> Path:
    """Compiles the core unless ``target`` was made from the same sources, and returns ``target``.

    Raises :class:`BuildError` without a compiler, or if it fails.
    """
    sources = [HERE / "web" / "core.c", *sorted((HERE / "c" / "src").glob("*.c"))]
    read = [Path(__file__), *sources, *sorted((HERE / "c").glob("*/*.h"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in read)).hexdigest()
    mark = f"// Made by players/build.py from sources with the SHA-256 {digest}\n"
    if target.is_file() and target.read_text("utf-8").startswith(mark):
        return target
    core = pack_core(compile_wasm(sources))
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, suffix=".js") as file:
        file.write(mark + core)
    Path(file.name).replace(target)
    return target


def pack_core(wasm: bytes) -> str:
    """Returns the text of a JavaScript module that exports WebAssembly, compressed, in base64."""
    return f'export default "{base64.b64encode(zlib.compress(wasm, 9)).decode()}";\n'


def unpack_core(module: str) -> bytes:
    """Returns the WebAssembly in the text of a module that :func:`pack_core` made."""
    return zlib.decompress(base64.b64decode(module.split('"')[1]))


def find_compiler() -> bool:
    """Returns True if the compiler is installed."""
    return importlib.util.find_spec("ziglang") is not None


def compile_wasm(sources: list[Path], *flags: str) -> bytes:
    """Returns the bytes of a WebAssembly module that is compiled from C files."""
    if not find_compiler():
        raise BuildError(
            "the web player needs a compiler for WebAssembly: pip install ziglang (the extra "
            "`players`), then python -m players.build"
        )
    includes = (f"-I{HERE / 'c' / 'include'}", f"-I{HERE / 'c' / 'src'}")
    compiler = (sys.executable, "-m", "ziglang", "cc", *_FLAGS, *includes)
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "core.wasm"
        inputs = []
        for source in sources:
            inputs.append(source)
            if source.name in _FAST:
                inputs[-1] = Path(folder) / f"{source.stem}.o"
                _run(*compiler, "-O2", "-c", source, "-o", inputs[-1])
        _run(*compiler, *_SMALL, *_LINKED, *flags, *inputs, "-o", module)
        return module.read_bytes()


def _run(*command: str | Path) -> None:
    run = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if run.returncode:
        raise BuildError(f"the web player does not compile:\n{run.stderr}")


def main() -> int:
    """Builds the core and prints its size; returns the exit code."""
    try:
        core = build_core()
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{core.stat().st_size:,} bytes  {core.relative_to(HERE.parent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
