"""Builds the packages of a release; ``python tasks.py release`` runs it.

They are written to ``dist/``:

=======================================  =====================================
``cml_engine-VERSION.tar.gz``            the source distribution
``cml_engine-VERSION-py3-none-any.whl``  the wheel, built from it
``cml-engine-VERSION.tgz``               the npm package, the player of ``players/web``
``cml-player-c-VERSION.tar.gz``          the C player, ``players/c``, as a CMake project
=======================================  =====================================
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples.deno import find_deno
from players.build import BuildError, build_core, pack_core, unpack_core

ROOT = Path(__file__).resolve().parent
#: what makes the npm package's modules small: Deno gets them from npm
_ESBUILD = ("npm:esbuild@0.25.5", "--format=esm", "--target=es2022", "--minify")
_WASM_OPT = (
    "npm:binaryen@123.0.0/wasm-opt", "-Oz", "--converge", "--enable-bulk-memory",
    "--enable-bulk-memory-opt", "--enable-sign-ext", "--enable-nontrapping-float-to-int",
    "--enable-mutable-globals",
)  # fmt: skip
_BUILD = "import sys; from hatchling import build; getattr(build, sys.argv[1])(sys.argv[2])"


def build_packages(folder: Path, *, npm: bool = True) -> None:
    """Writes every package of a release into an existing folder; without ``npm`` all but that one.

    The source distribution comes first, with the core of the web player, which is compiled for it.
    The others are built from an unpacked copy of it, so that none of them holds another file that
    git ignores.
    """
    build_core()
    run_hatchling("build_sdist", ROOT, folder)
    (source,) = folder.glob("cml_engine-*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(source) as archive:
            archive.extractall(unpacked, filter="data")
        (tree,) = Path(unpacked).iterdir()
        run_hatchling("build_wheel", tree, folder)
        build_c(tree, folder)
        if npm:
            build_npm(tree, folder)


def build_npm(tree: Path, folder: Path) -> None:
    """Writes the npm package of the web player in the layout of ``npm pack``, its modules minified.

    Equal trees give equal bytes. Raises :class:`BuildError` without Deno, or if a program from npm
    cannot be fetched.
    """
    web = tree / "players/web"
    description = json.loads((web / "package.json").read_text("utf-8"))
    description["version"] = version()
    files = {name: (web / name).read_bytes() for name in (*description["files"], "README.md")}
    for name in [name for name in files if name.endswith(".js") and name != "core.js"]:
        files[name] = _run_npm(files[name], ".js", *_ESBUILD)
    core = _run_npm(unpack_core(files["core.js"].decode()), ".wasm", *_WASM_OPT)
    files["core.js"] = pack_core(core).encode()
    files["LICENSE"] = (tree / "LICENSE").read_bytes()
    files["package.json"] = json.dumps(description, indent=2).encode() + b"\n"
    archive = folder / f"{description['name']}-{description['version']}.tgz"
    _write_archive(archive, "package", files)


def _run_npm(source: bytes, suffix: str, program: str, *flags: str) -> bytes:
    """Returns what a program from npm makes of a file."""
    deno = find_deno()
    if deno is None:
        raise BuildError("the npm package needs Deno: pip install deno (the extra `players`)")
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / f"before{suffix}", Path(folder) / f"after{suffix}"
        before.write_bytes(source)
        outfile = ("-o", str(after)) if suffix == ".wasm" else (f"--outfile={after}",)
        command = [deno, "run", "--quiet", "-A", program, *flags, str(before), *outfile]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode or not after.is_file():
            raise BuildError(f"{program} fails, which makes the npm package small:\n{run.stderr}")
        return after.read_bytes()


def build_c(tree: Path, folder: Path) -> None:
    """Writes the archive of the C player with its tools, examples and CMake files.

    Equal trees give equal bytes.
    """
    player = tree / "players/c"
    paths = [path for path in player.rglob("*") if path.is_file()]
    files = {path.relative_to(player).as_posix(): path.read_bytes() for path in paths}
    files["LICENSE"] = (tree / "LICENSE").read_bytes()
    name = f"cml-player-c-{version()}"
    _write_archive(folder / f"{name}.tar.gz", name, files)


def _write_archive(path: Path, top: str, files: dict[str, bytes]) -> None:
    """Writes files below the folder ``top`` to a ``.tar.gz``, sorted, without times or owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def version() -> str:
    """Returns the version in ``cml_engine/__init__.py``, which all packages have."""
    text = (ROOT / "cml_engine/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def run_hatchling(step: str, tree: Path, folder: Path) -> None:
    command = [sys.executable, "-c", _BUILD, step, str(folder)]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)


def check_packages(folder: Path) -> int:
    """Checks the packages as users of a package index would get them; returns 0 if all checks pass.

    The journeys install each package in an empty environment and run its smallest example.
    """
    (source,), (wheel,) = folder.glob("cml_engine-*.tar.gz"), folder.glob("*.whl")
    os.environ["CML_DIST"] = str(folder)
    with tempfile.TemporaryDirectory() as built:
        checks = (
            ("twine", "check", "--strict", str(source), str(wheel)),
            ("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, str(source)),
            ("pytest", "tests/journeys"),
        )
        return max(_run_module(*check) for check in checks)


def _run_module(*command: str) -> int:
    return subprocess.call([sys.executable, "-m", *command], cwd=ROOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Deletes ``dist/``, builds all packages into it, and checks them with ``--dry-run``.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser(prog="tasks.py release")
    parser.add_argument("--dry-run", action="store_true", help="also check the packages")
    options = parser.parse_args(arguments)
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        build_packages(folder)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:10,} bytes  {path.relative_to(ROOT)}")
    return check_packages(folder) if options.dry_run else 0


if __name__ == "__main__":
    sys.exit(main())
