"""Exports a network with a player that runs it: a web page, or a host in C (docs/ship_it.md)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from cml_engine.cooked.cook import cook
from cml_engine.cooked.guess import DeviceGuess
from cml_engine.cooked.profiles import PROFILES
from cml_engine.errors import InputError
from cml_engine.io.data_folders import bundled_folder
from cml_engine.io.json_files import Json
from cml_engine.io.output_folder import OutputFolder, check_new_folder
from cml_engine.ir.graph import Graph
from cml_engine.runtime.session.compile_graph import CompileOptions

#: profiles for browsers, without a GPU too
_WEB_PROFILES = ("discrete", "portable", "software-portable")
#: the player's files that an export has, by their exported names
_WEB_FILES = {
    "index.html": "page.html",
    **{
        name: name
        for name in (
            "page.css",
            "page.js",
            "cml.js",
            "core.js",
            "check.js",
            "picture.js",
            "scene.js",
        )
    },
}
_C_FILES = {
    "main.c": "example/host.c",
    **{name: f"example/{name}" for name in ("common.h", "gpu.h")},
    **{name: f"include/{name}" for name in ("cml.h", "cml.hpp", "cml_backend.h", "cml_webgpu.h")},
    "cml_webgpu.c": "backends/webgpu.c",
}
_README = """A network for C and C++: {name}

Compile and run:

  {compile}
  ./host net.cml {inputs}

{tensors}

The files of inputs and outputs (NAME.bin) hold plain numbers of 4 bytes. An input without a file is
zeros. The last argument may be the budget of a frame in milliseconds.

main.c       the host: plays the network in frames of a budget; then read gpu.h and common.h
cml.c        the player in one file, with cml.h; cml.hpp is its C++17 wrapper
cml_webgpu.c its functions of a WebGPU device, with cml_webgpu.h
net.cml      the network: plans for several kinds of devices, weights and kernels

cml_webgpu.c needs an implementation of webgpu.h; an engine on another API fills the table of
cml_backend.h itself. The Python package `wgpu` {version} has wgpu-native: webgpu.h, wgpu.h
and the library. https://github.com/gfx-rs/wgpu-native/releases has it for other
platforms, and with import libraries for Windows. To use Dawn instead, define CML_DAWN.

In an engine of your own: compile cml.c with it, without contraction of floating-point operations
(-ffp-contract=off; MSVC: /fp:precise), and call the functions of cml.h on the engine's device.
`cml docs ship_it` is the guide; it has the CMake package too.
"""


def export_player(
    graph: Graph,
    folder: Path,
    language: str,
    *,
    options: CompileOptions,
    guesses: Sequence[DeviceGuess] = (),
    overwrite: bool = False,
) -> list[str]:
    """Writes a cooked network and a player into a folder, and returns the names of the files.

    ``"web"`` is a page that needs no other files and no network access; any web server can serve
    the folder. ``"c"`` is the C player with a host, which :func:`compile_command` compiles. Raises
    :class:`InputError` if the player, or for C the package ``wgpu``, is not installed, or if the
    folder has files and ``overwrite`` is False.
    """
    is_web = language == "web"
    player = player_folder(language, "core.js" if is_web else "include/cml.h")
    check_new_folder(folder, overwrite)
    profiles, sources = (_WEB_PROFILES, _WEB_FILES) if is_web else (tuple(PROFILES), _C_FILES)
    files = {name: (player / source).read_bytes() for name, source in sources.items()}
    files["net.cml"] = cook(graph, profiles, options, player=True, browser=is_web, guesses=guesses)
    model: dict[str, Json] = {"name": graph.name, "file": "net.cml"}
    if is_web:
        picture = picture_of(graph)
        model["picture"] = picture is not None
        if picture is not None:
            model["input"], model["output"] = picture
    else:
        files |= {"cml.c": amalgamated(player).encode(), "README.txt": _readme(graph).encode()}
    output = OutputFolder(folder, "model.json", overwrite=overwrite)
    for name, content in files.items():
        output.write(name, content)
    output.write_manifest(model)
    return [*files, "model.json"]


def player_folder(language: str, file: str) -> Path:
    """Returns the folder of a player; raises :class:`InputError` if it lacks the file."""
    folder = bundled_folder(f"cooked/players/{language}", f"players/{language}")
    if (folder / file).is_file():
        return folder
    if file == "core.js" and (folder / "core.c").is_file():
        raise InputError(
            f"the web player is not built: '{folder / file}' is missing. In a checkout "
            "`python -m players.build` makes it, with the package ziglang (the extra `players`)"
        )
    raise InputError(f"the player is not installed: wanted '{folder / file}'")


def picture_of(graph: Graph) -> tuple[str, str] | None:
    """Returns the input and the first output of a network that maps one picture to another, else
    None.

    The network has one input, ``[1, 3, H, W]``; the output is of the same size or enlarged by a
    whole factor.
    """
    if len(graph.inputs) != 1:
        return None
    (input_name,) = graph.inputs
    outputs = (name for name in graph.outputs if _is_enlarged(graph, input_name, name))
    return next(((input_name, name) for name in outputs), None)


def _is_enlarged(graph: Graph, input_name: str, output_name: str) -> bool:
    small, large = graph.facts[input_name], graph.facts[output_name]
    if small.dtype != "scalar" or large.dtype != "scalar":
        return False
    if len(small.shape) != 4 or small.shape[:2] != (1, 3) or large.shape[:2] != (1, 3):
        return False
    vertical_factor, horizontal_factor = (
        b / a for a, b in zip(small.shape[2:], large.shape[2:], strict=True)
    )
    return (
        vertical_factor == horizontal_factor
        and vertical_factor >= 1
        and vertical_factor == int(vertical_factor)
    )


def amalgamated(player: Path) -> str:
    """Returns the C player's sources as the text of one C file, which needs its public headers.

    The backends are files of their own.
    """
    sources = player / "src"
    own_include = re.compile(r'^#include "(?!cml)(\w+\.h)"\n', re.MULTILINE)

    def header(name: str) -> str:
        text = (sources / name).read_text("utf-8")
        return own_include.sub(lambda match: header(match[1]), text)

    parts = ["/* The C player of cooked networks in one file. */\n", header("internal.h")]
    for path in sorted(sources.glob("*.c")):
        parts += ["\n", own_include.sub("", path.read_text("utf-8"))]
    return "".join(parts)


#: the name of wgpu-native inside its library for macOS
_INSTALL_NAME = "@rpath/libwgpu_native.dylib"


def compile_command() -> str:
    """Returns the shell command that compiles an exported C host in its folder."""
    folder = _wgpu_folder()
    library = next((p.name for p in sorted(folder.glob("*wgpu_native*"))), "libwgpu_native.so")
    command = (
        f'WGPU="{folder.as_posix()}"; cc -O2 -ffp-contract=off -I. -isystem "$WGPU" '
        f'main.c cml.c cml_webgpu.c "$WGPU/{library}" -Wl,-rpath,"$WGPU" -lm -o host'
    )
    # programs look for the name inside the library, which is not the file's
    if library.endswith(".dylib"):
        command += f" && install_name_tool -change {_INSTALL_NAME} @rpath/{library} host"
    if library.endswith(".dll"):
        command += f' && cp "$WGPU/{library}" wgpu_native.dll'
    return command


def _readme(graph: Graph) -> str:
    rows = [
        f"  {role:7} {name}: {graph.facts[name].dtype} {list(graph.facts[name].shape)}"
        for role, names in (("input", graph.inputs), ("output", graph.outputs))
        for name in names
    ]
    return _README.format(
        name=graph.name,
        compile=compile_command(),
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
