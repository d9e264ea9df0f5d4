"""Write a model as ONNX, for other engines (docs/onnx.md)."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.cli.common import (
    load_model,
)
from cml_engine.cli.options import add_options
from cml_engine.errors import InputError
from cml_engine.loading import save
from cml_engine.ranges import ONNX_OPSET


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model")
    parser.add_argument("destination", help="the .onnx file to write")
    parser.add_argument(
        "--opset",
        type=ONNX_OPSET,
        default=20,
        metavar="N",
        help=f"of ONNX's operators, {ONNX_OPSET.low} to {ONNX_OPSET.high}; 20 if left out",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def run(a: argparse.Namespace) -> int:
    if Path(a.destination).suffix.lower() != ".onnx":
        raise InputError(f"'{a.destination}': wanted a name in .onnx (cml convert writes NNEF)")
    graph = load_model(a)
    save(graph, a.destination, overwrite=a.overwrite, opset=a.opset)
    print(f"{a.destination}: {len(graph.nodes)} operations, opset {a.opset}")
    return 0
