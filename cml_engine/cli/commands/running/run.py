"""Run a model on tensors from .npy, .npz or .png files."""

from __future__ import annotations

import argparse
from typing import Any

from cml_engine.cli.common import (
    backend_of,
    compile_options,
    load_model,
    named_files,
)
from cml_engine.cli.options import add_options
from cml_engine.errors import InputError
from cml_engine.files import arrays as array_files
from cml_engine.session import Session, check_inputs


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "model", "random", "inputs", "backend", "half", "dump")
    parser.add_argument("-o", "--output", action="append", default=[], metavar="NAME=FILE")


def run(a: argparse.Namespace) -> int:
    if a.random_weights is not None:
        raise InputError(
            "--random-weights is for what a network costs (info, rank, frames, tune, validate): "
            "results of random weights mean nothing, so 'cml run' wants the model's own"
        )
    if not a.input and not a.output:
        raise InputError("nothing to run on: give the inputs, -i NAME=FILE (.npy, .npz or .png)")
    graph = load_model(a)
    facts = {name: graph.facts[name] for name in graph.inputs}
    outputs = named_files(a.output, {n: graph.facts[n] for n in graph.outputs}, "output")
    array_files.check_outputs(outputs, graph.facts)
    files = named_files(a.input, facts, "input")
    arrays = {name: array_files.read(path, name, facts[name]) for name, path in files.items()}
    arrays = check_inputs(facts, arrays)
    session = Session(graph, backend_of(a), compile_options(a))
    results = session.run(arrays)
    array_files.write_outputs(outputs, results)
    for name, value in results.items():
        place = f" -> {outputs[name]}" if name in outputs else _summary(value)
        print(f"{name}: {session.outputs[name]}{place}")
    return 0


def _summary(value: Any) -> str:
    if not value.size:
        return "  (empty)"
    return f"  min {value.min():.6g}  mean {value.mean():.6g}  max {value.max():.6g}"
