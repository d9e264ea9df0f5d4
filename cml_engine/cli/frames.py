"""The commands that know of frames: ``cml frames``, ``trace``, ``simulate``, ``info --budget-ms``.

They are the one place of this package that imports the ``scheduler`` package, which stands above
it, and only when one of them is asked for.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cml_engine.cli.common import bar, compile_options, load_model, named_files, storage_of
from cml_engine.errors import DeviceError, InputError
from cml_engine.files import arrays as array_files
from cml_engine.files.folders import costs_file
from cml_engine.graph import Graph
from cml_engine.session import Session, check_inputs, random_inputs

if TYPE_CHECKING:
    from scheduler.tools.commands import Forecast
    from scheduler.tools.simulate import Outcome


def forecast_of(graph: Graph, a: argparse.Namespace) -> Forecast:
    """How a run under ``--budget-ms`` would go; on a GPU if there is one, for its own costs."""
    from cml_engine.report.info import plan_for
    from scheduler.tools.commands import forecast, known_costs

    plan, device = plan_for(graph, storage_of(a))
    model = known_costs(device, costs_file(device) if device else None)
    return forecast(graph.name, plan.step_costs(), a.budget_ms, a.frame_ms, model)


def frames(a: argparse.Namespace) -> int:
    import numpy as np

    from scheduler.tools import commands

    session, arrays = _gpu_session(a)
    with bar("frames", a.frames) as done:
        report = commands.frames(
            session, arrays, budget_ms=a.budget_ms, frame_ms=a.frame_ms, count=a.frames,
            layers=a.layers, same=np.array_equal, costs_file=costs_file(session.gpu.name),
            progress=done,
        )  # fmt: skip
    print(report.json() if a.json else report)
    return 0 if report.identical else 1


def trace(a: argparse.Namespace) -> int:
    from scheduler.tools import commands

    path = Path(a.output)
    array_files.check_place(path)
    session, arrays = _gpu_session(a)
    plan = session.plan
    memory = {"weights": plan.weights_bytes, "activations": plan.memory.peak}
    frames, slices = commands.trace(
        session, arrays, path, budget_ms=a.budget_ms, frame_ms=a.frame_ms, runs=a.runs,
        memory=memory, places={s.title: str(s.source) for s in plan.steps if s.source},
    )  # fmt: skip
    print(f"{path}: {frames} frames, {slices} slices; open it in ui.perfetto.dev")
    return 0


def simulate(a: argparse.Namespace) -> int:
    from cml_engine.report.info import plan_for
    from scheduler.tools import commands
    from scheduler.tools.simulate import table

    if a.plot:
        _check_plot(Path(a.plot))
    graph = load_model(a)
    plan, device = plan_for(graph, storage_of(a))
    model = commands.known_costs(device, costs_file(device) if device else None)
    outcomes = commands.policies(
        graph.name, plan.step_costs(), budget_ms=a.budget_ms, frame_ms=a.frame_ms, speed=a.speed,
        model=model,
    )  # fmt: skip
    print(table(outcomes))
    if a.plot:
        _plot(outcomes, a.frame_ms, Path(a.plot))
    return 0


def _plot(outcomes: Sequence[Outcome], frame_ms: float, path: Path) -> None:
    from scheduler.tools.plot import plot_outcomes

    try:
        plot_outcomes(outcomes, frame_ms, path)
    except ValueError as error:  # matplotlib's words for a suffix that it does not know
        raise InputError(f"cannot write '{path}': {error}") from None
    print(f"plot: {path}")


def _check_plot(path: Path) -> None:
    """Raise for a picture that could not be made, before the work for it is done."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install matplotlib")
    array_files.check_place(path)


def _gpu_session(a: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """A session on a GPU that can time its own work, and inputs for it."""
    session = Session(load_model(a), "gpu", compile_options(a))
    assert session.gpu is not None
    if not session.gpu.has_timestamps:
        raise DeviceError(f"{session.gpu.name} has no timestamp queries: frames cannot be timed")
    files = named_files(a.input, session.inputs, "input")
    arrays = random_inputs(session.inputs)
    for name, path in files.items():
        arrays[name] = array_files.read(path, name, session.inputs[name])
    return session, check_inputs(session.inputs, arrays)
