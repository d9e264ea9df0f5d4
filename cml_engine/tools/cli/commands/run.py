"""The commands that run and check a model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import BATCH, EXTENT, OVERLAP, PRICE, SEED, WORKERS
from cml_engine.io import arrays as array_files
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.output_folder import OutputFolder
from cml_engine.ir.graph import Array, Fact, Graph, Node
from cml_engine.tools.cli.common import (
    backend_of,
    compile_options,
    facts_of,
    gpu_of,
    is_cooked,
    load_for_inputs,
    load_open,
    named_files,
    read_inputs,
    session_of,
    write_decisions,
)
from cml_engine.tools.cli.options import command, flag, option, refuse, require, value_option
from cml_engine.tools.cli.terminal import narrator, print_error, progress

if TYPE_CHECKING:
    from cml_engine.distributed.report import Report
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.runtime.session import Session

GROUP = "Run and check"
T = TypeVar("T")


@command(
    GROUP,
    "cml run enlarge.onnx -i image=photo.png -o enlarged=out.png",
    "model",
    "plan",
    "arena",
    "decisions",
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
    if a.tile is not None:  # the model has the size of a tile, the files that of the picture
        for name, file in named_files(a.input, facts, "input").items():
            fact = facts[name]
            shape_pattern = (*fact.shape[:-2], None, None) if fact.rank > 2 else fact.shape
            shape = array_files.shape_of(file, name, shape_pattern)
            facts[name] = Fact(fact.dtype, shape or fact.shape)
    made_up: dict[str, Array] = {}
    if a.random_inputs is not None:
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


@command(
    GROUP,
    "cml validate enlarge.onnx --shape 1,3,64,64",
    "model",
    "plan",
    "decisions",
    "inputs",
    "dump",
    value_option(
        "inputs",
        "--seed",
        "N",
        "the seed of inputs without a file, which are random (default: 0)",
        SEED,
        0,
    ),
    flag(
        "GPU",
        "--integer",
        "of an integer network: no bit of any tensor may differ (cml docs integer)",
    ),
    flag(
        "GPU",
        "--passes",
        "instead compare the optimized graph with the graph as written, both in NumPy",
    ),
    flag(
        "GPU",
        "--hdr",
        "instead report how far bright pixels and a NaN in the inputs reach (cml docs faster)",
    ),
)
def validate(a: Namespace) -> int:
    """Check the GPU against NumPy, operator by operator."""
    if a.hdr:
        return _check_hdr(a)
    from cml_engine.runtime.session import make_plan
    from cml_engine.runtime.session.compile_graph import optimize_for

    if a.integer or a.passes:
        return _check_integers(a) if a.integer else _check_passes(a)
    from cml_engine.runtime.node_check import check_nodes
    from cml_engine.tools.report.validation import Validation

    written = load_for_inputs(a)
    options = replace(compile_options(a), without=frozenset())
    graph, gpu = optimize_for(written, options), gpu_of(a)
    arrays = _inputs(graph, a)
    if a.decisions:
        plan = make_plan(graph, gpu, options, written=written)
        write_decisions(a, written, graph, plan, gpu.name)
    checks = check_nodes(graph, gpu, arrays, options.storage, options.decide, written)
    report = Validation.of(gpu.name, _with_progress(checks, graph))
    print(report)
    fits = options.storage == "float" or _check_storage(graph, gpu, arrays)
    return 0 if report.ok and fits else 1


def _check_hdr(a: Namespace) -> int:
    from cml_engine.runtime.reach_check import check_reach

    reason = "--hdr compares runs with each other"
    refuse(a, reason, "integer", "passes", "decisions", "dump-kernels")
    graph = load_for_inputs(a)
    report = check_reach(graph, gpu_of(a), _inputs(graph, a), compile_options(a))
    print(report)
    return 0 if report.ok else 1


#: options of a plan, which comparisons without one refuse
_PLAN_OPTIONS = ("half", "no-winograd", "preset", "decide", "decisions", "dump-kernels")


def _check_passes(a: Namespace) -> int:
    from cml_engine.runtime.inspection import check_passes

    refuse(a, "--passes compares in NumPy", *_PLAN_OPTIONS)
    graph = load_for_inputs(a)
    report = check_passes(graph, _inputs(graph, a))
    print(report)
    return 0 if report.ok else 1


def _check_integers(a: Namespace) -> int:
    from cml_engine.compiler.integer.digest import float_network_error
    from cml_engine.runtime.node_check import check_bits, random_words

    reason = "--integer compares integers, with the kernels of a session"
    refuse(a, reason, "passes", *_PLAN_OPTIONS)
    graph = load_for_inputs(a)
    if not graph.integer:
        raise float_network_error(graph)
    report = check_bits(graph, gpu_of(a), _inputs(graph, a, random_words(graph, a.seed)))
    print(report)
    return 0 if report.ok else 1


def _inputs(
    graph: Graph, a: Namespace, made_up: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Returns the inputs by name: from ``-i`` files, else from ``made_up``, else random."""
    from cml_engine.runtime.session import random_inputs

    facts = facts_of(graph, graph.inputs)
    return read_inputs(a, facts, made_up or random_inputs(facts, a.seed))


