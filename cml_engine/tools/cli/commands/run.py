"""Run a model on tensors and pictures from files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.compiler.optimize import AS_WRITTEN
from cml_engine.errors import InputError
from cml_engine.errors.arguments import EXTENT, OVERLAP, SEED
from cml_engine.io import arrays as array_files
from cml_engine.io.named_file import NamedFile
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.runtime.session import Session, check_inputs, random_inputs
from cml_engine.runtime.tiling import Tiles, run_tiled
from cml_engine.tools.cli.common import (
    backend_of,
    bar,
    compile_options,
    load_for_inputs,
    named_files,
    session_of,
)
from cml_engine.tools.cli.exit_codes import escaped
from cml_engine.tools.cli.options import INPUTS, OUTPUT, CommandParser, add_options

GROUP = "Run and check"
EXAMPLE = "cml run enlarge.onnx -i image=photo.png -o enlarged=out.png"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "arena", "decisions", "inputs", "backend", "dump")
    add_options(parser, "overwrite")
    inputs, output = parser.group(INPUTS), parser.group(OUTPUT)
    inputs.add_argument(
        "--random-inputs",
        type=SEED,
        nargs="?",
        const=0,
        metavar="SEED",
        help="make up inputs without a file, uniform in 0 to 1",
    )
    inputs.add_argument(
        "--tile",
        type=EXTENT,
        metavar="PIXELS",
        help="run on pictures of any size, in square tiles of this size (cml docs your_model)",
    )
    inputs.add_argument(
        "--overlap",
        type=OVERLAP,
        metavar="PIXELS",
        help="of --tile: pixels at each end of a tile that are computed and discarded (16)",
    )
    inputs.add_argument(
        "--align",
        type=EXTENT,
        metavar="PIXELS",
        help="of --tile: tiles begin at multiples of it, for networks with strides (1)",
    )
    output.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="write an output to a .npy, .npz, .png, .tif or .exr file; repeatable",
    )
    output.add_argument(
        "--digest",
        action="store_true",
        help="print a sha256 of the outputs, the model and the rule last (cml docs integer)",
    )
    output.add_argument(
        "--stop-at-nan",
        action="store_true",
        help="stop at the first operator whose result is not finite, and show what it read",
    )
    output.add_argument(
        "--dump-tensors",
        type=Path,
        metavar="DIR",
        help="write every tensor of the model as written, and an index (cml docs see_inside)",
    )
    output.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="of --dump-tensors: only tensors whose names match; repeatable",
    )
    output.add_argument(
        "--debug-kernels",
        action="store_true",
        help='print what kernels say with CML_PRINT("label", value) (cml docs custom_operators)',
    )


def _check_options(a: argparse.Namespace) -> None:
    """Raises ``InputError`` for options of ``cml run`` that exclude or require each other."""
    if a.random_weights is not None:
        raise InputError(
            "--random-weights is for what a network costs (info, rank, frames, tune, validate): "
            "results of random weights mean nothing, so 'cml run' wants the model's own"
        )
    if a.only and a.dump_tensors is None:
        raise InputError("--only says which tensors --dump-tensors DIR writes: give that too")
    if a.overwrite and a.dump_tensors is None:
        raise InputError("--overwrite is for the folder of --dump-tensors DIR: give that too")
    if a.tile is None and (a.overlap is not None or a.align is not None):
        raise InputError("--overlap and --align belong to --tile PIXELS: give that too")
    if a.tile is not None and (a.dump_tensors is not None or a.stop_at_nan):
        raise InputError("--dump-tensors and --stop-at-nan need a whole run: leave --tile out")
    if not a.input and not a.output and a.random_inputs is None:
        raise InputError(
            "nothing to run on: give the inputs, -i NAME=FILE (.npy, .npz, .png, .tif or .exr), or "
            "let them be made up with --random-inputs"
        )


def run(a: argparse.Namespace) -> int:
    _check_options(a)
    graph = load_for_inputs(a)
    if a.debug_kernels and graph.ready is not None:
        raise InputError(
            f"--debug-kernels: the kernels of '{a.model}' were cooked without CML_PRINT. Run "
            "the model that it was made of"
        )
    facts = {name: graph.facts[name] for name in graph.inputs}
    outputs = named_files(a.output, {n: graph.facts[n] for n in graph.outputs}, "output")
    array_files.check_outputs(outputs, graph.facts)
    files = named_files(a.input, facts, "input")
    if a.tile is not None:
        facts |= {name: _whole(facts[name], file, name) for name, file in files.items()}
    arrays = {name: array_files.read(path, name, facts[name]) for name, path in files.items()}
    if a.random_inputs is not None:
        arrays = _made_up(facts, a.random_inputs) | arrays
    arrays = check_inputs(facts, arrays)
    if a.tile is not None:
        session = session_of(a, graph, backend_of(a))
        results: dict[str, Any] | None = _run_tiled(session, arrays, a)
    elif a.dump_tensors is not None or a.stop_at_nan:
        results, session = _run_watched(graph, arrays, a)
    else:
        session = session_of(a, graph, backend_of(a))
        results = session.run(arrays)
    if results is None:
        return 1
    array_files.write_outputs(outputs, results)
    for name, value in results.items():
        place = f" -> {outputs[name]}" if name in outputs else _summary(value)
        fact = Fact(session.outputs[name].dtype, value.shape)
        print(f"{name}: {fact}{place}")
    _tell_of_nan(results, a.stop_at_nan)
    _print_word_range(graph, arrays, results, a.digest)
    return 0


def _made_up(facts: Mapping[str, Fact], seed: int) -> dict[str, Any]:
    """Returns random values for the inputs ``facts``, and prints that they are random."""
    print(f"cml: the inputs without a file are random, of seed {seed}", file=sys.stderr)
    return random_inputs(facts, seed)


def _whole(fact: Fact, file: NamedFile, name: str) -> Fact:
    """Returns an input's fact with the height and width of the picture in ``file``.

    A tiled run needs it, because the model's own size is that of a tile.
    """
    known = (*fact.shape[:-2], None, None) if fact.rank > 2 else fact.shape
    return Fact(fact.dtype, array_files.shape_of(file, name, known) or fact.shape)


def _run_tiled(session: Session, arrays: dict[str, Any], a: argparse.Namespace) -> dict[str, Any]:
    """Runs the model in tiles with a progress bar and returns the outputs by name."""
    overlap = 16 if a.overlap is None else a.overlap
    tiles = Tiles(session, arrays, a.tile, overlap, a.align or 1)
    with bar("tiles", len(tiles)) as done:
        return run_tiled(session, arrays, a.tile, overlap, align=a.align or 1, progress=done)


def _print_word_range(
    graph: Graph, arrays: Mapping[str, Any], results: Mapping[str, Any], digest: bool
) -> None:
    """Prints how many input values of an integer network are out of range, and the digest.

    The digest is printed only on request.

    Values out of range are replaced by the nearest value in range.
    """
    if graph.integer:
        from cml_engine.runtime.node_check import saturated

        for name, count in saturated(graph, arrays).items():
            print(
                f"input '{name}': {count} of {arrays[name].size} values were outside of its range "
                "and are limited to it"
            )
    if digest:
        from cml_engine.compiler.integer.digest import nonidentical_outputs, run_digest

        if not graph.integer and graph.ready is None:
            print(
                f"'{graph.name}' is a network of floats: another machine may compute another digest"
            )
        for name in nonidentical_outputs(graph):
            print(f"{name}: computed in floats, not identical on all machines: not in the digest")
        print(run_digest(graph, results))


def _run_watched(
    graph: Graph, arrays: dict[str, Any], a: argparse.Namespace
) -> tuple[dict[str, Any] | None, Session]:
    """Runs the model as written, without optimizations, and writes or checks each tensor.

    Returns the outputs by name, or None if ``--stop-at-nan`` found a value that is not finite,
    and the session.
    """
    from cml_engine.runtime.inspection import Dump, NotFinite, StopAtNan

    dump = None
    if a.dump_tensors is not None:
        dump = Dump(a.dump_tensors, graph, a.only, overwrite=a.overwrite)
    options = replace(compile_options(a), without=AS_WRITTEN)
    session = session_of(a, graph, backend_of(a), options)
    stop = StopAtNan(session.graph, arrays) if a.stop_at_nan else None

    def watch(node: Node, found: Sequence[Any]) -> None:
        if dump is not None:
            dump(node, found)
        if stop is not None:
            stop(node, found)

    results = None
    try:
        if dump is not None:
            dump.fixed(session.graph.constants)
        results = session.run(arrays, watch=watch)
    except NotFinite as error:
        print(escaped(str(error)), file=sys.stderr)
    finally:
        if dump is not None:
            print(f"{len(dump)} tensors -> {dump.close()}")
    return results, session


def _summary(value: Any) -> str:
    if not value.size:
        return "  (empty)"
    with np.errstate(invalid="ignore"):  # a mean of infinities of both signs
        return f"  min {value.min():.6g}  mean {value.mean():.6g}  max {value.max():.6g}"


def _tell_of_nan(results: Mapping[str, Any], is_traced: bool) -> None:
    """Prints for each output the number of its NaN or infinite values, if there are any.

    The message names the option ``--stop-at-nan``; if that was given, nothing is printed.
    """
    for name, value in results.items():
        count = value.size - np.count_nonzero(np.isfinite(value))
        if count and not is_traced:
            print(
                f"cml: '{name}' has {count} of {value.size} values that are NaN or infinite; "
                "--stop-at-nan shows the operator that makes them",
                file=sys.stderr,
            )
