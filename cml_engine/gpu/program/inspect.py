"""Looking into a program from outside: for tests, tools and whoever measures. Everything blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.gpu.memory.words import empty, from_words
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.program.uniforms import RANGE_SLOTS
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.ir.graph import Array


def run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    """Run ``(step, first, count)`` in this order, a submit for every :data:`RANGE_SLOTS`."""
    with program.exclusive():
        _run_ranges(program, inputs, ranges)


def _run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    program.write_inputs(inputs)
    for start in range(0, len(ranges), RANGE_SLOTS):
        encoder = program.gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for step, first, count in ranges[start : start + RANGE_SLOTS]:
            program.encode_range(compute, step, first, count)
        compute.end()
        program.gpu.queue.submit([encoder.finish()])


def read_tensor(program: GpuProgram, place: TensorPlace) -> Array:
    """A tensor's value now; blocks. Only tensors that still have their memory make sense."""
    if place.fact.size == 0:
        return empty(place.fact)
    data = read_bytes(program, place.binding)
    return from_words(data, place)


def read_bytes(program: GpuProgram, binding: Binding) -> memoryview:
    buffer, offset = program.place(binding)
    return program.gpu.queue.read_buffer(buffer, offset, binding.nbytes)


def read_arena(program: GpuProgram) -> Array:
    """The whole arena as 32-bit words (tests look at what lies between the tensors)."""
    whole = Binding("", "arena", 0, program.residency.arena_bytes)
    return np.frombuffer(read_bytes(program, whole), np.uint32)


def fill_arena(program: GpuProgram, word: int) -> None:
    """Set every word of the arena (tests: what a kernel did not write shows)."""
    with program.exclusive():
        program.load()
        program.held.lose()
        assert program.residency.arena is not None
        program.residency.arena.write(np.full(program.residency.arena_bytes // 4, word, np.uint32))


def time_steps(
    program: GpuProgram,
    inputs: Mapping[str, Array],
    runs: int,
    steps: Sequence[int] | None = None,
) -> Array:
    """Milliseconds of each of these steps, or of all, ``[runs, steps]``. Each is in a pass of its
    own, and passes cannot overlap: the sum is somewhat more than an undisturbed run takes."""
    timer = PassTimer(program.gpu)
    if steps is None:
        steps = range(len(program.plan.steps))
    with program.exclusive():
        program.write_inputs(inputs)
        return np.array([timer.time(steps, program.encode_all) for _ in range(runs)])
