"""Inspection of a program for tests, tools and benchmarks. All functions block."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, islice

import numpy as np

from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.cpu.cpu_program import Watch
from cml_engine.errors import InputError
from cml_engine.gpu.device import RANGE_SLOTS, submitted_pass
from cml_engine.gpu.memory.tensors import from_words
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.io.output_folder import OutputFolder
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ir.reuse import VARIABLES, sources_of


def run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    """Uploads the inputs and runs ranges of workgroups ``(step, first, count)`` in order.

    There is one submit per :data:`RANGE_SLOTS` ranges. A range of a step on the CPU runs the step.
    """
    with program.residency.exclusive():
        _run_ranges(program, inputs, ranges)


def _run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    program.write_inputs(inputs)
    for on_cpu, group in groupby(ranges, lambda part: part[0] in program.on_cpu):
        if on_cpu:
            for step, _, _ in group:
                program.run_on_cpu(step)
            continue
        while batch := list(islice(group, RANGE_SLOTS)):
            with submitted_pass(program.gpu.device) as compute:
                for part in batch:
                    program.encode_range(compute, *part)


def read_tensor(program: GpuProgram, place: TensorPlace) -> Array:
    """Returns the current value of any tensor of the program as an array.

    The value is valid only while the tensor's memory is not reused by another tensor.
    """
    return from_words(read_bytes(program, place.binding) if place.fact.size else b"", place)


def read_bytes(program: GpuProgram, binding: Binding) -> memoryview:
    buffer, offset = program.residency.place(binding)
    return program.gpu.queue.read_buffer(buffer, offset, binding.nbytes)


def read_arena(program: GpuProgram) -> Array:
    """Returns the whole arena as 32-bit words, so that tests can check the gaps between tensors."""
    arena = Binding("", "arena", 0, program.residency.arena_bytes)
    return np.frombuffer(read_bytes(program, arena), np.uint32)


def fill_arena(program: GpuProgram, pattern: int) -> None:
    """Fills the whole arena with ``pattern``, so that tests find elements that no kernel wrote."""
    with program.residency.exclusive():
        program.load()
        program.retained.invalidate()
        assert program.residency.arena is not None
        program.residency.arena.write(
            np.full(program.residency.arena_bytes // 4, pattern, np.uint32)
        )


def time_steps(
    program: GpuProgram,
    inputs: Mapping[str, Array],
    runs: int,
    steps: Sequence[int] | None = None,
) -> Array:
    """Runs the given steps, or all, several times; returns milliseconds ``[runs, steps]``.

    Each step has its own pass, and passes cannot overlap. The sum is therefore slightly more
    than an uninstrumented run takes. Steps on the CPU are timed by the wall clock, with their
    copies.
    """
    timer = PassTimer(program.gpu)
    if steps is None:
        steps = range(len(program.plan.steps))
    with program.residency.exclusive():
        program.write_inputs(inputs)
        return np.array([time_once(program, timer, steps) for _ in range(runs)])


def time_once(program: GpuProgram, timer: PassTimer, steps: Sequence[int]) -> list[float]:
    """Runs the steps on the inputs in the program's memory; returns the milliseconds of each."""
    times: list[float] = []
    for on_cpu, group in groupby(steps, program.on_cpu.__contains__):
        if not on_cpu:
            times += timer.time(list(group), program.encode_all)
            continue
        for step in group:
            start = time.perf_counter()
            program.run_on_cpu(step)
            times.append(1e3 * (time.perf_counter() - start))
    return times


