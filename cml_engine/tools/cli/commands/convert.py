"""Turn a model of another format into an NNEF folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.formats.loading import load_with_placeholders, save, save_checked
from cml_engine.tools.cli.common import load_model, named_shapes
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    text = ".onnx, ncnn .param with its .bin beside it, or an NNEF model"
    parser.add_argument("model", metavar="source", help=text)
    parser.add_argument("destination", help="folder or .tgz to write")
    add_options(parser, "ops", "fragments", "shape", "weights", "constant", "limits", "overwrite")
    parser.add_argument(
        "--layout", choices=("nhwc",), help="inputs and outputs of four axes with channels last"
    )
    parser.add_argument(
        "--rgba", action="store_true", help="with --layout nhwc: 3 channels get a fourth"
    )
    parser.add_argument(
        "--placeholders",
        action="store_true",
        help="declare unknown ONNX operators, to be brought by --ops when the model runs",
    )


def run(a: argparse.Namespace) -> int:
    if a.rgba and not a.layout:
        raise InputError("--rgba wants --layout nhwc: textures have their channels last")
    if Path(a.destination).suffix.lower() == ".onnx":
        raise InputError(f"'{a.destination}': convert writes NNEF; ONNX is written by cml export")
    if a.placeholders and (a.fragments or a.weights or a.constant):
        raise InputError("--fragments, --weights and --constant: leave them out for placeholders")
    if a.placeholders:
        graph = load_with_placeholders(a.model, named_shapes(a.shape))
    else:
        graph = load_model(a)
    if a.layout:
        from cml_engine.formats.texture_layout import channels_last

        graph = channels_last(graph, rgba=a.rgba)
    if a.placeholders:  # such a model cannot be read back without the operators
        save(graph, a.destination, overwrite=a.overwrite)
        written = graph
    else:
        written = save_checked(graph, a.destination, overwrite=a.overwrite)
    print(f"{a.destination}: {len(graph.nodes)} operations, {len(graph.labels)} weight files")
    names, texts = ((*g.inputs, *g.outputs) for g in (graph, written))
    for name, text in zip(names, texts, strict=True):
        if name != text:
            print(f"  '{name}' is '{text}' there: NNEF's names have letters, digits and _")
    return 0
