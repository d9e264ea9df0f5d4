"""The commands that change a model, or the kernels that it runs with."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ERROR_SHARE, TIMES
from cml_engine.io.arrays import read_samples, sample_shape
from cml_engine.ir.block_weights import CODE_BITS
from cml_engine.ir.graph import Graph
from cml_engine.tools.cli.common import (
    facts_of,
    load_for_inputs,
    load_model,
    named_files,
    named_shapes,
    session_of,
)
from cml_engine.tools.cli.options import command, flag, option, refuse, require, value_option
from cml_engine.tools.cli.terminal import progress

if TYPE_CHECKING:
    from cml_engine.compiler.integer.quantizer.quantize import QuantizeReport
    from cml_engine.compiler.integer.quantizer.weights import WeightsReport

GROUP = "Change it"


@command(
    GROUP,
    "cml convert enlarge.onnx enlarge.nnef --shape 1,3,64,64",
    "source",
    "overwrite",
    option("output", "destination", metavar="DST", help="the folder or .tgz to write"),
    option(
        "output",
        "--layout",
        choices=("nhwc",),
        help="write inputs and outputs of four axes with the channels last, as textures have them",
    ),
    flag("output", "--rgba", "with --layout nhwc: give tensors of 3 channels a fourth"),
    flag(
        "output",
        "--placeholders",
        "declare unknown ONNX operators instead of refusing them; --ops supplies them later",
    ),
)
def convert(a: Namespace) -> None:
    """Convert an ONNX or ncnn model to NNEF."""
    from cml_engine.formats.loading import load_with_placeholders, save, save_checked

    if not a.layout:
        require(a, "--layout nhwc", "rgba")
    if Path(a.destination).suffix.lower() == ".onnx":
        raise InputError(f"'{a.destination}': convert writes NNEF; ONNX is written by cml export")
    if a.placeholders:
        reason = "--placeholders keeps the model as its file has it"
        refuse(a, reason, "fragments", "weights", "constant", "output")
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


@command(
    GROUP,
    "cml quantize enlarge.onnx enlarge8.nnef -i image=samples.npz --shape 1,3,64,64",
    "model",
    "inputs",
    "overwrite",
    "json",
    option("output", "destination", metavar="OUT", help="the folder or .tgz to write"),
    option(
        "output",
        "--bits",
        type=int,
        choices=(8, 16),
        help="bits of the integers (default: 8)",
    ),
    value_option(
        "output",
        "--sixteen",
        "NODE",
        "a tensor that gets 16 bits, and no others (default: as many as --max-error needs)",
        repeatable=True,
    ),
    value_option(
        "output",
        "--max-error",
        "E",
        "the largest error of the outputs, as a share of their size (0.01); exit code 1 if it "
        "is exceeded",
        ERROR_SHARE,
    ),
    option(
        "output",
        "--weight-bits",
        type=int,
        choices=CODE_BITS,
        help="store only the weights as integers of 8 or 4 bits, and compute in floats as before; "
        "--weights 8 and --weights 4 are the same",
    ),
    flag(
        "output",
        "--float-tail",
        "compute operators without an integer form, and all that read them, in floats: such "
        "outputs differ between machines",
    ),
)
def quantize(a: Namespace) -> int:
    """Turn a model into an integer network, or store its weights in fewer bits."""
    from cml_engine.compiler.integer.quantizer.quantize import quantize as quantize_graph
    from cml_engine.compiler.integer.quantizer.weights import quantize_weights
    from cml_engine.formats.loading import save_checked
    from cml_engine.runtime.session import random_inputs

    if a.weights in map(str, CODE_BITS):
        refuse(a, f"--weights {a.weights} says the bits", "weight-bits")
        a.weight_bits, a.weights = int(a.weights), None
    if a.weight_bits:
        refuse(
            a, "--weight-bits leaves all but the weights in floats", "bits", "sixteen", "float-tail"
        )
    graph = load_for_inputs(a, sample_shape)
    facts = facts_of(graph, graph.inputs)
    files = named_files(a.input, facts, "input")
    if a.weight_bits and not files:
        samples = [random_inputs(facts)]
    else:
        samples = read_samples({name: file.path for name, file in files.items()}, facts)
    quantized: Graph
    report: QuantizeReport | WeightsReport
    if a.weight_bits:
        quantized, report = quantize_weights(graph, samples, a.weight_bits)
    else:
        quantized, report = quantize_graph(
            graph, samples, a.bits or 8, a.sixteen or "auto", a.max_error, float_tail=a.float_tail
        )
    save_checked(quantized, a.destination, overwrite=a.overwrite)
    print(json.dumps(report.data, indent=2) if a.json else report)
    return 1 if a.max_error is not None and report.error > a.max_error else 0


@command(
    GROUP,
    "cml tune enlarge.onnx --rounds 5 --dry-run --shape 1,3,64,64",
    "model",
    "plan",
    "decisions",
    "json",
    value_option("GPU", "--rounds", "N", "measurements of each kernel (default: 30)", TIMES, 30),
    flag("output", "--dry-run", "measure without writing the table"),
)
def tune(a: Namespace) -> None:
    """Measure the fastest kernels on this GPU, for all later sessions."""
    from cml_engine import tuning

    session = session_of(a, load_model(a), "gpu")
    count = len(tuning.Bench(session).candidates)
    with progress() as show:
        report = tuning.tune(
            session, rounds=a.rounds, dry_run=a.dry_run, progress=lambda n: show("tune", n, count)
        )
    print(report.json() if a.json else report)