def _check_storage(graph: Graph, gpu: Gpu, arrays: dict[str, Array]) -> bool:
    """Prints the errors of 16-bit storage; returns False if a value is too large for it."""
    from cml_engine.compiler.planning.layouts import layouts_for
    from cml_engine.runtime.node_check import measure_errors, storage_errors
    from cml_engine.tools.report.validation import StorageReport

    errors = _with_progress(storage_errors(graph, layouts_for(graph, "half"), arrays), graph)
    report = StorageReport.of(graph, errors, measure_errors(graph, gpu, arrays))
    print(report)
    return report.ok


def _with_progress(checks: Iterable[T], graph: Graph) -> Iterator[T]:
    """Yields the checks of the graph's operators while a terminal shows a progress bar."""
    with progress() as show:
        for number, check in enumerate(checks):
            show("operators", number, len(graph.nodes))
            yield check


@command(
    GROUP,
    "cml map enlarge.onnx --inputs 'tiles/*.npy' -o enlarged.zarr --shape 1,3,64,64",
    "model",
    "backend",
    "adapter",
    "half",
    "winograd",
    option(
        "inputs",
        "--inputs",
        required=True,
        metavar="PATTERN",
        help="files such as 'tiles/*.npy' (.npy, .npz, .png), or a Zarr array with an input in "
        "each chunk",
    ),
    value_option(
        "output", "--write", "STORE.zarr", "the Zarr store to write", short="-o", required=True
    ),
    value_option("output", "--report", "FILE.json", "write counts, times and the price"),
    value_option(
        "output", "--trace", "FILE.json", "write when each worker ran what, for ui.perfetto.dev"
    ),
    flag(
        "output",
        "--no-verify",
        "do not verify the checksums of results that the store has already",
    ),
    value_option("workers", "--scheduler", "ADDRESS", "a Dask cluster to use: tcp://HOST:8786"),
    value_option(
        "workers",
        "--workers",
        "N",
        "processes on this machine (default: one for each core, on a GPU one)",
        WORKERS,
    ),
    value_option(
        "workers", "--batch", "N", "inputs computed at once (default: the fastest number)", BATCH
    ),
    value_option(
        "workers", "--per-task", "N", "inputs in a task, and in a chunk of the store", BATCH
    ),
    value_option(
        "workers", "--price", "P", "the price of a worker for an hour, for the report", PRICE
    ),
)
def map_inputs(a: Namespace) -> int:
    """Run a model over many inputs, on all cores or a cluster."""
    from cml_engine.distributed.map import map_network
    from cml_engine.distributed.report import show_progress
    from cml_engine.distributed.sources import first_shape

    on_host = a.backend in ("cpu", "onnxruntime")
    if a.half and on_host:
        raise InputError(f"--half needs a GPU: leave --backend {a.backend} out")
    if a.report is not None:
        array_files.check_place(Path(a.report))
    graph = load_open(a, partial(first_shape, a.inputs))
    try:
        with narrator.stage("preparing the store and the workers"), show_progress("inputs") as show:

            def shown(report: Report) -> None:
                narrator.advance("")
                show(report)

            report = map_network(
                a.model if is_cooked(a.model) else graph,
                a.inputs,
                a.write,
                scheduler=a.scheduler,
                workers=a.workers,
                backend="cpu" if on_host else a.backend,
                options=compile_options(a),
                batch=a.batch,
                per_task=a.per_task,
                verify=not a.no_verify,
                ops=a.ops,
                trusted=a.trusted,
                price=a.price,
                progress=shown,
                dashboard=True,
                trace=a.trace,
            )
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print_error(str(interrupt))
        raise
    print(report)
    if a.report is not None:
        write_atomically(Path(a.report), json.dumps(report.to_json(), indent=2))
    report.check()
    return 0
