"""Write a model as ONNX, for other engines (docs/your_model.md), or as a page that runs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.loading import save
from cml_engine.tools.cli.common import load_model
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model", "half")
    parser.add_argument("destination", help="the .onnx file to write, or the page's folder")
    parser.add_argument(
        "--to",
        choices=("onnx", "web"),
        default="onnx",
        help="web: a folder with a page that runs the model in browsers (docs/ship_it.md)",
    )
    parser.add_argument(
        "--opset",
        type=ONNX_OPSET,
        default=20,
        metavar="N",
        help=f"of ONNX's operators, {ONNX_OPSET.low} to {ONNX_OPSET.high}; 20 if left out",
    )
    add_options(parser, "overwrite")


def run(a: argparse.Namespace) -> int:
    return _to_web(a) if a.to == "web" else _to_onnx(a)


def _to_onnx(a: argparse.Namespace) -> int:
    if Path(a.destination).suffix.lower() != ".onnx":
        raise InputError(f"'{a.destination}': wanted a name in .onnx (cml convert writes NNEF)")
    if a.half:
        raise InputError("--half is for --to web: ONNX files keep their numbers as they are")
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
