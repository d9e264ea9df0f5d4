"""The ``cml`` command. Exit code 2 for bad input, 1 for a failed check, 0 otherwise."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cml_engine import __version__
from cml_engine.cli.common import (
    compile_options,
    load_model,
    named_files,
    progress,
    storage_of,
)
from cml_engine.cli.convert import any_model, convert, convert_options
from cml_engine.cli.exit_codes import exit_code
from cml_engine.cli.options import Parser, add_options
from cml_engine.errors import InputError
from cml_engine.files import arrays as array_files
from cml_engine.loading import save
from cml_engine.plugins import load_entry_points, load_file
from cml_engine.ranges import BUDGET_MS, ONNX_OPSET, SEED, SPEED, TIMES
from cml_engine.session import Session, check_inputs, random_inputs

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.graph import Graph
    from cml_engine.report.rank import RankReport
    from cml_engine.report.storage import StorageReport
    from cml_engine.report.stub import StubReport

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code and never raises for bad input."""
    warnings.showwarning = _notice
    return exit_code(lambda: _started(argv))


def _started(argv: Sequence[str] | None) -> int:
    a = _parser().parse_args(argv)
    for file in getattr(a, "ops", ()):
        load_file(file)
    return int(a.command(a) or 0)


def _run(a: argparse.Namespace) -> int:
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
    session = Session(graph, _backend(a), compile_options(a))
    results = session.run(arrays)
    array_files.write_outputs(outputs, results)
    for name, value in results.items():
        place = f" -> {outputs[name]}" if name in outputs else _summary(value)
        print(f"{name}: {session.outputs[name]}{place}")
    return 0


def _info(a: argparse.Namespace) -> int:
    from cml_engine.report.info import model_info

    graph = load_model(a)
    info = model_info(graph, storage=storage_of(a))
    forecast = None
    if a.budget_ms:
        from cml_engine.cli.frames import forecast_of

        forecast = forecast_of(graph, a)
    if a.json:
        print(info.json(forecast=asdict(forecast)) if forecast else info.json())
        return 0
    print(info)
    if forecast:
        print(forecast)
    if a.plan:
        print("\n".join(info.layers))
    return 0


def _rank(a: argparse.Namespace) -> int:
    session = Session(load_model(a), _backend(a), compile_options(a))
    if a.stub:
        report: RankReport | StubReport = session.rank_without(a.stub, runs=a.runs)
    else:
        report = session.rank(runs=a.runs)
    print(report.json() if a.json else report.csv() if a.csv else report)
    return 0


def _validate(a: argparse.Namespace) -> int:
    from cml_engine.backends.shadow import shadow_run
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.passes import optimize
    from cml_engine.report.validation import Validation

    graph = optimize(load_model(a))
    gpu = Gpu()
    gpu.dump_kernels = a.dump_kernels or gpu.dump_kernels
    facts = {name: graph.facts[name] for name in graph.inputs}
    files = named_files(a.input, facts, "input")
    arrays = random_inputs(facts, a.seed)
    arrays |= {name: array_files.read(path, name, facts[name]) for name, path in files.items()}
    arrays = check_inputs(facts, arrays)
    checks = shadow_run(graph, gpu, arrays, storage_of(a))
    report = Validation.of(graph.name, gpu.name, progress(checks, len(graph.nodes), "validate"))
    print(report)
    stored = _storage_report(graph, gpu, arrays) if a.half else None
    return 0 if report.ok and (stored is None or stored.ok) else 1


def _storage_report(graph: Graph, gpu: Gpu, arrays: dict[str, Any]) -> StorageReport:
    from cml_engine.backends.half import storage_errors
    from cml_engine.backends.shadow import measured_errors
    from cml_engine.planning.choose_storage import layouts_for
    from cml_engine.report.storage import StorageReport

    errors = storage_errors(graph, layouts_for(graph, "half"), arrays)
    errors = progress(errors, len(graph.nodes), "storage")
    report = StorageReport.of(graph, errors, measured_errors(graph, gpu, arrays))
    print(report)
    return report


def _in_frames(name: str) -> Callable[[argparse.Namespace], int]:
    """A command of ``frames.py``, which is imported when it is asked for."""

    def run(a: argparse.Namespace) -> int:
        from cml_engine.cli import frames

        return int(getattr(frames, name)(a))

    return run


def _tune(a: argparse.Namespace) -> int:
    from cml_engine.cli.tune import tune

    return tune(a)


def _ops(a: argparse.Namespace) -> int:
    from cml_engine.report.operators import operator_table

    load_entry_points()
    print(operator_table())
    return 0


def _export(a: argparse.Namespace) -> int:
    if Path(a.destination).suffix.lower() != ".onnx":
        raise InputError(f"'{a.destination}': wanted a name in .onnx (cml convert writes NNEF)")
    graph = any_model(a)
    save(graph, a.destination, overwrite=a.overwrite, opset=a.opset)
    print(f"{a.destination}: {len(graph.nodes)} operations, opset {a.opset}")
    return 0