def run_watched(
    program: GpuProgram,
    graph: Graph,
    inputs: Mapping[str, object],
    watch: Watch | None,
    before: Watch | None = None,
) -> dict[str, Array]:
    """Runs the optimized graph node by node, with a readback each, and returns the outputs.

    ``before`` receives each node and its operands, ``watch`` each node and its results. Nodes that
    do not depend on the given inputs are skipped if their results are retained. An exception in a
    call ends the run. Raises :class:`InputError` for a plan that is cooked or computed in bands.
    """
    if program.plan.bands:
        raise InputError(
            f"'{graph.name}' is computed in bands of rows ({program.plan.bands[0]}), so that no "
            "tensor among them is ever whole: watch it without arena_limit (--arena-limit-mib)"
        )
    parts = {step: operators.part.graph.nodes for step, operators in program.on_cpu.items()}
    on_cpu = {node.outputs[0]: step for step, nodes in parts.items() for node in nodes}
    placed = (node for node in graph.nodes if node.outputs[0] not in on_cpu)
    if any(name not in program.plan.places for node in placed for name in node.outputs):
        raise InputError(
            f"the plan of '{graph.name}' is a cooked one, and does not say where its tensors lie: "
            "watch the model that it was made of, or on the CPU"
        )
    steps: dict[str, list[int]] = {}
    for step in program.plan.steps:
        steps.setdefault(step.title, []).append(step.index)
    with program.residency.exclusive():
        changed = None if program.steps_for(inputs) is None else {*inputs, VARIABLES}
        _submit_loads(program, inputs)
        sources = sources_of(graph)
        input_values = {
            name: _numbers(value, program.plan.inputs[name])
            for name, value in inputs.items()
            if isinstance(value, np.ndarray)
        }

        def value(name: str) -> Array:
            if name in input_values or graph.is_constant(name):
                return input_values[name] if name in input_values else graph.constants[name]
            place = program.plan.places[name]
            array = inspect.read_tensor(program, place)
            # of an input that is stored as integers only these are known
            return array / np.float32(place.conversion.inverse) if place.conversion else array

        for node in graph.nodes:
            if changed is not None and sources[node.outputs[0]].isdisjoint(changed):
                continue
            cpu_step = on_cpu.get(node.outputs[0])
            if cpu_step is not None:
                if node is parts[cpu_step][0]:
                    program.run_on_cpu(cpu_step, watch, before)
                continue
            if before is not None:
                before(node, [value(name) for name in node.reads])
            program.submit_steps(steps.get(node.title, ()))
            if watch is not None:
                watch(node, [value(name) for name in node.outputs])
        return _end_run(program)


def run_dumped(
    program: GpuProgram, inputs: Mapping[str, object], folder: OutputFolder
) -> dict[str, Array]:
    """Runs a network step by step and returns the outputs; writes the tensors of each step.

    ``0003_T0.npy`` has the memory of slot ``T0`` of step 3, as its kernel reads it or left it.
    These are floats, or 32-bit words if elements are packed.
    """
    plan = program.plan
    with program.residency.exclusive():
        _submit_loads(program, inputs)
        for step in plan.steps:
            bound = list(zip(plan.bound_tensors(step), step.bindings, strict=True))
            for has_run in (False, True):
                if has_run:
                    program.submit_steps([step.index])
                for tensor, binding in bound:
                    if tensor.written is has_run:
                        is_float = tensor.type.startswith(("scalar", "float32"))
                        is_float = is_float and tensor.layout in ("", PLAIN, C4)
                        elements = np.frombuffer(read_bytes(program, binding), np.uint32)
                        array = elements.view(np.float32) if is_float else elements
                        name = f"{step.index:04d}_{tensor.slot}.npy"
                        folder.write(name, partial(np.save, arr=array, allow_pickle=False))
        return _end_run(program)


def _end_run(program: GpuProgram) -> dict[str, Array]:
    """Returns the outputs of a run whose steps have run, and updates the variables."""
    arrays = {n: inspect.read_tensor(program, p) for n, p in program.plan.outputs.items()}
    encoder = program.gpu.device.create_command_encoder()
    program.encode_updates(encoder)
    program.gpu.queue.submit([encoder.finish()])
    program.retained.end()
    return arrays


def _numbers(array: Array, place: TensorPlace) -> Array:
    """Returns the numbers of an input, which may be given as words."""
    if place.conversion is None or array.dtype.kind == "f":
        return array
    return array.astype(np.float32) / np.float32(place.conversion.inverse)


def _submit_loads(program: GpuProgram, inputs: Mapping[str, object]) -> None:
    """Begins a run: copies the inputs into the program's memory, from the host or the device."""
    encoder = program.gpu.device.create_command_encoder()
    _, loads = program.begin(encoder, inputs)
    compute = encoder.begin_compute_pass()
    for load in loads:
        load.encode_all(compute)
    compute.end()
    program.gpu.queue.submit([encoder.finish()])
