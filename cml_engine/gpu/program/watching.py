"""A slow run for tools that reports the results of every operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cml_engine.errors import InputError
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.reuse import VARIABLES, sources_of


def run_watched(
    program: GpuProgram,
    graph: Graph,
    inputs: Mapping[str, object],
    watch: Callable[[Node, Sequence[Array]], None],
) -> dict[str, Array]:
    """Runs the optimized graph node by node, with a readback each, and returns the outputs.

    ``watch`` receives each node and its results. Nodes that do not depend on the given inputs are
    skipped if their results are retained. An exception in ``watch`` ends the run. Raises
    :class:`InputError` for a plan that is cooked or computed in bands.
    """
    if program.plan.bands:
        raise InputError(
            f"'{graph.name}' is computed in bands of rows ({program.plan.bands[0]}), so that no "
            "tensor among them is ever whole: watch it without arena_limit (--arena-limit-mib)"
        )
    if any(name not in program.plan.places for node in graph.nodes for name in node.outputs):
        raise InputError(
            f"the plan of '{graph.name}' is a cooked one, and does not say where its tensors lie: "
            "watch the model that it was made of, or on the CPU"
        )
    steps: dict[str, list[int]] = {}
    for step in program.plan.steps:
        steps.setdefault(step.title, []).append(step.index)
    with program.exclusive():
        changed = None if program.steps_for(inputs) is None else {*inputs, VARIABLES}
        _submit_loads(program, inputs)
        sources = sources_of(graph)
        for node in graph.nodes:
            if changed is not None and sources[node.outputs[0]].isdisjoint(changed):
                continue
            program.submit_steps(steps.get(node.title, ()))
            places = [program.plan.places[name] for name in node.outputs]
            watch(node, [inspect.read_tensor(program, place) for place in places])
        found = {n: inspect.read_tensor(program, p) for n, p in program.plan.outputs.items()}
        encoder = program.gpu.device.create_command_encoder()
        program.encode_updates(encoder)
        program.gpu.queue.submit([encoder.finish()])
        program.retained.end()
    return found


def _submit_loads(program: GpuProgram, inputs: Mapping[str, object]) -> None:
    """Begins a run: copies the inputs into the program's memory, from the host or the device."""
    encoder = program.gpu.device.create_command_encoder()
    _, loads = program.begin(encoder, inputs)
    compute = encoder.begin_compute_pass()
    for load in loads:
        load.encode_all(compute)
    compute.end()
    program.gpu.queue.submit([encoder.finish()])
