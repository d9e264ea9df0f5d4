"""Exports a network for C and C++ hosts: a cooked file, the player's source, and a host that
runs it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cml_engine.cooked.cook import cook
from cml_engine.cooked.guess import DeviceGuess
from cml_engine.cooked.profiles import PROFILES
from cml_engine.errors import InputError
from cml_engine.io.folders import bundled_folder
from cml_engine.io.output_folder import OutputFolder, check_new_folder
from cml_engine.ir.graph import Graph

#: the exported names of the player's files
_FILES = {
    "main.c": "example/host.c",
    "gpu.h": "example/gpu.h",
    "cml.h": "include/cml.h",
    "cml.hpp": "include/cml.hpp",
}
_README = """A network for C and C++: {name}

Compile and run:

  {compile}
  ./host net.cml {inputs}

{tensors}

The files of inputs and outputs (NAME.bin) hold plain numbers of 4 bytes. An input without a file is
zeros. The last argument may be the budget of a frame in milliseconds.

main.c  the host: plays the network in frames of a budget; read it first, then gpu.h
cml.c   the player in one file, with cml.h; cml.hpp is its C++17 wrapper
net.cml the network: plans for several kinds of devices, weights and kernels

The player needs an implementation of webgpu.h. The Python package `wgpu` {version} has wgpu-native:
webgpu.h, wgpu.h and the library. https://github.com/gfx-rs/wgpu-native/releases has it for other
platforms, and with import libraries for Windows. To use Dawn instead, define CML_DAWN.

In an engine of your own: compile cml.c with it, without contraction of floating-point operations
(-ffp-contract=off; MSVC: /fp:precise), and call the functions of cml.h on the engine's device.
`cml docs ship_it` is the guide; it has the CMake package too.
"""


@dataclass(frozen=True, slots=True)
class ExportedC:
    """The names of the exported files, and the shell command that compiles the host."""

    files: tuple[str, ...]
    compile: str


def export_c(
    graph: Graph,
    folder: Path,
    *,
    half: bool = False,
    guesses: Sequence[DeviceGuess] = (),
    overwrite: bool = False,
) -> ExportedC:
    """Writes a cooked network, the C player and a host into a folder; returns the files and the
    command that compiles the host.

    Raises :class:`InputError` if the player or the package ``wgpu`` is not installed, or if the
    folder has files and ``overwrite`` is False.
    """
    player = player_folder()
    check_new_folder(folder, overwrite)
    data = cook(graph, tuple(PROFILES), half=half, player=True, guesses=guesses)
    compile_command = _compile_command()
    made = OutputFolder(folder, "model.json", overwrite=overwrite)
    for name, source in _FILES.items():
        made.write(name, (player / source).read_bytes())
    made.write("cml.c", amalgamated(player).encode())
    made.write("net.cml", data)
    made.write("README.txt", _readme(graph, compile_command).encode())
    made.write_manifest({"name": graph.name, "file": "net.cml"})
    files = (*_FILES, "cml.c", "net.cml", "README.txt", "model.json")
    return ExportedC(files, compile_command)


def player_folder() -> Path:
    """Returns the folder of the C player; raises :class:`InputError` if it is missing."""
    folder = bundled_folder("cooked/c_player", "players/c")
    if not (folder / "include/cml.h").is_file():
        raise InputError(f"the C player is not installed: wanted '{folder}'")
    return folder


def amalgamated(player: Path) -> str:
    """Returns the C player's sources as the text of one C file, which needs ``cml.h`` beside it."""
    sources = player / "src"
    own = re.compile(r'^#include "(?!cml\.h")(\w+\.h)"\n', re.MULTILINE)

    def header(name: str) -> str:
        text = (sources / name).read_text("utf-8")
        return own.sub(lambda found: header(found[1]), text)

    parts = ["/* The C player of cooked networks in one file. */\n", header("internal.h")]
    for path in sorted(sources.glob("*.c")):
        parts += ["\n", own.sub("", path.read_text("utf-8"))]
    return "".join(parts)


def _compile_command() -> str:
    folder = _wgpu_folder()
    library = next((p.name for p in sorted(folder.glob("*wgpu_native*"))), "libwgpu_native.so")
    return (
        f'WGPU="{folder}"; cc -O2 -ffp-contract=off -I. -isystem "$WGPU" main.c cml.c '
        f'"$WGPU/{library}" -Wl,-rpath,"$WGPU" -lm -o host'
    )


def _readme(graph: Graph, compile_command: str) -> str:
    rows = [
        f"  {kind:7} {name}: {graph.facts[name].dtype} {list(graph.facts[name].shape)}"
        for kind, names in (("input", graph.inputs), ("output", graph.outputs))
        for name in names
    ]
    return _README.format(
        name=graph.name,
        compile=compile_command,
        inputs=" ".join(f"[{name}=FILE]" for name in graph.inputs),
        tensors="\n".join(rows),
        version=metadata.version("wgpu"),
    )


def _wgpu_folder() -> Path:
    """Returns the folder of wgpu-native's headers and library in the Python package ``wgpu``.

    Raises :class:`InputError` if the package is not installed.
    """
    spec = importlib.util.find_spec("wgpu")
    if spec is None or spec.origin is None:
        raise InputError(
            "the package `wgpu` is not installed, whose headers and library the C player needs: "
            "pip install wgpu"
        )
    return Path(spec.origin).parent / "resources"
