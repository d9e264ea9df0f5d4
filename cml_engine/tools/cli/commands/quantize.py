"""Turn a model into an integer network, bit-identical on every machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cml_engine.compiler.integer.quantizer.quantize import quantize
from cml_engine.formats.loading import save_checked
from cml_engine.io.arrays import read_samples, sample_shape
from cml_engine.tools.cli.common import load_for_inputs, named_files
from cml_engine.tools.cli.options import OUTPUT, CommandParser, add_options

GROUP = "Change it"
EXAMPLE = "cml quantize enlarge.onnx enlarge8.nnef -i image=samples.npz --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "inputs", "overwrite", "json")
    output = parser.group(OUTPUT)
    output.add_argument("output", metavar="OUT", help="the folder or .tgz to write")
    output.add_argument(
        "--bits", type=int, choices=(8, 16), default=8, help="bits of the integers (default: 8)"
    )
    output.add_argument(
        "--sixteen",
        action="append",
        metavar="NODE",
        help="a tensor that gets 16 bits, and no others; repeatable. Default: as many as "
        "--max-error needs",
    )
    output.add_argument(
        "--max-error",
        type=float,
        metavar="E",
        help="the largest error of the outputs, as a share of their size (0.01); exit code 1 if it "
        "is exceeded",
    )
    output.add_argument(
        "--float-tail",
        action="store_true",
        help="compute operators without an integer form, and all that read them, in floats: such "
        "outputs differ between machines",
    )


def run(a: argparse.Namespace) -> int:
    graph = load_for_inputs(a, sample_shape)
    facts = {name: graph.facts[name] for name in graph.inputs}
    files = named_files(a.input, facts, "input")
    samples = read_samples({name: file.path for name, file in files.items()}, facts)
    sixteen: Any = "auto" if a.sixteen is None else a.sixteen
    made, report = quantize(graph, samples, a.bits, sixteen, a.max_error, float_tail=a.float_tail)
    save_checked(made, a.output, overwrite=a.overwrite)
    print(json.dumps(report.data, indent=2) if a.json else report)
    return 0 if report.ok or a.max_error is None else 1
