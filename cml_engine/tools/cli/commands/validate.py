"""``cml validate``: a model's results on the GPU beside NumPy's."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from cml_engine.errors.arguments import SEED
from cml_engine.ir.graph import Array, Graph
from cml_engine.tools.cli.commands.run import GROUP
from cml_engine.tools.cli.common import (
    compile_options,
    facts_of,
    gpu_of,
    load_for_inputs,
    read_inputs,
    write_decisions,
)
from cml_engine.tools.cli.options import command, flag, refuse, value_option
from cml_engine.tools.cli.terminal import progress

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.tools.report.validation import StorageReport

T = TypeVar("T")


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
    if options.storage == "float":
        return 0 if report.ok else 1
    in_floats = optimize_for(written, replace(options, arithmetic="float"))
    storage = _storage_report(in_floats, gpu, arrays)
    print(storage)
    fits = storage.ok and not (options.arithmetic == "half" and storage.overflown)
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
_PLAN_OPTIONS = (
    "half", "half-arithmetic", "no-winograd", "preset", "decide", "decisions", "dump-kernels"
)  # fmt: skip


def _check_passes(a: Namespace) -> int:
    from cml_engine.runtime.inspection import check_passes

    refuse(a, "--passes compares in NumPy", "adapter", *_PLAN_OPTIONS)
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


def _storage_report(graph: Graph, gpu: Gpu, arrays: dict[str, Array]) -> StorageReport:
    """Returns the errors of 16-bit storage and arithmetic."""
    from cml_engine.compiler.planning.layouts import layouts_for
    from cml_engine.runtime.node_check import measure_errors, storage_errors
    from cml_engine.tools.report.validation import StorageReport

    errors = _with_progress(storage_errors(graph, layouts_for(graph, "half"), arrays), graph)
    return StorageReport.of(graph, errors, measure_errors(graph, gpu, arrays))


def _with_progress(checks: Iterable[T], graph: Graph) -> Iterator[T]:
    """Yields the checks of the graph's operators while a terminal shows a progress bar."""
    with progress() as show:
        for number, check in enumerate(checks):
            show("operators", number, len(graph.nodes))
            yield check
