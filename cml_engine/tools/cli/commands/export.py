"""Write a model as ONNX, as a web page that runs it, or as a C program that runs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.loading import save
from cml_engine.tools.cli.common import load_model
from cml_engine.tools.cli.options import OUTPUT, CommandParser, add_options

GROUP = "Ship it"
EXAMPLE = "cml export enlarge.onnx page --to web --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "half", "overwrite")
    output = parser.group(OUTPUT)
    output.add_argument("destination", metavar="DST", help="the .onnx file or the folder to write")
    output.add_argument(
        "--to",
        choices=("onnx", "web", "c"),
        default="onnx",
        help="web: a folder with a page that runs the model in browsers; c: a folder with a C "
        "host, the player and the cooked model (cml docs ship_it)",
    )
    output.add_argument(
        "--opset",
        type=ONNX_OPSET,
        default=20,
        metavar="N",
        help=f"the version of ONNX's operators, {ONNX_OPSET.low} to {ONNX_OPSET.high} "
        "(default: %(default)s)",
    )


def run(a: argparse.Namespace) -> int:
    return {"onnx": _to_onnx, "web": _to_web, "c": _to_c}[a.to](a)


def _to_onnx(a: argparse.Namespace) -> int:
    if Path(a.destination).suffix.lower() != ".onnx":
        raise InputError(
            f"'{a.destination}': wanted a file name ending in .onnx; cml convert writes NNEF"
        )
    if a.half:
        raise InputError(
            "--half is for --to web and --to c: ONNX files keep their numbers as they are"
        )
    graph = load_model(a)
    save(graph, a.destination, overwrite=a.overwrite, opset=a.opset)
    print(f"{a.destination}: {len(graph.nodes)} operations, opset {a.opset}")
    return 0


def _to_web(a: argparse.Namespace) -> int:
    from cml_engine.cooked.web import export_web, picture_of
    from scheduler.tools.commands import cooked_guesses

    graph, folder = load_model(a), Path(a.destination)
    guesses = cooked_guesses()
    names = export_web(graph, folder, half=a.half, guesses=guesses, overwrite=a.overwrite)
    size = sum((folder / name).stat().st_size for name in names) / 2**20
    kind = "pictures can be dragged in" if picture_of(graph) else "runs the cooked file's own input"
    print(f"{folder}: {len(names)} files, {size:.1f} MiB; {kind}")
    serve = f"python -m http.server --bind 127.0.0.1 --directory {folder}"
    print(f"  {serve}, then http://localhost:8000")
    return 0


def _to_c(a: argparse.Namespace) -> int:
    from cml_engine.cooked.export_c import export_c
    from scheduler.tools.commands import cooked_guesses

    folder = Path(a.destination)
    made = export_c(
        load_model(a), folder, half=a.half, guesses=cooked_guesses(), overwrite=a.overwrite
    )
    print(f"{folder}: {len(made.files)} files; README.txt says more. In that folder:")
    print(f"  {made.compile}\n  ./host net.cml")
    return 0
