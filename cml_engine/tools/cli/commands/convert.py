"""Convert an ONNX or ncnn model to NNEF."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.formats.loading import load_with_placeholders, save, save_checked
from cml_engine.tools.cli.common import load_model, named_shapes
from cml_engine.tools.cli.options import OUTPUT, CommandParser, add_options

GROUP = "Change it"
EXAMPLE = "cml convert enlarge.onnx enlarge.nnef --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "source", "overwrite")
    output = parser.group(OUTPUT)
    output.add_argument("destination", metavar="DST", help="the folder or .tgz to write")
    output.add_argument(
        "--layout",
        choices=("nhwc",),
        help="write inputs and outputs of four axes with the channels last, as textures have them",
    )
    output.add_argument(
        "--rgba",
        action="store_true",
        help="with --layout nhwc: give tensors of 3 channels a fourth",
    )
    output.add_argument(
        "--placeholders",
        action="store_true",
        help="declare unknown ONNX operators instead of refusing them; --ops supplies them later",
    )


def run(a: argparse.Namespace) -> int:
    if a.rgba and not a.layout:
        raise InputError("--rgba needs --layout nhwc: give that too")
    if Path(a.destination).suffix.lower() == ".onnx":
        raise InputError(f"'{a.destination}': convert writes NNEF; ONNX is written by cml export")
    if a.placeholders and (a.fragments or a.weights or a.constant):
        raise InputError(
            "--placeholders cannot be combined with --fragments, --weights or --constant: leave "
            "these out"
        )
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
