"""``cml run``: a model once, on tensors and pictures from files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import EXTENT, OVERLAP, SEED
from cml_engine.io import arrays as array_files
from cml_engine.io.named_file import NamedFile, file_key, named_file
from cml_engine.io.output_folder import OutputFolder
from cml_engine.ir.graph import Array, Fact, Graph, Node
from cml_engine.tools.cli.common import (
    backend_of,
    compile_options,
    facts_of,
    load_for_inputs,
    named_files,
    read_inputs,
    session_of,
)
from cml_engine.tools.cli.options import command, flag, option, refuse, require, value_option
from cml_engine.tools.cli.terminal import narrator, print_error, progress

if TYPE_CHECKING:
    from cml_engine.runtime.session import Session

#: this command, ``validate`` and ``map``
GROUP = "Run and check"


@command(
    GROUP,
    "cml run enlarge.onnx -i image=photo.png -o enlarged=out.png",
    "planned",
    "inputs",
    "backend",
    "dump",
    "overwrite",
    option(
        "inputs",
        "--random-inputs",
        type=SEED,
        nargs="?",
        const=0,
        metavar="SEED",
        help="make up inputs without a file, uniform in 0 to 1",
    ),
    value_option(
        "inputs",
        "--tile",
        "PIXELS",
        "run on pictures of any size, in square tiles of this size (cml docs your_model)",
        EXTENT,
    ),
    value_option(
        "inputs",
        "--overlap",
        "PIXELS",
        "of --tile: pixels at each end of a tile that are computed and discarded (16)",
        OVERLAP,
    ),
    value_option(
        "inputs",
        "--align",
        "PIXELS",
        "of --tile: tiles begin at multiples of it, for networks with strides (1)",
        EXTENT,
    ),
    value_option(
        "output",
        "--write",
        "NAME=FILE",
        "write an output to a .npy, .npz, .png, .tif or .exr file",
        short="-o",
        repeatable=True,
    ),
    flag(
        "output",
        "--digest",
        "print a sha256 of the outputs, the model and the rule last (cml docs integer)",
    ),
    flag(
        "output",
        "--stop-at-nan",
        "stop at the first operator whose result is not finite, and show what it read",
    ),
    value_option(
        "output",
        "--dump-tensors",
        "DIR",
        "write every tensor of the model as written, and an index (cml docs see_inside)",
        Path,
    ),
    value_option(
        "output",
        "--only",
        "GLOB",
        "of --dump-tensors: only tensors whose names match",
        repeatable=True,
    ),
    flag(
        "output",
        "--dump-values",
        "of --dump-kernels: write what each step reads and writes, as .npy files in DIR/values",
    ),
    flag(
        "output",
        "--debug-kernels",
        'print what kernels say with CML_PRINT("label", value) (cml docs custom_operators)',
    ),
)
def run(a: Namespace) -> int:
    """Run a model on tensors and pictures from files."""
    from cml_engine.runtime.session import random_inputs

    _check_run_options(a)
    graph = load_for_inputs(a)
    if a.debug_kernels and graph.cooked_form is not None:
        raise InputError(
            f"--debug-kernels: the kernels of '{a.model}' were cooked without CML_PRINT. Run "
            "the model that it was made of"
        )
    facts = facts_of(graph, graph.inputs)
    outputs = named_files(a.write, facts_of(graph, graph.outputs), "output")
    array_files.check_outputs(outputs, graph.facts)
    _check_inputs_stay(a, outputs)
    if a.tile is not None:  # the model has the size of a tile, the files that of the picture
        for name, file in named_files(a.input, facts, "input").items():
            fact = facts[name]
            shape_pattern = (*fact.shape[:-2], None, None) if fact.rank > 2 else fact.shape
            shape = array_files.shape_of(file, name, shape_pattern)
            facts[name] = Fact(fact.dtype, shape or fact.shape)
    made_up: dict[str, Array] = {}
    if a.random_inputs is not None:
        if facts.keys() <= {pair.partition("=")[0] for pair in a.input}:
            raise InputError("every input has a file: leave --random-inputs out")
        print_error(f"the inputs without a file are random, of seed {a.random_inputs}")
        made_up = random_inputs(facts, a.random_inputs)
    arrays = read_inputs(a, facts, {**graph.defaults, **made_up})
    if a.dump_tensors is not None or a.stop_at_nan:
        session, results = _run_watched(graph, arrays, a)
    else:
        session = session_of(a, graph, backend_of(a))
        if a.dump_values:
            results = _run_dumped(session, arrays, a)
        else:
            with narrator.stage("running the network"):
                results = session.run(arrays) if a.tile is None else _run_tiled(session, arrays, a)
    if results is None:
        return 1
    array_files.write_outputs(outputs, results)
    for name, value in results.items():
        suffix = f" -> {outputs[name]}" if name in outputs else _summary(value)
        print(f"{name}: {Fact(session.outputs[name].dtype, value.shape)}{suffix}")
    for name, value in results.items():
        count = value.size - np.count_nonzero(np.isfinite(value))
        if count and not a.stop_at_nan:
            print_error(
                f"'{name}' has {count} of {value.size} values that are NaN or infinite; "
                "--stop-at-nan shows the operator that makes them"
            )
    _print_integer_facts(graph, arrays, results, a.digest)
    return 0


def _check_inputs_stay(a: Namespace, outputs: Mapping[str, NamedFile]) -> None:
    """Raises ``InputError`` if an output would replace the file of an input."""
    keys = {file_key(named_file(pair.partition("=")[2]).path) for pair in a.input}
    for name, file in outputs.items():
        if file_key(file.path) in keys:
            raise InputError(f"output '{name}': '{file}' is the file of an input: name another one")


def _check_run_options(a: Namespace) -> None:
    """Raises ``InputError`` for options of ``cml run`` that exclude or require each other."""
    reason = (
        "random weights are for what a network costs (info, rank, frames, tune, validate); their "
        "results mean nothing"
    )
    refuse(a, reason, "random-weights")
    if a.dump_tensors is None:
        require(a, "--dump-tensors DIR", "only", "overwrite")
    if a.dump_kernels is None:
        require(a, "--dump-kernels DIR", "dump-values")
    if a.dump_values:
        reason = "--dump-values writes the steps of the optimized network, once"
        refuse(a, reason, "dump-tensors", "stop-at-nan", "tile", "debug-kernels")
    if a.tile is None:
        require(a, "--tile PIXELS", "overlap", "align")
    else:
        refuse(a, "a run in tiles has no whole tensors", "dump-tensors", "stop-at-nan")
    if not a.input and not a.write and a.random_inputs is None:
        raise InputError(
            "nothing to run on: give the inputs, -i NAME=FILE (.npy, .npz, .png, .tif or .exr), or "
            "let them be made up with --random-inputs"
        )


def _run_tiled(session: Session, arrays: dict[str, Array], a: Namespace) -> dict[str, Array]:
    """Runs the model in tiles with a progress bar and returns the outputs by name."""
    from cml_engine.runtime.tiling import Tiles, run_tiled

    overlap, align = 16 if a.overlap is None else a.overlap, a.align or 1
    count = len(Tiles(session, arrays, a.tile, overlap, align))
    with progress() as show:
        return run_tiled(
            session,
            arrays,
            a.tile,
            overlap,
            align=align,
            progress=lambda n: show("tiles", n, count),
        )


def _run_dumped(session: Session, arrays: dict[str, Array], a: Namespace) -> dict[str, Array]:
    """Runs the model step by step, writes the tensors of each step and returns the outputs."""
    from cml_engine.gpu.program.inspect import run_dumped
    from cml_engine.runtime.session.compile_graph import as_gpu_program

    folder = OutputFolder(Path(a.dump_kernels) / "values", "values.json", overwrite=True)
    results = run_dumped(as_gpu_program(session.program), arrays, folder)
    folder.write_manifest({})
    return results


def _run_watched(
    graph: Graph, arrays: dict[str, Array], a: Namespace
) -> tuple[Session, dict[str, Array] | None]:
    """Runs the model as written, without optimizations, and writes or checks each tensor.

    Returns the session and the outputs by name, or None if ``--stop-at-nan`` found a value that is
    not finite.
    """
    from cml_engine.compiler.optimize import AS_WRITTEN
    from cml_engine.runtime.inspection import Dump, NotFinite, StopAtNan

    dump = None
    if a.dump_tensors is not None:
        dump = Dump(a.dump_tensors, graph, a.only, overwrite=a.overwrite)
    options = replace(compile_options(a), without=AS_WRITTEN)
    session = session_of(a, graph, backend_of(a), options)
    stop = StopAtNan() if a.stop_at_nan else None

    def watch(node: Node, values: Sequence[Array]) -> None:
        for watcher in (dump, stop):
            if watcher is not None:
                watcher(node, values)

    results = None
    try:
        if dump is not None:
            dump.fixed(session.graph.constants)
        results = session.run(arrays, watch=watch, before=stop.before if stop else None)
    except NotFinite as error:
        print_error(str(error))
    finally:
        if dump is not None:
            print(f"{len(dump)} tensors -> {dump.close()}")
    return session, results


def _summary(value: Array) -> str:
    if not value.size:
        return "  (empty)"
    with np.errstate(invalid="ignore"):  # a mean of infinities of both signs
        return f"  min {value.min():.6g}  mean {value.mean():.6g}  max {value.max():.6g}"


def _print_integer_facts(
    graph: Graph, arrays: Mapping[str, Array], results: Mapping[str, Array], digest: bool
) -> None:
    """Prints how many input values of an integer network are out of range, and the digest.

    The digest is printed only on request. Values out of range are replaced by the nearest value in
    range.
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

        if not graph.integer and graph.cooked_form is None:
            print(
                f"'{graph.name}' is a network of floats: another machine may compute another digest"
            )
        for name in nonidentical_outputs(graph):
            print(f"{name}: computed in floats, not identical on all machines: not in the digest")
        print(run_digest(graph, results))
