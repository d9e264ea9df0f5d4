"""Check the GPU against NumPy, operator by operator."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import SEED
from cml_engine.io import arrays as array_files
from cml_engine.ir.graph import Graph
from cml_engine.runtime.session import check_inputs, make_plan, random_inputs
from cml_engine.tools.cli.common import (
    compile_options,
    load_for_inputs,
    named_files,
    progress,
    read_decisions,
    storage_of,
    write_decisions,
)
from cml_engine.tools.cli.options import GPU, INPUTS, CommandParser, add_options

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.tools.report.storage_report import StorageReport

GROUP = "Run and check"
EXAMPLE = "cml validate enlarge.onnx --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "plan", "decisions", "inputs", "dump")
    parser.group(INPUTS).add_argument(
        "--seed",
        type=SEED,
        default=0,
        metavar="N",
        help="the seed of inputs without a file, which are random (default: 0)",
    )
    parser.group(GPU).add_argument(
        "--integer",
        action="store_true",
        help="of an integer network: no bit of any tensor may differ (cml docs integer)",
    )
    parser.group(GPU).add_argument(
        "--passes",
        action="store_true",
        help="instead compare the optimized graph with the graph as written, both in NumPy",
    )


def run(a: argparse.Namespace) -> int:
    if a.integer:
        return _check_bits(a)
    if a.passes:
        return _check_passes(a)
    from cml_engine.compiler.optimize import optimize
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.runtime.node_check import check_nodes
    from cml_engine.tools.report.validation import Validation

    written = load_for_inputs(a)
    graph = optimize(written)
    gpu = Gpu()
    gpu.dump_kernels = a.dump_kernels or gpu.dump_kernels
    arrays = _inputs(graph, a)
    if a.decisions:
        plan = make_plan(graph, gpu, compile_options(a), written=written)
        write_decisions(a, written, graph, plan, gpu.name)
    checks = check_nodes(graph, gpu, arrays, storage_of(a), read_decisions(a), written)
    report = Validation.of(graph.name, gpu.name, progress(checks, len(graph.nodes), "validate"))
    print(report)
    stored = _storage_report(graph, gpu, arrays) if a.half else None
    return 0 if report.ok and (stored is None or stored.ok) else 1


def _check_passes(a: argparse.Namespace) -> int:
    from cml_engine.runtime.inspection import check_passes

    if a.half or a.dump_kernels or a.decide or a.decisions:
        raise InputError(
            "--passes compares in NumPy: leave --half, --decide, --decisions and --dump-kernels out"
        )
    graph = load_for_inputs(a)
    report = check_passes(graph, _inputs(graph, a))
    print(report)
    return 0 if report.ok else 1


def _check_bits(a: argparse.Namespace) -> int:
    from cml_engine.compiler.integer.digest import float_network_error
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.runtime.node_check import check_bits, random_words

    if a.passes or a.half or a.dump_kernels or a.decide or a.decisions:
        raise InputError(
            "--integer compares integers, with the kernels of a session: leave --passes, "
            "--half, --decide, --decisions and --dump-kernels out"
        )
    graph = load_for_inputs(a)
    if not graph.integer:
        raise float_network_error(graph)
    report = check_bits(graph, Gpu(), _inputs(graph, a, random_words(graph, a.seed)))
    print(report)
    return 0 if report.ok else 1


def _inputs(
    graph: Graph, a: argparse.Namespace, made: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the checked inputs by name: from ``-i`` files, else from ``made``, else random."""
    facts = {name: graph.facts[name] for name in graph.inputs}
    files = named_files(a.input, facts, "input")
    arrays = random_inputs(facts, a.seed) if made is None else made
    arrays |= {name: array_files.read(path, name, facts[name]) for name, path in files.items()}
    return check_inputs(facts, arrays)


def _storage_report(graph: Graph, gpu: Gpu, arrays: dict[str, Any]) -> StorageReport:
    from cml_engine.compiler.planning.layouts import layouts_for
    from cml_engine.runtime.node_check import measure_errors, storage_errors
    from cml_engine.tools.report.storage_report import StorageReport

    errors = storage_errors(graph, layouts_for(graph, "half"), arrays)
    errors = progress(errors, len(graph.nodes), "storage")
    report = StorageReport.of(graph, errors, measure_errors(graph, gpu, arrays))
    print(report)
    return report