def _backend(a: argparse.Namespace) -> Gpu | str:
    """The backend asked for; a GPU that leaves its kernels in a folder, where one is named."""
    if a.half and a.backend == "cpu":
        raise InputError("--half wants the GPU: NumPy stores 32 bits. Leave --backend cpu out")
    if not a.dump_kernels:
        return str(a.backend)
    if a.backend == "cpu":
        raise InputError("--dump-kernels wants the GPU: leave --backend cpu out")
    from cml_engine.gpu.gpu import Gpu

    gpu = Gpu()
    gpu.dump_kernels = a.dump_kernels
    return gpu


def _summary(value: Any) -> str:
    if not value.size:
        return "  (empty)"
    return f"  min {value.min():.6g}  mean {value.mean():.6g}  max {value.max():.6g}"


def _notice(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"cml: notice: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="cml", description="Run, rank and check NNEF networks on the GPU or the CPU."
    )
    parser.add_argument("--version", action="version", version=f"cml {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run, command_name=name)
        return sub

    sub = command("run", _run, "Run a model on tensors from .npy, .npz or .png files.")
    add_options(sub, "model", "random", "inputs", "backend", "half", "dump")
    sub.add_argument("-o", "--output", action="append", default=[], metavar="NAME=FILE")
    sub = command("info", _info, "Inputs, outputs, operators, weights, memory, predicted time.")
    add_options(sub, "model", "random", "half", "json")
    sub.add_argument("--plan", action="store_true", help="list every dispatch")
    sub.add_argument(
        "--budget-ms", type=BUDGET_MS, metavar="MS", help="how a run in frames would go"
    )
    add_options(sub, "frame")
    _rank_options(command("rank", _rank, "Which operators the time goes to."))
    text = "Measure which kernels are fastest on this device, for all sessions on it."
    _tune_options(command("tune", _tune, text))
    sub = command("validate", _validate, "Check the GPU against NumPy, operator by operator.")
    add_options(sub, "model", "random", "inputs", "half", "dump")
    sub.add_argument("--seed", type=SEED, default=0, help="of the random inputs")
    add_options(command("ops", _ops, "Every operator, and how each backend runs it."), "ops")
    sub = command(
        "frames", _in_frames("frames"), "The model in frames: is the budget kept, and used?"
    )
    add_options(sub, "model", "random", "inputs", "half", "budget", "frame", "json")
    sub.add_argument("--frames", type=TIMES, default=600, help="of ours, full ones")
    sub.add_argument("--layers", type=TIMES, default=4, help="of the usual way beside it")
    sub = command("trace", _in_frames("trace"), "Write a trace of frames and slices for Perfetto.")
    add_options(sub, "model", "random", "inputs", "half", "budget", "frame")
    sub.add_argument("-o", "--output", default="trace.json", metavar="FILE")
    sub.add_argument("--runs", type=TIMES, default=3)
    sub = command("simulate", _in_frames("simulate"), "Policies compared, on a device on paper.")
    add_options(sub, "model", "random", "half", "budget", "frame")
    sub.add_argument("--speed", type=SPEED, default=1.0, help="of this device, 0.1 is a tenth")
    sub.add_argument("--plot", metavar="FILE", help="a picture of every frame's time")
    text = "Turn a model of another format into an NNEF folder."
    convert_options(command("convert", convert, text))
    text = "Write a model as ONNX, for other engines (docs/onnx.md)."
    _export_options(command("export", _export, text))
    return parser


def _rank_options(sub: argparse.ArgumentParser) -> None:
    add_options(sub, "model", "random", "backend", "half", "dump")
    sub.add_argument("--runs", type=TIMES, default=10)
    table = sub.add_mutually_exclusive_group()
    add_options(table, "json")
    table.add_argument("--csv", action="store_true")
    sub.add_argument(
        "--stub", metavar="NAME", help="whole runs without that operator against runs with it"
    )


def _tune_options(sub: argparse.ArgumentParser) -> None:
    add_options(sub, "model", "random", "half", "json")
    sub.add_argument("--rounds", type=TIMES, default=30, help="for each option")
    sub.add_argument("--dry-run", action="store_true", help="measure, and write nothing")


def _export_options(sub: argparse.ArgumentParser) -> None:
    add_options(sub, "model")
    sub.add_argument("destination", help="the .onnx file to write")
    sub.add_argument(
        "--opset",
        type=ONNX_OPSET,
        default=20,
        metavar="N",
        help=f"of ONNX's operators, {ONNX_OPSET.low} to {ONNX_OPSET.high}; 20 if left out",
    )
    sub.add_argument("--overwrite", action="store_true", help="replace a file that is there")
