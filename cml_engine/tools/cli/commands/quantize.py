"""Turn a model into an integer network, bit-identical on every machine (docs/integer.md)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cml_engine.compiler.integer.quantizer.quantize import quantize
from cml_engine.formats.loading import save_checked
from cml_engine.io.arrays import read_samples, sample_shape
from cml_engine.tools.cli.common import load_for_inputs, named_files
from cml_engine.tools.cli.options import add_options


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model", "inputs", "json")
    parser.add_argument("output", help="folder or .tgz to write")
    parser.add_argument("--bits", type=int, choices=(8, 16), default=8, help="of the words")
    parser.add_argument(
        "--sixteen",
        action="append",
        metavar="NODE",
        help="a tensor whose words have 16 bits, and no others; may be given again. "
        "Left out: as many as --max-error wants",
    )
    parser.add_argument(
        "--max-error",
        type=float,
        metavar="E",
        help="of the outputs, as a share of their size (0.01); exit code 1 where it is more",
    )
    parser.add_argument(
        "--float-tail",
        action="store_true",
        help="operators without an integer form are computed in floats, and what reads them: such "
        "outputs are not identical on all machines",
    )
    add_options(parser, "overwrite")


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
